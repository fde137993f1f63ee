// What decays and log-scales do to a block. Within it they are factored:
//
//     weight of key j in row i  =  φ(qᵢ)·φ(kⱼ) · e^{bᵢ} · e^{sⱼ − ref − bⱼ}
//
// with bⱼ the decay since the block's first token, sⱼ the log-scale of key j and ref that of the
// first key. Nothing of this depends on later tokens.
//
// The second factor grows with the decays, and values would overflow beside it. So before any value is
// multiplied, the weights of a row are divided by the largest such factor of its keys (`lower`), and keys that
// are added to the state are multiplied by what the block counts there (`on_keys`). And it grows out of range
// with strong decays, which would end a block after a few tokens. Where
// outputs are not divided by a normaliser that is as small as they are, decays of tokens come as one factor
// e^{bᵢ − bⱼ} ≤ 1 of each pair instead (Sizes::by_pair), and blocks keep their length.
#pragma once

#include "sizes.h"

namespace kt {
namespace KT_ISA {

// eˣ of float64 exponents: what float32 loses of the exponent is a factor 1 + (the rest).
template <class T> KT_INLINE Vec<T> exp_wide(const double* x) {
    T hi[LANES<T>], lo[LANES<T>];
    for (int l = 0; l < LANES<T>; ++l) {
        hi[l] = T(x[l]);
        lo[l] = T(x[l] - double(hi[l]));
    }
    Vec<T> y = exp<false>(load(hi));
    return sizeof(T) == 8 ? y : y + y * load(lo);
}

// eˣ of exponents that are not positive; a subnormal result is 0.
template <class T> KT_INLINE Vec<T> exp_down(const double* x) {
    T hi[LANES<T>];
    for (int l = 0; l < LANES<T>; ++l) hi[l] = T(x[l]);
    const Vec<T> y = load(hi), floor = splat(T(-FAINT<T>));
    const Vec<T> z = masked<T>(exp<true>(most(y, floor)), y > floor);
    return y == y ? z : y;
}

template <class T> class Scaling {
  public:
    Scaling(const Sizes<T>& s, Arena& arena)
        : s(s), p(s.p), factored((s.has_scale || s.decays) && !s.by_pair), factor(arena.take<T>(s.Cp)),
          enter(arena.take<double>(s.w)), keep_state(arena.take<double>(s.w)), add_block(arena.take<double>(s.w)),
          add_sums(arena.take<double>(s.w)), on_keys(arena.take<T>(s.w)), since(arena.take<T>(s.Cp)),
          shift(arena.take<double>(s.Cp)), b(arena.take<double>(s.Cp * s.w)), exponent(arena.take<double>(s.Cp)),
          rise(arena.take<double>(s.Cp)), own(arena.take<T>(s.Cp)) {
        for (double* one : {shift, rise}) std::fill(one, one + s.Cp, 0.0);
        for (T* one : {since, own}) std::fill(one, one + s.Cp, T(1));
        if (!s.by_pair) return;
        for (T** one : {&pair, &turned}) *one = arena.take<T>(s.in_lanes(s.Cp));
    }

    // How far the block from token t reaches: to the next multiple of its length, counted from the
    // beginning of the text; with decays and restarts, which end blocks anywhere, as far as it may, or
    // every block that ends early would be followed by a short one.
    int64_t extent(int64_t row, int64_t t) {
        if (!p.causal || !(s.decays || p.restart.data))
            return std::min(p.keys - t, s.C - (p.start + t) % s.C);
        const int64_t end = std::min(p.keys, t + s.C);
        for (int64_t f = 0; f < s.w; ++f) b[f * s.Cp] = 0;
        for (int64_t j = 1; j < end - t; ++j) {
            if (restarts(row, t + j)) return j;
            for (int64_t f = 0; f < s.w && s.decays; ++f) {
                const double next = b[f * s.Cp + j - 1] + decay(row, t + j, f);
                if (!s.by_pair && -next > RANGE<T>) return j;
                b[f * s.Cp + j] = next;
            }
        }
        return end - t;
    }

    bool hidden_key(int64_t row, int64_t t) const { return p.mask.data && !*p.mask.at(row, t); }

    // The log-decay before token t, without restarts; a hidden token decays nothing.
    double decay(int64_t row, int64_t t, int64_t f) const {
        if (!s.decays || !p.log_decay.data || hidden_key(row, t)) return 0;
        return double(read<T>(p.log_decay.at(row, t) + f * p.log_decay.element, type_of<T>));
    }

    bool restarts(int64_t row, int64_t t) const {
        return p.restart.data && *p.restart.at(row, t);
    }

    // e^{bᵢ} of query i, as a logarithm.
    double decayed(int64_t i) const { return s.decays && !s.by_feature && !s.by_pair && p.causal ? b[i] : 0; }

    // The factors of n keys from token t on, which `extent` has looked at, of log-scales key_scale, after a
    // state of log-scale state_ref. Returns how many keys stay in the range of exponents.
    int64_t begin(int64_t row, int64_t t, int64_t n, double state_ref, const double* key_scale) {
        count = n;
        columns = s.tile_columns(n);
        ref = reference = new_ref = 0;
        state_share = block_share = 1;
        for (int64_t f = 0; f < s.w; ++f) enter[f] = keep_state[f] = add_block[f] = add_sums[f] = on_keys[f] = 1;
        if (!s.has_scale && !s.decays) return count;
        if (restarts(row, t)) state_ref = -INF;  // forgotten, whatever it was
        if (s.has_scale) cut(row, t, key_scale);
        through_state(row, t, state_ref, key_scale);
        if (ref == -INF) block_share = 0;
        for (int64_t f = 0; f < s.w; ++f) {
            if (ref == -INF) add_block[f] = 0;
            on_keys[f] = T(std::max(add_block[f], std::exp(-RANGE<T>)));
            add_sums[f] = add_block[f] / double(on_keys[f]);
        }
        state_share = s.by_feature ? 1 : enter[0];
        if (s.by_pair) {
            form_pairs(row, t);
            return count;
        }
        double highest = 0;
        for (int64_t j = 0; j < count; ++j) {
            const bool hidden = hidden_key(row, t + j);
            const double bj = s.decays && !s.by_feature ? b[j] : 0;
            const double lj = s.has_scale && ref > -INF && !hidden ? key_scale[j] - ref : 0;
            exponent[j] = lj - bj;
            if (!hidden) highest = std::max(highest, exponent[j] + ref - reference);
            rise[j] = highest;
        }
        for (int64_t j = count; j < columns; ++j) exponent[j] = 0;
        take_exponents();
        return count;
    }

    // No keys in this block: its queries see the state alone.
    void none(double state_ref) {
        state_share = block_share = 1;
        reference = s.has_scale && state_ref > -INF ? state_ref : 0;
        std::fill(rise, rise + s.Cp, 0.0);
    }

    // Brings the sums of query j down by e^{−shift}, as far as they would be larger than what comes of them:
    // that is e^{output} times as large, or if outputs are normalised (−INF) no larger than a value.
    double lower(int64_t j, double output) {
        return shift[j] = factored ? std::min(rise[j], std::max(-output, 0.0)) : 0;
    }

    // And then what they count, for n queries.
    void form_shares(int64_t n) {
        for (int64_t j = 0; j < s.Cp && factored; j += LANES<T>) {
            for (int64_t l = j; l < j + LANES<T>; ++l) exponent[l] = l < n ? -shift[l] : 0;
            const Vec<T> down = exp_wide<T>(exponent + j);
            store(own + j, down * T(block_share));
            store(since + j, down * T(state_share));
        }
    }

    // The factors of feature r, of the keys that `keep` is not 0 for, or of queries.
    void feature_of_keys(int64_t r, const T* keep, const double* key_scale) {
        for (int64_t j = 0; j < columns; ++j)
            exponent[j] = (s.has_scale && keep[j] != 0 ? key_scale[j] - ref : 0) - (j < count ? b[r * s.Cp + j] : 0);
        take_exponents();
    }
    void feature_of_queries(int64_t r) {
        for (int64_t j = 0; j < columns; ++j) exponent[j] = j < count ? b[r * s.Cp + j] : 0;
        take_exponents();
    }

    // What sums that the state gives to queries i … count, queries in lanes.
    KT_INLINE Vec<T> of_state(int64_t i) const { return factored ? load(since + i) : splat(T(state_share)); }

    // The same for a tile of queries in rows.
    template <int R, int N> KT_INLINE void by_state(Tile<T, R, N>& tile, int64_t i) const {
        if (s.by_pair || factored)
            tile.change([&](Vec<T> y, int a, int) __attribute__((always_inline)) {
                return since[i + a] == T(0) ? Vec<T>{} : y * since[i + a];  // forgotten, inf too
            });
        else
            tile.scale(T(state_share));
    }

    // What a tile of weights of queries i … and keys j … counts beside values.
    template <int R, int N> KT_INLINE void by_row(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        if (s.by_pair)
            times(tile, pair + i * s.Cp + j);
        else if (factored)
            tile.change([&](Vec<T> y, int a, int) __attribute__((always_inline)) { return y * own[i + a]; });
    }

    // The same for gradients, in which that of the outputs has e^{−shift}; keys in lanes, or queries.
    template <int R, int N> KT_INLINE void by_block(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        s.by_pair ? times(tile, pair + i * s.Cp + j) : tile.scale(T(block_share));
    }
    template <int R, int N> KT_INLINE void by_block_turned(Tile<T, R, N>& tile, int64_t j, int64_t i) const {
        s.by_pair ? times(tile, turned + j * s.Cp + i) : tile.scale(T(block_share));
    }

    // Prepares for by_block_turned.
    void turn() {
        for (int64_t j = 0; j < count && s.by_pair; ++j)
            for (int64_t i = 0; i < columns; ++i) turned[j * s.Cp + i] = i < count ? pair[i * s.Cp + j] : T(0);
    }

    const Sizes<T>& s;
    const Problem& p;
    const bool factored;    // decays and log-scales are factors of keys, not of pairs
    T* factor;              // e^{sⱼ − ref − bⱼ} of every key, or that of a feature
    double ref = 0;         // the log-scale of the block's first key
    double reference = 0;   // that of the sums which the block's rows see
    double new_ref = 0;     // that of the state after the block
    double state_share = 1, block_share = 1;  // what the state's and the block's sums count in a row
    // Of a decay, one or for every feature: what the state counts at the block's first token (where
    // by_feature, in place of state_share); and after the block, what it keeps and what the block adds.
    double *enter, *keep_state, *add_block;
    double* add_sums;  // add_block, but for what the keys are multiplied by,
    T* on_keys;        // which is as much of it as they have grown at most
    T* since;          // what the state counts at every token of the block
    double* shift;     // the logarithm of what the sums of each query are divided by

  private:
    template <int R, int N> KT_INLINE void times(Tile<T, R, N>& tile, const T* by) const {
        tile.change([&](Vec<T> y, int a, int c) __attribute__((always_inline)) { return y * load(by + a * s.Cp + c); });
    }

    // e^{bᵢ − bⱼ} of every pair of the block, and what the state and the keys count before and after it.
    void form_pairs(int64_t row, int64_t t) {
        auto take = [&](T* to) {
            for (int64_t j = 0; j < columns; j += LANES<T>) store(to + j, exp_down<T>(exponent + j));
        };
        const double before = state_share == 0 ? -INF : decay(row, t, 0);
        for (int64_t j = 0; j < columns; ++j) exponent[j] = j < count ? before + b[j] : 0;
        take(since);
        // Summed from each key on, never subtracted: beside a strong decay a sum of all loses the rest.
        std::fill(exponent, exponent + columns, 0.0);
        for (int64_t i = 0; i < count; ++i) {
            const double one = i > 0 ? decay(row, t + i, 0) : 0;
            for (int64_t j = 0; j < i; ++j) exponent[j] += one;
            take(pair + i * s.Cp);
        }
        take(factor);
    }

    // Cuts the block short where a log-scale would leave the range.
    void cut(int64_t row, int64_t t, const double* key_scale) {
        bool seen = false;
        for (int64_t j = 0; j < count; ++j) {
            if (hidden_key(row, t + j)) continue;
            if (!std::exchange(seen, true)) ref = key_scale[j];
            double least_b = 0;
            for (int64_t f = 0; f < p.decay_width; ++f) least_b = std::min(least_b, b[f * s.Cp + j]);
            if (key_scale[j] - ref - least_b > RANGE<T>) {
                count = j;
                columns = s.tile_columns(count);
                break;
            }
        }
        if (!seen) ref = -INF;
    }

    // What the state goes through: the decay before the first token, then that of the block.
    void through_state(int64_t row, int64_t t, double state_ref, const double* key_scale) {
        double slowest_in = -INF, slowest_all = -INF;
        const bool gone = restarts(row, t);
        for (int64_t f = 0; f < s.w; ++f) {
            enter[f] = gone ? -INF : s.decays ? decay(row, t, f) : 0;
            keep_state[f] = enter[f] + (s.decays ? b[f * s.Cp + count - 1] : 0);
            slowest_in = std::max(slowest_in, enter[f]);
            slowest_all = std::max(slowest_all, keep_state[f]);
        }
        double log_block = 0;
        if (s.has_scale) {
            const double from_state = state_ref + slowest_in;
            reference = std::max(from_state, ref);
            if (reference == -INF) reference = 0;
            block_share = std::exp(ref - reference);
            new_ref = state_ref + slowest_all;
            for (int64_t j = 0; j < count; ++j) {
                if (hidden_key(row, t + j)) continue;
                double slowest = s.decays ? -INF : 0;
                for (int64_t f = 0; f < p.decay_width; ++f)
                    slowest = std::max(slowest, b[f * s.Cp + count - 1] - b[f * s.Cp + j]);
                new_ref = std::max(new_ref, key_scale[j] + slowest);
            }
            const double safe = new_ref == -INF ? 0 : new_ref;
            log_block = ref - safe;
            for (int64_t f = 0; f < s.w; ++f) {
                keep_state[f] = std::exp(keep_state[f] + state_ref - safe);
                enter[f] = std::exp(enter[f] + state_ref - reference);
            }
        } else {
            for (int64_t f = 0; f < s.w; ++f) {
                keep_state[f] = std::exp(keep_state[f]);
                enter[f] = std::exp(enter[f]);
            }
        }
        for (int64_t f = 0; f < s.w; ++f)
            add_block[f] = std::exp(log_block + (s.decays && !s.by_pair ? b[f * s.Cp + count - 1] : 0));
    }

    void take_exponents() {
        for (int64_t j = 0; j < columns; j += LANES<T>) store(factor + j, exp_wide<T>(exponent + j));
    }

    double *b, *exponent;
    double* rise;  // the largest exponent of keys up to each token, at least 0
    T* own;        // what the block's weights count in each row
    T *pair = nullptr, *turned = nullptr;  // by_pair: e^{bᵢ − bⱼ}, keys in lanes, and queries in lanes
    int64_t count = 0, columns = 0;
};

}  // namespace KT_ISA
}  // namespace kt
