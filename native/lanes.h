// Tokens in rows and tokens in lanes: lanes[f · C + j] is number f of token j.
#pragma once

#include "tokens.h"

namespace kt {
namespace KT_ISA {

// Tokens in rows to tokens in lanes, any d: columns `count` … `columns` become ones.
template <class T>
inline void to_lanes(const T* x, int64_t stride, int64_t count, int64_t columns, int64_t d, T* out,
                     int64_t C) {
    int64_t i = 0;
    const int64_t whole = d / LANES<T> * LANES<T>;
    for (; i + LANES<T> <= count; i += LANES<T>) {
        for (int64_t f = 0; f < whole; f += LANES<T>) {
            Vec<T> v[LANES<T>];
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) v[a] = load(x + (i + a) * stride + f);
            transpose<T>(v);
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) store(out + (f + a) * C + i, v[a]);
        }
        for (int64_t f = whole; f < d; ++f)
            for (int a = 0; a < LANES<T>; ++a) out[f * C + i + a] = x[(i + a) * stride + f];
    }
    for (; i < columns; ++i)
        for (int64_t f = 0; f < d; ++f) out[f * C + i] = i < count ? x[i * stride + f] : T(1);
}

// And back: rows[i·stride + f] = lanes[f·C + i].
template <class T>
inline void to_rows(const T* lanes, int64_t C, int64_t count, int64_t d, T* rows, int64_t stride) {
    int64_t i = 0;
    const int64_t whole = d / LANES<T> * LANES<T>;
    for (; i + LANES<T> <= count; i += LANES<T>) {
        for (int64_t f = 0; f < whole; f += LANES<T>) {
            Vec<T> v[LANES<T>];
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) v[a] = load(lanes + (f + a) * C + i);
            transpose<T>(v);
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) store(rows + (i + a) * stride + f, v[a]);
        }
        for (int64_t f = whole; f < d; ++f)
            for (int a = 0; a < LANES<T>; ++a) rows[(i + a) * stride + f] = lanes[f * C + i + a];
    }
    for (; i < count; ++i)
        for (int64_t f = 0; f < d; ++f) rows[i * stride + f] = lanes[f * C + i];
}

// out(rows × columns) = A·B, tokens in lanes.
template <class T>
inline void product(const T* a, int64_t row_step, int64_t step, const T* b, int64_t C, int64_t count,
                    int64_t rows, int64_t columns, T* out) {
    by_rows(rows, [&](auto r, int64_t i) {
        constexpr int R = decltype(r)::value;
        by_cols<T>(columns, [&](auto c, int64_t j) {
            constexpr int N = decltype(c)::value;
            Tile<T, R, N> tile;
            tile.clear();
            tile.add(a + i * row_step, row_step, step, b + j, C, count);
            tile.store(out + i * C + j, C);
        });
    });
}

}  // namespace KT_ISA
}  // namespace kt
