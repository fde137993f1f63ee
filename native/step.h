// One more token for every row: U ← a ⊙ U + φ(k)vᵀ and o = φ(q)ᵀU / φ(q)ᵀZ, in float64. The cost
// is that of passing over the state once. Rows are taken several at a time, in lanes, for φ.
#pragma once

#include "row.h"

namespace kt {
namespace KT_ISA {

template <class T> class Steps {
  public:
    explicit Steps(const Problem& p)
        : p(p), together(p.features.weight_heads > 1 ? 1 : TILE_VECS * LANES<T>),
          C(TILE_VECS * LANES<T>), map(p.features, C, arena) {
        const Features& f = p.features;
        x = arena.take<T>((f.inputs + 1) * C);
        rows = arena.take<T>(C * f.inputs);
        phi_k = arena.take<T>(f.count * C);
        phi_q = arena.take<T>(p.groups * f.count * C);
        ls_k = arena.take<double>(C);
        ls_q = arena.take<double>(p.groups * C);
        where = arena.take<double>(C);
        value = arena.take<double>(p.width + 1);
        mixed = arena.take<double>(p.groups * (p.width + 1));
        narrow = arena.take<T>(p.width);
        for (int64_t j = 0; j < C; ++j) {
            where[j] = double(p.start);
            if (f.map == Map::quadratic) x[j] = 1;
        }
        bad_k.resize(std::size_t(C));
        bad_q.resize(std::size_t(p.groups * C));
    }

    void run(int64_t low, int64_t high) {
        for (int64_t r = low; r < high; r += together) {
            const int64_t n = std::min(together, high - r);
            features(p.k, r, 1, n, p.heads, phi_k, ls_k, bad_k.data());
            for (int64_t g = 0; g < p.groups; ++g)
                features(p.q, r * p.groups + g, p.groups, n, p.heads * p.groups,
                         phi_q + g * p.features.count * C, ls_q + g * C, bad_q.data() + g * C);
            for (int64_t j = 0; j < n; ++j) token(r + j, j);
        }
    }

  private:
    // φ of rows first, first + step, …: n of them, one in each lane.
    void features(const View& view, int64_t first, int64_t step, int64_t n, int64_t heads, T* phi,
                  double* log_scale, uint8_t* bad) {
        const int64_t d = p.features.inputs;
        for (int64_t j = 0; j < n; ++j) {
            T* one = rows + j * d;
            read_token<T>(view, p.type, first + j * step, 0, d, T(p.features.root_scale), one);
            bad[j] = !all_finite(one, d);
            if (bad[j]) std::fill(one, one + d, T(1));
        }
        T* lanes = x + (map.quadratic() ? C : 0);
        to_lanes(rows, d, n, C, d, lanes, C);
        const int64_t which = first % heads * p.features.weight_heads / heads;
        map.phi(map.quadratic() ? x : lanes, C, which, where, phi, log_scale);
    }

    void token(int64_t r, int64_t lane) {
        const int64_t m = p.features.count, W = p.width + 1, w = p.decay_width;
        uint8_t* bad = p.bad + r * W;
        bool spoilt = false;
        for (int64_t c = 0; c < p.width; ++c) {
            value[c] = double(read<T>(p.v.at(r, 0) + c * p.v.element, p.type));
            const bool fine = std::isfinite(value[c]);
            bad[c] |= !fine || bad_k[std::size_t(lane)];
            if (!fine) value[c] = 0;
            spoilt |= bad[c] != 0;
        }
        value[p.width] = 1;
        bad[p.width] |= bad_k[std::size_t(lane)];
        spoilt |= bad[p.width] != 0;

        double slowest = 0, add = 1, shift = 0;
        if (w > 0) {
            slowest = -INF;
            for (int64_t f = 0; f < w; ++f) {
                slowest = std::max(slowest, decay(r, f));
                p.decay_total[r * w + f] += decay(r, f);
            }
        }
        if (p.log_scale) {
            const double old = p.log_scale[r], now = std::max(old + slowest, ls_k[lane]);
            add = std::exp(ls_k[lane] - now);
            shift = old - now;
            p.log_scale[r] = now;
        }
        std::fill(mixed, mixed + p.groups * W, 0.0);
        double keep = w == 0 && shift == 0 ? 1 : std::exp(shift + (w ? decay(r, 0) : 0));
        double* U = p.sums + r * m * W;
        for (int64_t f = 0; f < m; ++f, U += W) {
            if (w > 1) keep = std::exp(shift + decay(r, f));
            const double k = double(phi_k[f * C + lane]) * add;
            if (p.groups == 1) {
                const double q = double(phi_q[f * C + lane]);
                pass(U, keep, k, W, [&](int64_t c, auto u) { put(mixed + c, get<decltype(u)>(mixed + c) + u * q); });
            } else {
                pass(U, keep, k, W, [&](int64_t c, auto u) {
                    for (int64_t g = 0; g < p.groups; ++g) {
                        const double q = double(phi_q[(g * m + f) * C + lane]);
                        put(mixed + g * W + c, get<decltype(u)>(mixed + g * W + c) + u * q);
                    }
                });
            }
        }
        for (int64_t g = 0; g < p.groups; ++g) write_out(r, g, lane, bad, spoilt);
    }

    double decay(int64_t r, int64_t f) const {
        return double(read<T>(p.log_decay.at(r, 0) + f * p.log_decay.element, type_of<T>));
    }

    template <class V> static KT_INLINE V get(const double* from) {
        V v;
        __builtin_memcpy(&v, from, sizeof v);
        return v;
    }
    template <class V> static KT_INLINE void put(double* to, V v) { __builtin_memcpy(to, &v, sizeof v); }

    // U ← keep·U + k·value, and what `use` makes of the new U; a keep of 0 forgets, whatever it was.
    template <class F> KT_INLINE void pass(double* U, double keep, double k, int64_t W, F&& use) const {
        int64_t c = 0;
        for (; c + LANES<double> <= W; c += LANES<double>) {
            Vec<double> u = keep == 0 ? Vec<double>{} : load(U + c) * keep;
            u = u + load(value + c) * k;
            store(U + c, u);
            use(c, u);
        }
        for (; c < W; ++c) {
            const double u = (keep == 0 ? 0.0 : U[c] * keep) + value[c] * k;
            U[c] = u;
            use(c, u);
        }
    }

    void write_out(int64_t r, int64_t g, int64_t lane, const uint8_t* bad, bool spoilt) {
        const int64_t W = p.width + 1, q = r * p.groups + g;
        const double* sums = mixed + g * W;
        const double total = sums[p.width];
        const bool whole = bad_q[std::size_t(g * C + lane)];
        const bool zero = p.normalize && total == 0 && !whole && !bad[p.width];
        double factor = 1;
        if (!p.normalize && p.log_scale) {
            const double ref = p.log_scale[r] == -INF ? 0 : p.log_scale[r];
            factor = std::exp(ls_q[g * C + lane] + ref);
        }
        for (int64_t c = 0; c < p.width; ++c) {
            double y = !p.normalize ? (factor == 0 ? 0 : sums[c] * factor)
                       : total == 0 ? p.zero_fill
                                    : sums[c] / total;
            if (spoilt || whole)
                if (whole || bad[c]) y = std::numeric_limits<double>::quiet_NaN();
            narrow[c] = T(y);
        }
        write_token(p.output, p.output_type, q, 0, p.width, narrow);
        p.zero[q] = zero;
    }

    const Problem& p;
    const int64_t together, C;
    Arena arena;
    Mapper<T> map;
    T *x, *rows, *phi_k, *phi_q, *narrow;
    double *ls_k, *ls_q, *where, *value, *mixed;
    std::vector<uint8_t> bad_k, bad_q;
};

}  // namespace KT_ISA
}  // namespace kt
