// The gradient of a row's outputs before they are normalised, dN~: what every other gradient begins with.
#pragma once

#include "join.h"
#include "side.h"

namespace kt {
namespace KT_ISA {

template <class T> constexpr double HIGH = sizeof(T) == 4 ? 70 : 600;  // of exponents of far weights

template <class T> class OutputGradient {
  public:
    OutputGradient(const Sizes<T>& s, const Gradient& g, const Queries<T>& queries, const Scaling<T>& scaling,
                   Arena& arena)
        : s(s), p(s.p), g(g), queries(queries), scaling(scaling), dn(arena.take<T>(s.Cp * s.Mp)),
          dn_lanes(arena.take<T>(s.in_lanes(s.Mp))), d_den(arena.take<T>(s.Cp)),
          line(arena.take<T>(s.Mp)) {}

    // Of n queries of query row q from token t on, which `queries` holds: dN in rows and in lanes, or in rows.
    void load_block(int64_t q, int64_t t, int64_t n) {
        load_rows(q, t, n);
        to_lanes(dn, s.Mp, queries.columns, queries.columns, s.Mp, dn_lanes, s.Cp);
    }
    void load_rows(int64_t q, int64_t t, int64_t n) {
        auto straight = [&](const View& view) { return s.M == s.Mp && direct<T>(view, p.output_type, q, s.M); };
        const bool d_straight = straight(g.d_output), out_straight = straight(p.output);
        for (int64_t i = 0; i < queries.columns; i += LANES<T>) {
            Vec<T> total[LANES<T>] = {};
            double factor[LANES<T>] = {};  // 0: the query depends on nothing
            for (int l = 0; l < LANES<T>; ++l) {
                const int64_t at = i + l;
                const double saved = at < n ? normalizer(q, t, at) : 0;
                if (saved != 0 && !queries.hidden(at)) factor[l] = p.normalize ? 1 / saved : saved;
                total[l] = one_output(q, t + at, T(factor[l]), d_straight, out_straight, dn + at * s.Mp);
            }
            T mixed[LANES<T>];
            store(mixed, sums_of<T>(total));
            for (int l = 0; l < LANES<T>; ++l) d_den[i + l] = p.normalize ? -mixed[l] : T(0);
        }
    }

    // dN in rows times a factor of each query.
    void times(const T* factor, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
            for (int64_t c = 0; c < s.Mp; ++c) dn[i * s.Mp + c] *= factor[i];
    }

    const Sizes<T>& s;
    const Problem& p;
    const Gradient& g;
    const Queries<T>& queries;
    const Scaling<T>& scaling;
    T *dn, *dn_lanes;  // dN in rows and in lanes
    T* d_den;          // of the normaliser

  private:
    // What query t + i is divided by, in the units of its far part; or multiplied, if not normalised.
    double normalizer(int64_t q, int64_t t, int64_t i) const {
        const int64_t at = p.slot(q, t + i);
        if (!p.near_normalizer) return p.normalizer[at];
        if (p.near_normalizer[at] == 0) return 0;
        // Finite: sums over no keys are 0, whatever their scale would be.
        const double own = far_unit(p, queries.gain, p.near_top[at], queries.scale(i, scaling));
        const double unit = std::min(own - p.near_reference[at], HIGH<T>);
        return p.normalize ? p.near_normalizer[at] * std::exp(-unit) : std::exp(unit);
    }

    // The numbers of a token, where they lie or in a copy of Mp.
    KT_INLINE const T* numbers(const View& view, bool straight, int64_t q, int64_t t, T* copy) const {
        if (straight) return reinterpret_cast<const T*>(view.at(q, t));
        read_token<T>(view, p.output_type, q, t, s.M, T(1), copy);
        std::fill(copy + s.M, copy + s.Mp, T(0));
        return copy;
    }

    // dN of a query, and in lanes the terms of dN·O.
    KT_INLINE Vec<T> one_output(int64_t q, int64_t t, T factor, bool d_straight, bool out_straight, T* to) {
        Vec<T> total{};
        if (factor == T(0)) {
            std::fill(to, to + s.Mp, T(0));
            return total;
        }
        const T* d_out = numbers(g.d_output, d_straight, q, t, to);
        const T* out = numbers(p.output, out_straight, q, t, line);
        for (int64_t c = 0; c < s.Mp; c += LANES<T>) {
            const Vec<T> o = load(out + c);
            const Ints<T> fine = o == o;  // what NaN has spoilt depends on nothing
            const Vec<T> d = masked<T>(load(d_out + c) * factor, fine);
            total += d * masked<T>(o, fine);
            store(to + c, d);
        }
        return total;
    }

    T* line;
};

}  // namespace KT_ISA
}  // namespace kt
