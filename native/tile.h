// Tiles: some tokens of some channels, tile[t · WIDTH + c], whatever the strides they are read with.
#pragma once

#include "lanes.h"

namespace kt {
namespace KT_ISA {

constexpr int64_t WIDTH = 64;       // channels of a tile
constexpr int64_t TILE_TOKENS = 64; // tokens of a tile, at most

// The same numbers with tokens and elements exchanged.
inline View turned(const View& view) { return {view.data, view.offset, view.element, view.token}; }

// The same tokens from an element on.
inline View from_element(const View& view, int64_t element) {
    return {view.data + element * view.element, view.offset, view.token, view.element};
}

inline bool elements_are_nearer(const View& view, int64_t tokens) {
    return tokens == 1 || std::abs(view.element) <= std::abs(view.token);
}

// Tokens t … t + count − 1 of `channels` channels from `channel` on. Lanes beyond them are 0.
// `scratch` has room for WIDTH · TILE_TOKENS numbers.
template <class T>
void read_tile(const View& view, Type type, int64_t row, int64_t t, int64_t count, int64_t channel,
               int64_t channels, T* tile, T* scratch) {
    const int64_t whole = round_up(channels, LANES<T>);
    if (elements_are_nearer(view, count)) {
        const View part = from_element(view, channel);
        for (int64_t i = 0; i < count; ++i) {
            T* to = tile + i * WIDTH;
            read_token<T>(part, type, row, t + i, channels, T(1), to);
            std::fill(to + channels, to + whole, T(0));
        }
        return;
    }
    const View part = from_element(turned(view), t);
    if (channels == whole && direct<T>(part, type, row, count)) {
        const T* from = reinterpret_cast<const T*>(part.at(row, channel));
        to_lanes<T>(from, part.token / int64_t(sizeof(T)), whole, whole, count, tile, WIDTH);
        return;
    }
    for (int64_t c = 0; c < channels; ++c)
        read_token<T>(part, type, row, channel + c, count, T(1), scratch + c * TILE_TOKENS);
    for (int64_t c = channels; c < whole; ++c)
        std::fill(scratch + c * TILE_TOKENS, scratch + c * TILE_TOKENS + count, T(0));
    to_lanes<T>(scratch, TILE_TOKENS, whole, whole, count, tile, WIDTH);
}

template <class T>
void write_tile(const View& view, Type type, int64_t row, int64_t t, int64_t count, int64_t channel,
                int64_t channels, const T* tile, T* scratch) {
    if (elements_are_nearer(view, count)) {
        const View part = from_element(view, channel);
        for (int64_t i = 0; i < count; ++i)
            write_token<T>(part, type, row, t + i, channels, tile + i * WIDTH);
        return;
    }
    const View part = from_element(turned(view), t);
    if (direct<T>(part, type, row, count)) {
        T* to = reinterpret_cast<T*>(part.at(row, channel));
        to_rows<T>(tile, WIDTH, channels, count, to, part.token / int64_t(sizeof(T)));
        return;
    }
    to_rows<T>(tile, WIDTH, round_up(channels, LANES<T>), count, scratch, TILE_TOKENS);
    for (int64_t c = 0; c < channels; ++c)
        write_token<T>(part, type, row, channel + c, count, scratch + c * TILE_TOKENS);
}

// f(block of lanes) for as many registers as `channels` fill.
template <class T, class F> KT_INLINE void by_lanes(int64_t channels, F&& f) {
    for (int64_t c = 0; c < channels; c += LANES<T>) f(c);
}

template <class T> KT_INLINE Vec<T> sigmoid(Vec<T> x) { return T(1) / (T(1) + exp(-x)); }

// x·σ(x); the numerator keeps a NaN, which exp does not.
template <class T> KT_INLINE Vec<T> silu(Vec<T> x) { return x / (T(1) + exp(-x)); }

// σ(x)·(1 + x·(1 − σ(x)))
template <class T> KT_INLINE Vec<T> silu_slope(Vec<T> x) {
    const Vec<T> s = sigmoid<T>(x);
    return s * (T(1) + x * (T(1) - s));
}

}  // namespace KT_ISA
}  // namespace kt
