// The one matrix product everything is made of: a tile of `rows` × (`vecs` registers), held in
// registers while K products are added in order. Every element is the same chain of additions
// whatever the tile, so results do not depend on how the work is cut.
#pragma once

#include "vec.h"

namespace kt {
namespace KT_ISA {

constexpr int TILE_ROWS = 6;  // 6 × 2 accumulators, 2 vectors of B, 1 broadcast: 15 of 16 registers
constexpr int TILE_VECS = 2;

template <class T, int rows, int vecs> struct Tile {
    Vec<T> acc[rows][vecs];

    // f(row, register) for all of them, unrolled: a tile that is indexed at run time leaves its registers.
    template <class F> static KT_INLINE void each(F&& f) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) f(i, j);
    }

    // acc = f(acc), by row and first column of the register.
    template <class F> KT_INLINE void change(F&& f) {
        each([&](int i, int j) __attribute__((always_inline)) { acc[i][j] = f(acc[i][j], i, j * LANES<T>); });
    }

    KT_INLINE void clear() {
        each([&](int i, int j) __attribute__((always_inline)) { acc[i][j] = Vec<T>{}; });
    }

    // From and to memory: row i is at i·stride.
    KT_INLINE void load(const T* from, int64_t stride) {
        each([&](int i, int j) __attribute__((always_inline)) {
            acc[i][j] = KT_ISA::load(from + i * stride + j * LANES<T>);
        });
    }

    KT_INLINE void store(T* to, int64_t stride) const {
        each([&](int i, int j) __attribute__((always_inline)) {
            KT_ISA::store(to + i * stride + j * LANES<T>, acc[i][j]);
        });
    }

    KT_INLINE void scale(T factor) {
        if (factor == T(1)) return;
        each([&](int i, int j) __attribute__((always_inline)) { acc[i][j] *= factor; });
    }

    // Of a matrix whose element (row, column) is the tile's first: 0 where the column is beyond the row,
    // whatever stood there …
    KT_INLINE void keep_lower(int64_t row, int64_t column) {
        if (column + vecs * LANES<T> <= row + 1) return;
        const Vec<T> ahead = lane_numbers<T>() + T(column - row);  // of the first row's diagonal
        change([&](Vec<T> x, int i, int j) __attribute__((always_inline)) {
            return masked<T>(x, ahead <= splat(T(i - j)));
        });
    }

    // … and where it is before the row.
    KT_INLINE void keep_upper(int64_t row, int64_t column) {
        if (column >= row + rows - 1) return;
        const Vec<T> ahead = lane_numbers<T>() + T(column - row);
        change([&](Vec<T> x, int i, int j) __attribute__((always_inline)) {
            return masked<T>(x, ahead >= splat(T(i - j)));
        });
    }

    // acc += A·B, A(i, k) = a[i·row_step + k·step], B(k, ·) = b[k·b_step + ·]
    KT_INLINE void add(const T* __restrict a, int64_t row_step, int64_t step,
                       const T* __restrict b, int64_t b_step, int64_t count) {
        Vec<T> c[rows][vecs];
        each([&](int i, int j) __attribute__((always_inline)) { c[i][j] = acc[i][j]; });
        auto once = [&]() __attribute__((always_inline)) {
            Vec<T> bv[vecs];
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) bv[j] = KT_ISA::load(b + j * LANES<T>);
#pragma GCC unroll 8
            for (int i = 0; i < rows; ++i) {
                Vec<T> av = splat(a[i * row_step]);
#pragma GCC unroll 4
                for (int j = 0; j < vecs; ++j) c[i][j] += av * bv[j];
            }
            a += step;
            b += b_step;
        };
        if constexpr (KT_VECTOR_BYTES > 16 && rows == TILE_ROWS) {
#pragma GCC unroll 4
            for (int64_t k = 0; k < count; ++k) once();
        } else {  // the others are rare: small code instead
#pragma GCC unroll 1
            for (int64_t k = 0; k < count; ++k) once();
        }
        each([&](int i, int j) __attribute__((always_inline)) { acc[i][j] = c[i][j]; });
    }
};

// f(rows of a tile, first row) for tiles that cover `rows`: of 6 rows, then of 4 and 1.
template <class F> KT_INLINE void by_rows(int64_t rows, F&& f) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= rows; i += TILE_ROWS) f(std::integral_constant<int, TILE_ROWS>{}, i);
    if (rows - i >= 4) f(std::integral_constant<int, 4>{}, std::exchange(i, i + 4));
    for (; i < rows; ++i) f(std::integral_constant<int, 1>{}, i);
}

// Columns come in whole tiles: more kinds of tiles would be more code than a wheel has room for.
template <class T> constexpr int TILE_COLUMNS = TILE_VECS * LANES<T>;

// f(registers of a tile, first column) for tiles that cover `cols`, a multiple of TILE_COLUMNS.
template <class T, class F> KT_INLINE void by_cols(int64_t cols, F&& f) {
    for (int64_t j = 0; j < cols; j += TILE_COLUMNS<T>) f(std::integral_constant<int, TILE_VECS>{}, j);
}

}  // namespace KT_ISA
}  // namespace kt
