// One token of the delta rule on a state (d, M) that is changed in place. Since o = (D S)ᵀ q + (k·q) u, the
// state is read for e and for q at once. What the token changes, S ← D S + k uᵀ, needs a second pass; a
// decoder leaves it to the first pass of the next token.
#pragma once

#include <algorithm>
#include <tuple>

#include "delta_tokens.h"
#include "sizes.h"

namespace kt {
namespace KT_ISA {

// S ← diag(keep) S + k wᵀ + x zᵀ, which the last token has left to be done. x is 0 without erase vectors.
template <class T> struct DeltaPending {
    T *keep = nullptr, *k = nullptr, *x = nullptr;  // (d)
    T *w = nullptr, *z = nullptr;                   // (M)

    static int64_t size(int64_t d, int64_t M) { return 3 * d + 2 * M; }
    DeltaPending() = default;
    DeltaPending(T* at, int64_t d, int64_t M) : keep(at), k(at + d), x(at + 2 * d), w(at + 3 * d), z(w + M) {}

    void clear(int64_t d, int64_t M) {
        std::fill(keep, keep + d, T(1));
        std::fill(k, k + 2 * d + 2 * M, T(0));
    }
};

template <class T> class DeltaStep {
  public:
    static constexpr int64_t AHEAD = 12;  // rows that are fetched before they are read
    // Registers of columns that go through the rows together; a pass has three numbers for each, or four.
    static constexpr int TWO_PASSES = 4, ONE_PASS = KT_VECTOR_BYTES == 64 ? 8 : 2, ERASING = KT_VECTOR_BYTES == 64 ? 4 : 2;

    explicit DeltaStep(const DeltaRule& p)
        : s(p, 1), p(p), tokens(s, arena), keep(arena.take<T>(s.ds)), e(arena.take<T>(s.ds)), q(arena.take<T>(s.ds)),
          o(arena.take<T>(s.Mp)) {}

    void run(int64_t r) {
        T* S = static_cast<T*>(p.state) + r * s.d * s.M;
        const T* from = p.state_before ? static_cast<const T*>(p.state_before) + r * s.d * s.M : S;
        if (p.pending) before = {static_cast<T*>(p.pending) + r * DeltaPending<T>::size(s.d, s.M), s.d, s.M};
        if (s.restarts(r, 0)) {
            std::fill(S, S + s.d * s.M, T(0));
            from = S;
            if (p.pending) before.clear(s.d, s.M);
        }
        if (!p.output.data) {
            finish(S);
            return;
        }
        tokens.load(r, 0, 1);
        std::fill(o, o + s.Mp, T(0));
        if (tokens.any) {
            factors();
            pass(S, from);
            if (tokens.any_bad) spoil(S);
        } else if (from != S) {
            std::copy(from, from + s.d * s.M, S);
        }
        write_numbers(p.output.at(r, 0), p.output_type, p.output.element, s.M, o);
    }

  private:
    // All columns; a decoder then has the next changes in place of the last ones.
    void pass(T* S, const T* from) {
        int64_t c = 0;
        if (!p.pending) {
            for (; c + TWO_PASSES * LANES<T> <= s.M; c += TWO_PASSES * LANES<T>) columns<TWO_PASSES>(S, from, c);
            for (; c + LANES<T> <= s.M; c += LANES<T>) columns<1>(S, from, c);
            for (; c < s.M; ++c) column(S, from, c);
            return;
        }
        // The last token may have erased, even if this one does not.
        const bool erases = s.erases || std::any_of(before.z, before.z + s.M, [](T z) { return z != 0; });
        if (erases)
            for (; c + ERASING * LANES<T> <= s.M; c += ERASING * LANES<T>) once<ERASING, true>(S, c);
        else
            for (; c + ONE_PASS * LANES<T> <= s.M; c += ONE_PASS * LANES<T>) once<ONE_PASS, false>(S, c);
        for (; c + LANES<T> <= s.M; c += LANES<T>) erases ? once<1, true>(S, c) : once<1, false>(S, c);
        for (; c < s.M; ++c) column_once(S, c);
        std::copy(keep, keep + s.d, before.keep);
        std::copy(tokens.k, tokens.k + s.d, before.k);
        if (s.erases) std::copy(tokens.x, tokens.x + s.d, before.x);
    }

    // What is pending, by the same pass as a token that reads nothing.
    void finish(T* S) {
        if (!p.pending) return;
        for (T* one : {e, q, tokens.k, tokens.x}) std::fill(one, one + s.ds, T(0));
        std::fill(keep, keep + s.ds, T(1));
        std::fill(tokens.v, tokens.v + s.Ms, T(0));
        tokens.beta[0] = q_k = q_x = 0;
        pass(S, S);
        before.clear(s.d, s.M);
    }

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

    // `vecs` registers of columns from c on: z = Sᵀe and seen = Sᵀq become what is written, βz, and the output.
    template <int vecs> KT_INLINE void answer(int64_t c, Vec<T>* z, Vec<T>* seen, Vec<T>* w) {
        const T beta = tokens.beta[0];
        for (int j = 0; j < vecs; ++j) {
            const Vec<T> v = load(tokens.v + c + j * LANES<T>);
            w[j] = beta * (s.erases ? v : v - z[j]);
            z[j] *= beta;
            seen[j] += q_k * w[j];
            if (s.erases) seen[j] += q_x * z[j];
            store(o + c + j * LANES<T>, seen[j]);
        }
    }

    template <int vecs> KT_INLINE void fetch(const T* row) {
        for (int line = 0; line < vecs * KT_VECTOR_BYTES; line += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(row + AHEAD * s.M) + line);
    }

    // Their part of the state is read once and, while it is still in the first caches, changed from the
    // last row back.
    template <int vecs> KT_INLINE void columns(T* S, const T* from, int64_t c) {
        const int64_t M = s.M, d = s.d;
        const T *read = e, *look = q, *rates = keep, *by_k = tokens.k, *by_x = tokens.x;
        Vec<T> z[vecs] = {}, seen[vecs] = {}, w[vecs];
        const T* row = from + c;
        for (int64_t i = 0; i < d; ++i, row += M) {
            fetch<vecs>(row);
            const Vec<T> ev = splat(read[i]), qv = splat(look[i]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) {
                const Vec<T> x = load(row + j * LANES<T>);
                z[j] += ev * x;
                seen[j] += qv * x;
            }
        }
        answer<vecs>(c, z, seen, w);
        T* to = S + c + d * M;
        for (int64_t i = d - 1; i >= 0; --i) {
            row -= M;
            to -= M;
            const Vec<T> rate = splat(rates[i]), k = splat(by_k[i]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) {
                Vec<T> x = load(row + j * LANES<T>) * rate + k * w[j];
                if (s.erases) x += by_x[i] * z[j];
                store(to + j * LANES<T>, x);
            }
        }
    }

    // The same in one pass, which makes the changes of the last token.
    template <int vecs, bool erases> KT_INLINE void once(T* S, int64_t c) {
        const int64_t M = s.M, d = s.d;
        const T *read = e, *look = q, *rates = before.keep, *by_k = before.k, *by_x = before.x;
        Vec<T> z[vecs] = {}, seen[vecs] = {}, w[vecs], last_w[vecs], last_z[erases ? vecs : 1];
        for (int j = 0; j < vecs; ++j) {
            last_w[j] = load(before.w + c + j * LANES<T>);
            if (erases) last_z[j] = load(before.z + c + j * LANES<T>);
        }
        T* row = S + c;
        for (int64_t i = 0; i < d; ++i, row += M) {
            fetch<vecs>(row);
            const Vec<T> ev = splat(read[i]), qv = splat(look[i]), rate = splat(rates[i]), k = splat(by_k[i]);
#pragma GCC unroll 8
            for (int j = 0; j < vecs; ++j) {
                Vec<T> x = load(row + j * LANES<T>) * rate + k * last_w[j];
                if (erases) x += by_x[i] * last_z[j];
                store(row + j * LANES<T>, x);
                z[j] += ev * x;
                seen[j] += qv * x;
            }
        }
        answer<vecs>(c, z, seen, w);
        for (int j = 0; j < vecs; ++j) {
            store(before.w + c + j * LANES<T>, w[j]);
            if (erases) store(before.z + c + j * LANES<T>, s.erases ? z[j] : Vec<T>{});
        }
    }

    // Column c alone.
    void column(T* S, const T* from, int64_t c) {
        T z = 0, seen = 0;
        for (int64_t i = 0; i < s.d; ++i) {
            z += e[i] * from[i * s.M + c];
            seen += q[i] * from[i * s.M + c];
        }
        const auto [w, u] = answer(c, z, seen);
        for (int64_t i = 0; i < s.d; ++i)
            S[i * s.M + c] = from[i * s.M + c] * keep[i] + tokens.k[i] * w + tokens.x[i] * u;
    }

    void column_once(T* S, int64_t c) {
        T z = 0, seen = 0;
        for (int64_t i = 0; i < s.d; ++i) {
            T& x = S[i * s.M + c];
            x = x * before.keep[i] + before.k[i] * before.w[c] + before.x[i] * before.z[c];
            z += e[i] * x;
            seen += q[i] * x;
        }
        std::tie(before.w[c], before.z[c]) = answer(c, z, seen);
    }

    // What column c is changed by: times k, and times x.
    std::pair<T, T> answer(int64_t c, T z, T seen) {
        const T beta = tokens.beta[0], v = tokens.v[c];
        const T w = beta * (s.erases ? v : v - z), u = s.erases ? beta * z : T(0);
        o[c] = seen + q_k * w + q_x * u;
        return {w, u};
    }

    // Columns that were NaN or are now; a query that is not finite spoils its output alone.
    void spoil(T* S) {
        constexpr T NaN = std::numeric_limits<T>::quiet_NaN();
        for (int64_t c = 0; c < s.M; ++c) {
            if (tokens.from[std::size_t(c)] == 0) {
                o[c] = NaN;
                if (p.pending)
                    before.w[c] = NaN;  // which spoils every number that it is added to
                else
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
    DeltaPending<T> before;
    T q_k = 0, q_x = 0;  // q·k, and q·(−x)
};

}  // namespace KT_ISA
}  // namespace kt
