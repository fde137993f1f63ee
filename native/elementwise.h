// Maps that act on each coordinate alone, and φ of whole blocks by them.
#pragma once

#include "tokens.h"

namespace kt {
namespace KT_ISA {

template <class T> constexpr T TAME = sizeof(T) == 4 ? T(-87) : T(-708);

template <class T, bool tame> struct EluMap {
    static KT_INLINE Vec<T> phi(Vec<T> x) {
        return exp<tame>(least(x, Vec<T>{})) + most(x, Vec<T>{});
    }
};
template <class T> struct ReluMap {
    static KT_INLINE Vec<T> phi(Vec<T> x) { return most(x, Vec<T>{}); }
};
template <class T> struct Relu2Map {
    static KT_INLINE Vec<T> phi(Vec<T> x) {
        Vec<T> y = most(x, Vec<T>{});
        return y * y;
    }
};
template <class T> struct SquareMap {
    static KT_INLINE Vec<T> phi(Vec<T> x) { return x * x; }
};
template <class T> struct IdentityMap {
    static KT_INLINE Vec<T> phi(Vec<T> x) { return x; }
};

// Whether φ acts on each coordinate alone, without a log-scale: such queries need no transposition.
inline bool elementwise(Map map) {
    return map == Map::given || map == Map::elu || map == Map::relu || map == Map::relu2 ||
           map == Map::square;
}

// Of these, the ones whose slope is not to be had from φ alone.
inline bool slope_needs_x(Map map) { return map == Map::relu2 || map == Map::square; }

template <class T> KT_INLINE bool within(Vec<T> check, Vec<T> low) {
    T lane[LANES<T>];
    store(lane, low);
    bool tame = sum<T>(check) == T(0);
    for (int i = 0; i < LANES<T>; ++i) tame = tame && lane[i] > TAME<T>;
    return tame;
}

// φ by rows: out[i·d + f]; d a multiple of the lanes. Returns false if an x is not finite or eˣ
// would not be normal: then the result is not to be used.
template <class T, class F>
inline bool map_rows(const T* x, int64_t stride, int64_t count, int64_t d, T* out) {
    Vec<T> check{}, low{};
    for (int64_t i = 0; i < count; ++i)
        for (int64_t f = 0; f < d; f += LANES<T>) {
            Vec<T> v = load(x + i * stride + f);
            check += v * T(0);
            low = least(low, v);
            store(out + i * d + f, F::phi(v));
        }
    return within<T>(check, low);
}

// φ by columns: out[f·C + i], for blocks of LANES × LANES; count and d multiples of the lanes.
template <class T, class F>
inline bool map_columns(const T* x, int64_t stride, int64_t count, int64_t d, T* out, int64_t C) {
    Vec<T> check{}, low{};
    for (int64_t i = 0; i < count; i += LANES<T>)
        for (int64_t f = 0; f < d; f += LANES<T>) {
            Vec<T> v[LANES<T>];
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) {
                v[a] = load(x + (i + a) * stride + f);
                check += v[a] * T(0);
                low = least(low, v[a]);
                v[a] = F::phi(v[a]);
            }
            transpose<T>(v);
#pragma GCC unroll 16
            for (int a = 0; a < LANES<T>; ++a) store(out + (f + a) * C + i, v[a]);
        }
    return within<T>(check, low);
}

}  // namespace KT_ISA
}  // namespace kt
