// The gradient of a chunk's log-decays. That of token t is in the factor e^{b_i − b_j} of every pair of
// tokens j < t ≤ i, where the state before the chunk stands for an earlier token, and the one after it
// for a later token. Its gradient is the sum of what these pairs add to the gradient of b_i − b_j. To
// sum the gradients of b_i for i ≥ t would be shorter, but pairs on one side of t then cancel only to
// rounding, and where decays are strong they are by far the largest.
#pragma once

#include "delta_chunk.h"

namespace kt {
namespace KT_ISA {

// Decays of tokens: every pair is one number.
template <class T> class DeltaTokenSlope {
  public:
    DeltaTokenSlope(const DeltaSizes<T>& s, const DeltaChunk<T>& chunk, Arena& arena)
        : s(s), chunk(chunk), pairs(arena.take<T>(s.rows * s.Cp)), first(arena.take<T>(s.rows * LANES<T>)),
          last(arena.take<T>(s.rows * LANES<T>)), out(arena.take<T>(s.rows)), open(arena.take<T>(s.Cp)) {}

    const DeltaSizes<T>& s;
    const DeltaChunk<T>& chunk;
    T* pairs;           // of tokens i > j
    T *first, *last;    // of a token and the state before, and of the state after and a token, in lanes
    T* out;

    void clear() {
        std::fill(pairs, pairs + s.rows * s.Cp, T(0));
        for (T* lanes : {first, last}) std::fill(lanes, lanes + s.rows * LANES<T>, T(0));
    }

    // Adds row i of gradients by features, `d` times x, to one of the two.
    static KT_INLINE void add(T* lanes, int64_t i, Vec<T> d, const T* x) {
        store(lanes + i * LANES<T>, load(lanes + i * LANES<T>) + d * load(x));
    }

    // `through` is the pair of the two states.
    void finish(double through) {
        const int64_t n = chunk.count();
        std::fill(open, open + s.Cp, T(0));  // of token j, with all from t on
        for (int64_t j = 0; j < n; ++j) open[j] = sum<T>(load(last + j * LANES<T>));
        for (int64_t t = n - 1; t >= 0; --t) {
            through += double(sum<T>(load(first + t * LANES<T>)));
            Vec<T> all{};
            for (int64_t j = 0; j < t; j += LANES<T>) {
                const Vec<T> y = load(open + j) + load(pairs + t * s.Cp + j);
                store(open + j, y);
                all += masked<T>(y, lane_numbers<T>() < splat(T(t - j)));
            }
            out[t] = T(through + double(sum<T>(all)));
        }
    }

  private:
    T* open;
};

// Decays of features: every pair is a number for each of them. In a block, a few tokens of one span, the
// pairs are summed one by one; those of different blocks at once for all tokens of a block.
template <class T> class DeltaFeatureSlope {
  public:
    template <int R> using Rows = Tile<T, R, TILE_VECS>;
    struct Block {
        int64_t begin, end, span;
        int64_t count() const { return end - begin; }
    };

    DeltaFeatureSlope(const DeltaSizes<T>& s, const DeltaChunk<T>& chunk, Arena& arena)
        : s(s), chunk(chunk), out(arena.take<T>(s.rows * s.ds)), first(arena.take<T>(CHUNK * s.ds)),
          over(arena.take<T>(CHUNK * s.ds)), pairs(arena.take<T>(CHUNK * s.W)) {}

    const DeltaSizes<T>& s;
    const DeltaChunk<T>& chunk;
    std::vector<Block> blocks;
    T* out;

    // The blocks of the chunk that is formed.
    void clear() {
        blocks.clear();
        for (std::size_t k = 0; k < chunk.spans.size(); ++k) {
            const auto [a, z] = chunk.spans[k];
            const int64_t begin = a, end = z;
            even_rows(even(end - begin), [&](auto r, int64_t i) {
                const int64_t from = begin + i;
                if (from < end) blocks.push_back({from, std::min(from + decltype(r)::value, end), int64_t(k)});
            });
        }
        std::fill(out, out + chunk.count() * s.ds, T(0));
        for (T* y : {first, over}) std::fill(y, y + int64_t(blocks.size()) * s.ds, T(0));
    }

    // f(rows of a tile, number of the block) for blocks from … to.
    template <class F> KT_INLINE void each(std::size_t from, std::size_t to, F&& f) const {
        for (std::size_t m = from; m < to; ++m)
            if (blocks[m].count() > 4) f(std::integral_constant<int, 6>{}, m);
            else f(std::integral_constant<int, 4>{}, m);
    }

    // Features j … of block m, with y e^{b_a} the gradient of its tokens by the state before the chunk.
    template <int R> KT_INLINE void by_state(const Rows<R>& y, const T* near, std::size_t m, int64_t j) {
        Vec<T> all[TILE_VECS] = {};
        each_row<R>(m, [&](int b, int v) __attribute__((always_inline)) {
            all[v] += y.acc[b][v] * load(near + (blocks[m].begin + b) * s.ds + j + v * LANES<T>);
        });
        add(first + int64_t(m) * s.ds + j, all);
    }

    // The same by all that is before the block: for each of its tokens the sum over those from it on.
    template <int R> KT_INLINE void by_past(const Rows<R>& y, const T* near, std::size_t m, int64_t j) {
        const int64_t i = blocks[m].begin, n = blocks[m].count();
        Vec<T> all[TILE_VECS] = {};
#pragma GCC unroll 6
        for (int b = R - 1; b >= 0; --b) {
            if (b >= n) continue;
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECS; ++v) {
                const int64_t at = (i + b) * s.ds + j + v * LANES<T>;
                all[v] += y.acc[b][v] * load(near + at);
                store(out + at, load(out + at) + all[v]);
            }
        }
    }

    // y is the gradient of block m's x = x_s e^{b_a − b_s} by tokens of a later block, or by the state after
    // the chunk: number 0 counted from the end.
    template <int R> KT_INLINE void by_later(const Rows<R>& y, const T* x, std::size_t m, std::size_t number, int64_t j) {
        Vec<T> all[TILE_VECS] = {};
        each_row<R>(m, [&](int b, int v) __attribute__((always_inline)) { all[v] += y.acc[b][v] * key(x, m, b, j, v); });
        for (int v = 0; v < TILE_VECS; ++v) store(pairs + int64_t(number) * s.W + v * LANES<T>, all[v]);
    }

    // y is the gradient by all that is later: for each token of the block the sum over those before it.
    // What was given to `by_later` is in the factor of all blocks between.
    template <int R> KT_INLINE void by_future(const Rows<R>& y, const T* x, std::size_t m, int64_t j) {
        const int64_t i = blocks[m].begin;
        Vec<T> all[TILE_VECS] = {};
        each_row<R>(m, [&](int b, int v) __attribute__((always_inline)) {
            T* to = out + (i + b) * s.ds + j + v * LANES<T>;
            store(to, load(to) + all[v]);
            all[v] += y.acc[b][v] * key(x, m, b, j, v);
        });
        for (Vec<T>& y : all) y = Vec<T>{};
        for (std::size_t between = blocks.size() - 1, number = 0; between > m; --between, ++number) {
            for (int v = 0; v < TILE_VECS; ++v) all[v] += load(pairs + int64_t(number) * s.W + v * LANES<T>);
            add(over + int64_t(between) * s.ds + j, all);
        }
    }

    // Pairs of tokens of block m. by_e and by_q are the gradients of their products.
    void inside(const T* x, const T* by_e, const T* by_q, std::size_t m, int64_t j) {
        const auto [begin, end, span] = blocks[m];
        for (int64_t a = begin; a < end; ++a)
            for (int v = 0; v < TILE_VECS; ++v) {
                const Vec<T> one = key(x, m, int(a - begin), j, v);
                Vec<T> all{};
                for (int64_t i = end - 1; i > a; --i) {
                    const int64_t at = i * s.ds + j + v * LANES<T>, of = i * s.Cp + a;
                    all += (by_e[of] * load(chunk.near_e + at) + by_q[of] * load(chunk.near_q + at)) * one;
                    store(out + at, load(out + at) + all);
                }
            }
    }

    // `through` is the pair of the two states, for each feature.
    void finish(const T* through) {
        for (int64_t f = 0; f < s.dp; f += LANES<T>) {
            Vec<T> all = load(through + f);
            for (std::size_t m = blocks.size(); m-- > 0;) {
                const Vec<T> here = all + load(over + int64_t(m) * s.ds + f);
                for (int64_t t = blocks[m].begin; t < blocks[m].end; ++t)
                    store(out + t * s.ds + f, load(out + t * s.ds + f) + here);
                all += load(first + int64_t(m) * s.ds + f);
            }
        }
    }

  private:
    // f(row, register) for the tokens of block m, in order.
    template <int R, class F> KT_INLINE void each_row(std::size_t m, F&& f) const {
        const int64_t n = blocks[m].count();
#pragma GCC unroll 6
        for (int b = 0; b < R; ++b) {
            if (b >= n) continue;
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECS; ++v) f(b, v);
        }
    }

    // Register v from feature j on, of token b of block m.
    KT_INLINE Vec<T> key(const T* x, std::size_t m, int b, int64_t j, int v) const {
        return load(x + (blocks[m].begin + b) * s.ds + j + v * LANES<T>);
    }

    KT_INLINE static void add(T* to, const Vec<T>* y) {
        for (int v = 0; v < TILE_VECS; ++v) store(to + v * LANES<T>, load(to + v * LANES<T>) + y[v]);
    }

    T *first;  // of a block and the state before the chunk
    T *over;   // of an earlier and a later block, for those between
    T *pairs;
};

}  // namespace KT_ISA
}  // namespace kt
