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

// Four numbers of each channel side by side, and no gap between channels: four registers of them are
// turned with few instructions. Where a register holds less than four numbers there are none.
template <class T> constexpr bool QUADS = LANES<T> % 4 == 0;

// Of four registers the numbers whose places are multiples of 4, plus `first`.
template <class T, int first, std::size_t... L>
KT_INLINE Vec<T> every_fourth(const Vec<T>* v, std::index_sequence<L...>) {
    constexpr int HALF = LANES<T> / 2;
    const Vec<T> low = __builtin_shufflevector(v[0], v[1], (4 * (int(L) % HALF) + first)...);
    const Vec<T> high = __builtin_shufflevector(v[2], v[3], (4 * (int(L) % HALF) + first)...);
    return __builtin_shufflevector(low, high, (int(L) < HALF ? int(L) : LANES<T> + int(L))...);
}

// And back: one of the four registers, in which number t of channel c is rows[t][c].
template <class T, int number, std::size_t... L>
KT_INLINE Vec<T> side_by_side(const Vec<T>* rows, std::index_sequence<L...>) {
    constexpr int FIRST = number * LANES<T> / 4;  // channel
    const Vec<T> even =
        __builtin_shufflevector(rows[0], rows[2], (FIRST + int(L) / 4 + (int(L) % 4 == 2 ? LANES<T> : 0))...);
    const Vec<T> odd =
        __builtin_shufflevector(rows[1], rows[3], (FIRST + int(L) / 4 + (int(L) % 4 == 3 ? LANES<T> : 0))...);
    return __builtin_shufflevector(even, odd, (int(L) % 2 ? LANES<T> + int(L) : int(L))...);
}

// (channels, 4) to a tile of four tokens, for a whole number of registers.
template <class T> void read_quads(const T* from, int64_t channels, T* tile) {
    using Seq = std::make_index_sequence<LANES<T>>;
    for (int64_t c = 0; c < channels; c += LANES<T>) {
        Vec<T> v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) v[i] = load(from + 4 * c + i * LANES<T>);
        store(tile + c, every_fourth<T, 0>(v, Seq{}));
        store(tile + WIDTH + c, every_fourth<T, 1>(v, Seq{}));
        store(tile + 2 * WIDTH + c, every_fourth<T, 2>(v, Seq{}));
        store(tile + 3 * WIDTH + c, every_fourth<T, 3>(v, Seq{}));
    }
}

template <class T> void write_quads(const T* tile, int64_t channels, T* to) {
    using Seq = std::make_index_sequence<LANES<T>>;
    for (int64_t c = 0; c < channels; c += LANES<T>) {
        Vec<T> rows[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) rows[i] = load(tile + i * WIDTH + c);
        store(to + 4 * c, side_by_side<T, 0>(rows, Seq{}));
        store(to + 4 * c + LANES<T>, side_by_side<T, 1>(rows, Seq{}));
        store(to + 4 * c + 2 * LANES<T>, side_by_side<T, 2>(rows, Seq{}));
        store(to + 4 * c + 3 * LANES<T>, side_by_side<T, 3>(rows, Seq{}));
    }
}

// Whether a part of a turned view has that form.
template <class T> bool has_quads(const View& part, int64_t count, int64_t channels) {
    return QUADS<T> && count == 4 && part.token == 4 * int64_t(sizeof(T)) && channels % LANES<T> == 0;
}

// Tokens t … t + count − 1 of `channels` channels from `channel` on. Lanes beyond them are 0.
// `scratch` has room for WIDTH · TILE_TOKENS numbers.
template <class T>
void read_tile(const View& view, Type type, int64_t row, int64_t t, int64_t count, int64_t channel,
               int64_t channels, T* tile, T* scratch) {
    const int64_t whole = round_up(channels, LANES<T>);
    const View part = from_element(turned(view), t);
    const bool turn = !elements_are_nearer(view, count);
    if (turn && channels == whole && direct<T>(part, type, row, count)) {
        const T* from = reinterpret_cast<const T*>(part.at(row, channel));
        if constexpr (QUADS<T>)
            if (has_quads<T>(part, count, channels)) return read_quads<T>(from, channels, tile);
        to_lanes<T>(from, part.token / int64_t(sizeof(T)), whole, whole, count, tile, WIDTH);
        return;
    }
    if (!turn || count < LANES<T>) {
        const View tokens = from_element(view, channel);
        for (int64_t i = 0; i < count; ++i) {
            T* to = tile + i * WIDTH;
            read_token<T>(tokens, type, row, t + i, channels, T(1), to);
            std::fill(to + channels, to + whole, T(0));
        }
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
    const View part = from_element(turned(view), t);
    const bool turn = !elements_are_nearer(view, count);
    if (turn && direct<T>(part, type, row, count)) {
        T* to = reinterpret_cast<T*>(part.at(row, channel));
        if constexpr (QUADS<T>)
            if (has_quads<T>(part, count, channels)) return write_quads<T>(tile, channels, to);
        to_rows<T>(tile, WIDTH, channels, count, to, part.token / int64_t(sizeof(T)));
        return;
    }
    if (!turn || count < LANES<T>) {
        const View tokens = from_element(view, channel);
        for (int64_t i = 0; i < count; ++i)
            write_token<T>(tokens, type, row, t + i, channels, tile + i * WIDTH);
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
