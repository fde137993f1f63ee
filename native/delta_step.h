// One token of the delta rule on a state (d, M) that is changed in place. A part of its columns is read
// for e and for q at once, since o = (D S)ᵀ q + (k·q) u, and then changed.
#pragma once

#include "delta_tokens.h"
#include "sizes.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaStep {
  public:
    static constexpr int64_t AHEAD = 12;  // rows that are fetched before they are read

    explicit DeltaStep(const DeltaRule& p)
        : s(p, 1), p(p), tokens(s, arena), keep(arena.take<T>(s.ds)), e(arena.take<T>(s.ds)), q(arena.take<T>(s.ds)),
          o(arena.take<T>(s.Mp)) {}

    void run(int64_t r) {
        T* S = static_cast<T*>(p.state) + r * s.d * s.M;
        if (s.restarts(r, 0)) std::fill(S, S + s.d * s.M, T(0));
        tokens.load(r, 0, 1);
        std::fill(o, o + s.Mp, T(0));
        if (tokens.any) {
            factors();
            int64_t c = 0;
            for (; c + 4 * LANES<T> <= s.M; c += 4 * LANES<T>) columns<4>(S, c);
            for (; c + LANES<T> <= s.M; c += LANES<T>) columns<1>(S, c);
            for (; c < s.M; ++c) column(S, c);
            if (tokens.any_bad) spoil(S);
        }
        write_numbers(p.output.at(r, 0), p.output_type, p.output.element, s.M, o);
    }

  private:
    void factors() {
        for (int64_t f = 0; f < s.ds; f += LANES<T>) {
            const Vec<T> rate = s.by_feature ? exp(load(tokens.g + f)) : splat(T(1));
            store(keep + f, rate);
            store(e + f, load(tokens.e + f) * rate);
            store(q + f, load(tokens.q + f) * rate);
        }
        Vec<T> by_k{}, by_x{};
        for (int64_t f = 0; f < s.ds; f += LANES<T>) {
            by_k += load(tokens.q + f) * load(tokens.k + f);
            by_x += load(tokens.q + f) * load(tokens.x + f);
        }
        q_k = sum<T>(by_k);
        q_x = sum<T>(by_x);
        if (!s.by_token) return;
        const T rate = T(std::exp(tokens.decay[0]));
        std::fill(keep, keep + s.ds, rate);
        multiply(e, rate, s.ds);
        multiply(q, rate, s.ds);
    }

    // `vecs` registers of columns from c on. Their part of the state is read once and, while it is still
    // in the first caches, changed from the last row back.
    template <int vecs> KT_INLINE void columns(T* S, int64_t c) {
        const int64_t M = s.M, d = s.d;
        const T *read = e, *look = q, *rates = keep, *by_k = tokens.k, *by_x = tokens.x;
        Vec<T> z[vecs] = {}, seen[vecs] = {}, w[vecs];
        T* row = S + c;
        for (int64_t i = 0; i < d; ++i, row += M) {
            for (int line = 0; line < vecs * KT_VECTOR_BYTES; line += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(row + AHEAD * M) + line);
            const Vec<T> ev = splat(read[i]), qv = splat(look[i]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) {
                const Vec<T> x = load(row + j * LANES<T>);
                z[j] += ev * x;
                seen[j] += qv * x;
            }
        }
        const T beta = tokens.beta[0];
        for (int j = 0; j < vecs; ++j) {
            const Vec<T> v = load(tokens.v + c + j * LANES<T>);
            w[j] = beta * (s.erases ? v : v - z[j]);
            z[j] *= beta;
            seen[j] += q_k * w[j];
            if (s.erases) seen[j] += q_x * z[j];
            store(o + c + j * LANES<T>, seen[j]);
        }
        for (int64_t i = d - 1; i >= 0; --i) {
            row -= M;
            const Vec<T> rate = splat(rates[i]), k = splat(by_k[i]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) {
                Vec<T> x = load(row + j * LANES<T>) * rate + k * w[j];
                if (s.erases) x += by_x[i] * z[j];
                store(row + j * LANES<T>, x);
            }
        }
    }

    // Column c alone.
    void column(T* S, int64_t c) {
        T z = 0, seen = 0;
        for (int64_t i = 0; i < s.d; ++i) {
            z += e[i] * S[i * s.M + c];
            seen += q[i] * S[i * s.M + c];
        }
        const T beta = tokens.beta[0], v = tokens.v[c];
        const T w = beta * (s.erases ? v : v - z), u = s.erases ? beta * z : T(0);
        o[c] = seen + q_k * w + q_x * u;
        for (int64_t i = 0; i < s.d; ++i)
            S[i * s.M + c] = S[i * s.M + c] * keep[i] + tokens.k[i] * w + tokens.x[i] * u;
    }

    // Columns that were NaN or are now; a query that is not finite spoils its output alone.
    void spoil(T* S) {
        constexpr T NaN = std::numeric_limits<T>::quiet_NaN();
        for (int64_t c = 0; c < s.M; ++c) {
            if (tokens.from[std::size_t(c)] == 0) {
                o[c] = NaN;
                for (int64_t i = 0; i < s.d; ++i) S[i * s.M + c] = NaN;
            }
            if (tokens.bad_q[0]) o[c] = NaN;
        }
    }

    Arena arena;
    const DeltaSizes<T> s;
    const DeltaRule& p;
    DeltaTokens<T> tokens;
    T *keep, *e, *q, *o;
    T q_k = 0, q_x = 0;  // q·k, and q·(−x)
};

}  // namespace KT_ISA
}  // namespace kt
