// Vectors of one register, over GCC and Clang's vector extensions: the same source for every
// instruction set. KT_VECTOR_BYTES and KT_ISA are given by the build, once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef KT_VECTOR_BYTES
#define KT_VECTOR_BYTES 16
#endif

#define KT_INLINE inline __attribute__((always_inline))

namespace kt {
namespace KT_ISA {

template <class T> struct Lane;
template <> struct Lane<float> {
    typedef float vec __attribute__((vector_size(KT_VECTOR_BYTES)));
    typedef int32_t ints __attribute__((vector_size(KT_VECTOR_BYTES)));
    typedef uint32_t words __attribute__((vector_size(KT_VECTOR_BYTES)));
};
template <> struct Lane<double> {
    typedef double vec __attribute__((vector_size(KT_VECTOR_BYTES)));
    typedef int64_t ints __attribute__((vector_size(KT_VECTOR_BYTES)));
    typedef uint64_t words __attribute__((vector_size(KT_VECTOR_BYTES)));
};

template <class T> using Vec = typename Lane<T>::vec;
template <class T> using Ints = typename Lane<T>::ints;
template <class T> using Words = typename Lane<T>::words;  // where a sum may wrap around
template <class T> constexpr int LANES = KT_VECTOR_BYTES / sizeof(T);

template <class T> KT_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

template <class T> KT_INLINE void store(T* p, Vec<T> v) { __builtin_memcpy(p, &v, sizeof v); }

template <class T> KT_INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }

template <class T> KT_INLINE Ints<T> bits(Vec<T> v) {
    Ints<T> i;
    __builtin_memcpy(&i, &v, sizeof i);
    return i;
}

template <class T> KT_INLINE Vec<T> from_bits(Ints<T> i) {
    Vec<T> v;
    __builtin_memcpy(&v, &i, sizeof v);
    return v;
}

// v where `keep` has all its bits, else +0.
template <class T> KT_INLINE Vec<T> masked(Vec<T> v, Ints<T> keep) {
#if KT_VECTOR_BYTES == 16 && defined(__SSE2__)
    // GCC 12 fails here: it makes a selection of &, which has no instruction in SSE2.
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm_and_pd((__m128d)v, (__m128d)keep);
#endif
    return from_bits<T>(bits<T>(v) & keep);
}

// 0, 1, 2, …
template <class T> KT_INLINE Vec<T> lane_numbers() {
    Vec<T> lane;
    for (int l = 0; l < LANES<T>; ++l) lane[l] = T(l);
    return lane;
}

// The smaller and the larger of two; b where a is NaN, as the machine's instructions have it.
KT_INLINE Vec<float> least(Vec<float> a, Vec<float> b) {
#if KT_VECTOR_BYTES == 32
    return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
#elif KT_VECTOR_BYTES == 16 && defined(__SSE2__)
    return (Vec<float>)_mm_min_ps((__m128)a, (__m128)b);
#else
    return a < b ? a : b;
#endif
}

KT_INLINE Vec<float> most(Vec<float> a, Vec<float> b) {
#if KT_VECTOR_BYTES == 32
    return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
#elif KT_VECTOR_BYTES == 16 && defined(__SSE2__)
    return (Vec<float>)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}

KT_INLINE Vec<double> least(Vec<double> a, Vec<double> b) { return a < b ? a : b; }
KT_INLINE Vec<double> most(Vec<double> a, Vec<double> b) { return a > b ? a : b; }

template <class T> KT_INLINE T sum(Vec<T> v) {
    // Halves are added to halves: the same order whatever the caller does.
    T lane[LANES<T>];
    __builtin_memcpy(lane, &v, sizeof v);
    for (int half = LANES<T> / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
}

template <class T> KT_INLINE T largest(Vec<T> v) {
    T lane[LANES<T>];
    __builtin_memcpy(lane, &v, sizeof v);
    T top = lane[0];
    for (int i = 1; i < LANES<T>; ++i) top = lane[i] > top ? lane[i] : top;
    return top;
}

// Rows a and a+half exchange their off-diagonal blocks: one step of a transposition.
template <class T, int half, std::size_t... L>
KT_INLINE Vec<T> upper(Vec<T> a, Vec<T> b, std::index_sequence<L...>) {
    return __builtin_shufflevector(a, b, ((L & half) == 0 ? int(L) : LANES<T> + int(L) - half)...);
}

template <class T, int half, std::size_t... L>
KT_INLINE Vec<T> lower(Vec<T> a, Vec<T> b, std::index_sequence<L...>) {
    return __builtin_shufflevector(a, b, ((L & half) == 0 ? int(L) + half : LANES<T> + int(L))...);
}

template <class T, int half> KT_INLINE void transpose_step(Vec<T>* row) {
    if constexpr (half > 0) {
        using Seq = std::make_index_sequence<LANES<T>>;
#pragma GCC unroll 16
        for (int i = 0; i < LANES<T>; ++i) {
            if (i & half) continue;
            Vec<T> a = row[i], b = row[i + half];
            row[i] = upper<T, half>(a, b, Seq{});
            row[i + half] = lower<T, half>(a, b, Seq{});
        }
        transpose_step<T, half / 2>(row);
    }
}

template <class T> KT_INLINE void transpose(Vec<T>* row) { transpose_step<T, LANES<T> / 2>(row); }

// sum<T> of every one of LANES rows, in lanes; the rows are lost.
template <class T> KT_INLINE Vec<T> sums_of(Vec<T>* row) {
    transpose<T>(row);
#pragma GCC unroll 4
    for (int half = LANES<T> / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) row[i] += row[i + half];
    return row[0];
}

// And the largest of every row.
template <class T> KT_INLINE Vec<T> largest_of(Vec<T>* row) {
    transpose<T>(row);
#pragma GCC unroll 4
    for (int half = LANES<T> / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) row[i] = most(row[i], row[i + half]);
    return row[0];
}

// eˣ by x = n·ln 2 + r, |r| ≤ ln 2 / 2, and a polynomial in r (of least relative error, 3e-9,
// for float, Taylor's for double). `tame` says that no result is subnormal or infinite, which saves the second scaling.
template <bool tame = false> KT_INLINE Vec<float> exp(Vec<float> x) {
    if constexpr (!tame) x = least(most(x, splat(-104.0f)), splat(88.8f));
    const Vec<float> magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to whole numbers
    Vec<float> shifted = x * 1.44269504088896341f + magic;
    Vec<float> n = shifted - magic;
    Vec<float> r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Vec<float> p = r * 1.3814467238262296e-3f + 8.368780836462975e-3f;
    p = p * r + 4.166839271783829e-2f;
    p = p * r + 1.666651964187622e-1f;
    p = p * r + 4.999999403953552e-1f;
    p = p * (r * r) + r + 1.0f;
    Ints<float> e = bits<float>(shifted);  // the low bits hold n
    if constexpr (tame)
        return from_bits<float>((Ints<float>)((Words<float>)bits<float>(p) + ((Words<float>)e << 23)));
    Ints<float> whole = e - 0x4B400000;
    Ints<float> first = whole >> 1;
    p = p * from_bits<float>((first + 127) << 23);
    return p * from_bits<float>((whole - first + 127) << 23);
}

template <bool tame = false> KT_INLINE Vec<double> exp(Vec<double> x) {
    if constexpr (!tame) x = least(most(x, splat(-746.0)), splat(710.0));
    const Vec<double> magic = splat(6755399441055744.0);  // 1.5 · 2⁵²
    Vec<double> shifted = x * 1.4426950408889634074 + magic;
    Vec<double> n = shifted - magic;
    Vec<double> r = x - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    Vec<double> p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    Ints<double> e = bits<double>(shifted);
    if constexpr (tame)
        return from_bits<double>((Ints<double>)((Words<double>)bits<double>(p) + ((Words<double>)e << 52)));
    Ints<double> whole = e - 0x4338000000000000;
    Ints<double> first = whole >> 1;
    p = p * from_bits<double>((first + 1023) << 52);
    return p * from_bits<double>((whole - first + 1023) << 52);
}

}  // namespace KT_ISA
}  // namespace kt
