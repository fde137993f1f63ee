// The outputs of a block's queries: what the state gives them, what the block's keys give them, and where
// there is one the near part; divided by the normaliser, and written.
#pragma once

#include "join.h"
#include "prefetch.h"
#include "side.h"
#include "sums.h"

namespace kt {
namespace KT_ISA {

// Sums over near keys for the queries of a block, what they are relative to, and the largest exponent.
template <class T> struct NearSums {
    const T* mixed = nullptr;
    int64_t stride = 0;
    const T *den = nullptr, *level = nullptr, *top = nullptr;
    const uint8_t *bad = nullptr, *bad_queries = nullptr;  // what a NaN or inf near by reaches, or null
};

// Where to put all sums so far in place of outputs, if other keys follow.
template <class T> struct Unfinished {
    T* mixed = nullptr;
    int64_t stride = 0;
    T *den = nullptr, *level = nullptr;
};

template <class T, class Kernel> class Output {
  public:
    Output(const Sizes<T>& s, Kernel& kernel, Prefetch& prefetch, Arena& arena)
        : s(s), p(s.p), kernel(kernel), scaling(kernel.scaling), k(kernel.k), q(kernel.q), prefetch(prefetch),
          strip(arena.take<T>(TILE_ROWS * s.Cp)), staged(arena.take<T>(TILE_ROWS * s.Mp)),
          den(arena.take<T>(s.Cp + TILE_ROWS + LANES<T>)), bad_here(std::size_t(s.M + 1)) {}

    NearSums<T> near;
    Unfinished<T> unfinished;

    // tile(i.., j..) of weights within the block, of gradients: zero above the diagonal, whatever stood there.
    template <int R, int N> KT_INLINE void weights(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        kernel.products(tile, i, j);
        scaling.by_block(tile, i, j);
        tile.keep_lower(i, j);
    }

    // Outputs of query row `row` for the n tokens from t; `inside`: they also see the block's keys.
    void write_block(Sums<T>& sums, int64_t row, int64_t t, int64_t n, bool inside, bool stream) {
        const bool use_state = T(scaling.state_share) != 0 && s.m > 0 && !sums.empty;
        if (use_state)
            kernel.look(sums, n, den);
        else
            std::fill(den, den + q.columns, T(0));
        for (int64_t i = 0; i < n && p.zero; ++i) p.zero[p.slot(row, t + i)] = 0;
        const bool straight = s.M == s.Mp && direct<T>(p.output, p.output_type, row, s.M);
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const int64_t limit = inside ? i + R : 0;
            constexpr int RP = (R + LANES<T> - 1) / LANES<T> * LANES<T>;
            Vec<T> row_sum[RP] = {};
            for (int64_t j = 0; j < limit; j += TILE_COLUMNS<T>) {
                Tile<T, R, TILE_VECS> tile;
                kernel.products(tile, i, j);
                scaling.by_row(tile, i, j);
                tile.keep_lower(i, j);
                tile.store(strip + j, s.Cp);
                tile.each([&](int a, int c) __attribute__((always_inline)) { row_sum[a] += tile.acc[a][c]; });
            }
            T share[RP], near_share[RP] = {};
            const bool some_near = near.mixed;
            const bool special = some_near ? near_shares<R, RP>(row, t, i, limit ? row_sum : nullptr, share, near_share)
                                           : shares<R, RP>(row, t, i, limit ? row_sum : nullptr, share);
            by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                constexpr int N = decltype(cols)::value;
                Tile<T, R, N> tile;
                prefetch.step(6);
                if (use_state) {
                    kernel.read(tile, sums, i, c);
                    scaling.by_state(tile, i);
                } else {
                    tile.clear();
                }
                if (limit) tile.add(strip, s.Cp, 1, k.v.x + c, k.v.stride, limit);
                T* out[R];
                for (int a = 0; a < R; ++a)
                    out[a] = unfinished.mixed ? unfinished.mixed + (i + a) * unfinished.stride + c
                             : straight       ? reinterpret_cast<T*>(p.output.at(row, t + i + a)) + c
                                              : staged + a * s.Mp + c;
                tile.each([&](int a, int e) __attribute__((always_inline)) {
                    // Adding 0 makes −0, which the zeros above the diagonal could, +0.
                    Vec<T> y = tile.acc[a][e] * share[a] + T(0);
                    if (some_near) {  // of which one may count 0, though it has overflowed
                        const Vec<T> close = load(near.mixed + (i + a) * near.stride + c + e * LANES<T>);
                        if (share[a] == T(0)) y = Vec<T>{};
                        if (near_share[a] != T(0)) y += close * near_share[a];
                    }
                    if (stream && straight)
                        stream_store(out[a] + e * LANES<T>, y);
                    else
                        store(out[a] + e * LANES<T>, y);
                });
            });
            for (int a = 0; a < R; ++a)
                if (!straight && !unfinished.mixed)
                    write_token(p.output, p.output_type, row, t + i + a, s.M, staged + a * s.Mp);
            for (int a = 0; a < R && special; ++a) replace(row, t, i + a, share[a]);
        });
        if (unfinished.mixed) return;
        if (sums.any_bad || k.v.any_bad || k.tokens.any_bad || q.tokens.any_bad || near.bad || near.bad_queries)
            spoil(sums, row, t, n, inside);
    }

    // The logarithm of the unit of far weights in query i of the block; `top` is the largest near by.
    double far_scale(int64_t i, double top) const {
        return far_unit(p, q.gain, top, q.scale(i, scaling)) + scaling.shift[i];
    }

    void fill(int64_t row, int64_t t, T value) {
        for (int64_t c = 0; c < s.M; ++c) put(row, t, c, value);
    }

    // NaN in the columns of an output that are flagged.
    void spoil_columns(int64_t row, int64_t t, const std::vector<uint8_t>& flags) {
        for (int64_t c = 0; c < s.M; ++c)
            if (flags[std::size_t(c)]) put(row, t, c, std::numeric_limits<T>::quiet_NaN());
        if (p.zero && flags[std::size_t(s.M)]) p.zero[p.slot(row, t)] = 0;
    }

  private:
    // A normaliser below this counts as 0: sums of subnormal weights have lost their digits.
    static constexpr T LEAST = std::numeric_limits<T>::min();

    void put(int64_t row, int64_t t, int64_t c, T value) {
        write<T>(p.output.at(row, t) + c * p.output.element, p.output_type, value);
    }

    // 1 / normaliser, or the factor of an output that is not normalised, of rows i …; whether one of
    // them needs more than a product.
    template <int R, int RP>
    KT_INLINE bool shares(int64_t row, int64_t t, int64_t i, Vec<T>* row_sum, T* share) {
        bool special = q.tokens.any_hidden;
        if (!p.normalize) {
            for (int a = 0; a < R; ++a) special |= (share[a] = T(q.row_factor[i + a])) == 0;
            for (int a = 0; a < R && p.normalizer; ++a)
                p.normalizer[row * p.queries + t + i + a] = q.row_factor[i + a] * std::exp(-scaling.shift[i + a]);
            return special;
        }
#pragma GCC unroll 2
        for (int a = 0; a < RP; a += LANES<T>) {
            Vec<T> all = load(den + i + a);
            if (row_sum) all += sums_of<T>(row_sum + a);
            all = masked<T>(all, ~(most(all, -all) < splat(LEAST)));
            store(den + i + a, all);
            store(share + a, T(1) / all);
        }
        for (int a = 0; a < R; ++a) special |= std::isinf(share[a]);
        for (int a = 0; a < R && p.normalizer; ++a)
            p.normalizer[row * p.queries + t + i + a] = double(den[i + a]) * std::exp(scaling.shift[i + a]);
        return special;
    }

    // The same where there is a near part: what the far and the near sums are to be multiplied by.
    template <int R, int RP>
    KT_INLINE bool near_shares(int64_t row, int64_t t, int64_t i, Vec<T>* row_sum, T* share, T* near_share) {
        bool special = q.tokens.any_hidden;
        for (int a = 0; a < RP; a += LANES<T>)
            if (row_sum) store(den + i + a, load(den + i + a) + sums_of<T>(row_sum + a));
        for (int a = 0; a < R; ++a) {
            const double near_den = near.den[i + a], far_den = s.m ? den[i + a] : 0;
            const Join both = join<T>(near.level[i + a], s.m ? far_scale(i + a, near.top[i + a]) : -INF, far_den);
            const double total = both.far * far_den + both.near * near_den;
            if (unfinished.mixed) {
                unfinished.den[i + a] = T(total);
                unfinished.level[i + a] = both.nothing() ? T(-INF) : T(both.level);
                share[a] = T(both.far);
                near_share[a] = T(both.near);
                continue;
            }
            const bool none = std::fabs(total) < double(LEAST);
            den[i + a] = none ? T(0) : T(total);  // which `replace` looks at
            const double unit = p.normalize ? none ? 0 : 1 / total : std::exp(both.level);
            // Finite: sums over no keys are 0, whatever their scale would be.
            const double high = double(std::numeric_limits<T>::max());
            share[a] = T(std::min(both.far * unit, high));
            near_share[a] = T(std::min(both.near * unit, high));
            special |= p.normalize && none;
            if (p.near_normalizer) {
                const int64_t at = p.slot(row, t + i + a);
                p.near_reference[at] = p.normalize ? both.level : 0;
                p.near_normalizer[at] = !p.normalize ? 1 : none ? 0 : total;
                p.near_top[at] = near.top[i + a];
            }
        }
        return special;
    }

    // Rows that need more than a product: hidden ones, and those with a normaliser of 0.
    void replace(int64_t row, int64_t t, int64_t i, T share) {
        const bool hidden = q.hidden(i);
        const bool zero = p.normalize && den[i] == 0 && !hidden;
        if (p.zero && zero) p.zero[p.slot(row, t + i)] = 1;
        if (hidden || (!p.normalize && share == 0)) return fill(row, t + i, T(0));
        if (zero) fill(row, t + i, T(p.zero_fill));
    }

    static KT_INLINE void stream_store(T* to, Vec<T> v) {
#if KT_VECTOR_BYTES == 64
        _mm512_stream_si512((__m512i*)to, (__m512i)v);
#elif KT_VECTOR_BYTES == 32
        _mm256_stream_si256((__m256i*)to, (__m256i)v);
#elif defined(__SSE2__)
        _mm_stream_si128((__m128i*)to, (__m128i)v);
#else
        store(to, v);
#endif
    }

    // NaN in every output that depends on a NaN or inf: of q its row, of k later rows, of v later
    // rows of its column.
    void spoil(Sums<T>& sums, int64_t row, int64_t t, int64_t n, bool inside) {
        std::copy(sums.bad.begin(), sums.bad.end(), bad_here.begin());
        if (inside && scaling.restarts(row / p.groups, t)) std::fill(bad_here.begin(), bad_here.end(), 0);
        for (int64_t i = 0; i < n; ++i) {
            if (inside) k.add_bad(i, bad_here);
            if (q.hidden(i)) continue;
            const uint8_t* close = near.bad ? near.bad + i * (s.M + 1) : nullptr;
            const bool whole = q.bad(i) || (near.bad_queries && near.bad_queries[i]);
            auto reached = [&](int64_t c) { return whole || bad_here[std::size_t(c)] || (close && close[c]); };
            for (int64_t c = 0; c < s.M; ++c)
                if (reached(c)) put(row, t + i, c, std::numeric_limits<T>::quiet_NaN());
            if (p.zero && reached(s.M)) p.zero[p.slot(row, t + i)] = 0;
        }
    }

    const Sizes<T>& s;
    const Problem& p;
    Kernel& kernel;
    Scaling<T>& scaling;
    const Keys<T>& k;
    const Queries<T>& q;
    Prefetch& prefetch;
    T *strip, *staged;  // weights of some rows; their outputs, where they are not written at once
    T* den;             // the normaliser of every row
    std::vector<uint8_t> bad_here;
};

}  // namespace KT_ISA
}  // namespace kt
