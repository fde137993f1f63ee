// One token of the delta rule on a state (d, M) that is changed in place. The first pass over the state
// reads it for e and for q at once, since o = (D S)ᵀ q + (k·q) u; the second writes it, from the end back:
// what the first has read last is still in the first cache.
#pragma once

#include "delta_tokens.h"
#include "sizes.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaStep {
  public:
    explicit DeltaStep(const DeltaRule& p)
        : s(p), p(p), tokens(s, arena), keep(arena.take<T>(s.ds)), e(arena.take<T>(s.ds)), q(arena.take<T>(s.ds)),
          z(arena.take<T>(s.Mp)), o(arena.take<T>(s.Mp)), u(arena.take<T>(s.Mp)), w(arena.take<T>(s.Mp)) {}

    void run(int64_t r) {
        T* S = static_cast<T*>(p.state) + r * s.d * s.M;
        if (s.restarts(r, 0)) std::fill(S, S + s.d * s.M, T(0));
        tokens.load(r, 0, 1);
        std::fill(o, o + s.Mp, T(0));
        if (tokens.any) {
            factors();
            look(S);
            correct();
            change(S);
            spoil(S);
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
        if (!s.by_token) return;
        const T rate = T(std::exp(tokens.decay[0]));
        std::fill(keep, keep + s.ds, rate);
        multiply(e, rate, s.ds);
        multiply(q, rate, s.ds);
    }

    // z = (D S)ᵀ e and o = (D S)ᵀ q, four rows at a time.
    void look(const T* S) {
        const int64_t M = s.M, whole = M / LANES<T> * LANES<T>;
        std::fill(z, z + s.Mp, T(0));
        int64_t i = 0;
        for (; i + 4 <= s.d; i += 4) {
            const T* row = S + i * M;
            Vec<T> ev[4], qv[4];
            for (int a = 0; a < 4; ++a) ev[a] = splat(e[i + a]), qv[a] = splat(q[i + a]);
            for (int64_t c = 0; c < whole; c += LANES<T>) {
                Vec<T> zv = load(z + c), ov = load(o + c);
#pragma GCC unroll 4
                for (int a = 0; a < 4; ++a) {
                    const Vec<T> x = load(row + a * M + c);
                    zv += ev[a] * x;
                    ov += qv[a] * x;
                }
                store(z + c, zv);
                store(o + c, ov);
            }
            for (int64_t c = whole; c < M; ++c)
                for (int a = 0; a < 4; ++a) {
                    z[c] += e[i + a] * row[a * M + c];
                    o[c] += q[i + a] * row[a * M + c];
                }
        }
        for (; i < s.d; ++i)
            for (int64_t c = 0; c < M; ++c) {
                z[c] += e[i] * S[i * M + c];
                o[c] += q[i] * S[i * M + c];
            }
    }

    // What the token writes: u by k, or w by k and u by −x; and what it sees of that.
    void correct() {
        const T beta = tokens.beta[0];
        T by_k = 0, by_x = 0;
        for (int64_t f = 0; f < s.d; ++f) {
            by_k += tokens.q[f] * tokens.k[f];
            by_x += tokens.q[f] * tokens.x[f];
        }
        for (int64_t c = 0; c < s.Mp; c += LANES<T>) {
            const Vec<T> v = load(tokens.v + c), read = load(z + c);
            const Vec<T> written = beta * (s.erases ? v : v - read), erased = beta * read;
            store(w + c, written);
            store(u + c, erased);
            Vec<T> seen = load(o + c) + by_k * written;
            if (s.erases) seen += by_x * erased;
            store(o + c, seen);
        }
    }

    void change(T* S) {
        const int64_t M = s.M, whole = M / LANES<T> * LANES<T>;
        for (int64_t i = s.d - 1; i >= 0; --i) {
            T* row = S + i * M;
            const T rate = keep[i], k = tokens.k[i], x = tokens.x[i];
            if (s.erases) {
                for (int64_t c = 0; c < whole; c += LANES<T>)
                    store(row + c, load(row + c) * rate + k * load(w + c) + x * load(u + c));
                for (int64_t c = whole; c < M; ++c) row[c] = row[c] * rate + k * w[c] + x * u[c];
            } else {
                for (int64_t c = 0; c < whole; c += LANES<T>) store(row + c, load(row + c) * rate + k * load(w + c));
                for (int64_t c = whole; c < M; ++c) row[c] = row[c] * rate + k * w[c];
            }
        }
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
    T *keep, *e, *q, *z, *o, *u, *w;
};

}  // namespace KT_ISA
}  // namespace kt
