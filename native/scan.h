// What forward and backward of the selective scan share: the numbers of a tile of tokens and channels,
// and one register of channels through its tokens.
#pragma once

#include "operators.h"
#include "tile.h"

namespace kt {
namespace KT_ISA {

// States that go through a tile together, in registers: beside them are A and the constants of exp.
constexpr int STATES = KT_VECTOR_BYTES == 64 ? 8 : 4;

// log(1 + eˣ) = max(x, 0) + log(1 + u), u = e^{−|x|}, and log(1 + u) = 2 artanh(s), s = u/(2 + u) ≤ ⅓.
template <class T> KT_INLINE Vec<T> softplus(Vec<T> x) {
    const Vec<T> zero{};
    const Vec<T> u = exp(least(x, -x));
    const Vec<T> s = u / (u + T(2)), square = s * s;
    constexpr int TERMS = sizeof(T) == 4 ? 8 : 17;
    Vec<T> sum{};
#pragma GCC unroll 17
    for (int i = TERMS; i > 0; --i) sum = sum * square + T(1) / T(2 * i - 1);
    const Vec<T> y = most(x, zero) + T(2) * s * sum;
    return x == x ? y : x;
}

// eˣ that keeps a NaN.
template <class T, bool tame> KT_INLINE Vec<T> decay(Vec<T> x) {
    if constexpr (tame) return exp<true>(x);
    const Vec<T> y = exp(x);
    return x == x ? y : x;
}

// WIDTH channels of one row, and the buffers of a tile.
template <class T> struct Channels {
    const SelectiveScan& p;
    int64_t row = 0, channel = 0, channels = 0;
    Arena arena;
    T *A, *low, *high;         // (N, WIDTH); the least and the largest A of a channel (WIDTH)
    T *D, *bias;               // (WIDTH)
    T *x, *raw, *step, *input; // (keep, WIDTH): x, dt + bias, Δ, Δx
    T *B, *C;                  // (keep, N)
    T* scratch;
    std::vector<uint8_t> hidden, restart;  // of each token of a tile
    bool flags = false;                    // whether any of them is set

    explicit Channels(const SelectiveScan& call) : p(call) {
        A = arena.take<T>(p.states * WIDTH);
        for (T** one : {&low, &high, &D, &bias}) *one = arena.take<T>(WIDTH);
        const int64_t tokens = std::min(p.keep, std::max<int64_t>(p.tokens, 1));
        for (T** one : {&x, &raw, &step, &input}) *one = arena.take<T>(tokens * WIDTH);
        for (T** one : {&B, &C}) *one = arena.take<T>(tokens * p.states);
        scratch = arena.take<T>(WIDTH * TILE_TOKENS);
        hidden.resize(std::size_t(tokens));
        restart.resize(std::size_t(tokens));
    }

    // Numbers (channels, N) of a row, as (N, WIDTH); and back.
    void read_states(const View& view, int64_t r, T* to) {
        for (int64_t n = 0; n < p.states; n += TILE_TOKENS)
            read_tile<T>(turned(view), type_of<T>, r, n, std::min(TILE_TOKENS, p.states - n), channel, channels,
                         to + n * WIDTH, scratch);
    }
    void write_states(const View& view, int64_t r, const T* from) {
        for (int64_t n = 0; n < p.states; n += TILE_TOKENS)
            write_tile<T>(turned(view), type_of<T>, r, n, std::min(TILE_TOKENS, p.states - n), channel, channels,
                          from + n * WIDTH, scratch);
    }

    void begin(int64_t of_row, int64_t first) {
        begin_tokens(of_row, first);
        read_states(p.A, 0, A);
        by_lanes<T>(channels, [&](int64_t c) {
            Vec<T> least_A = load(A + c), most_A = least_A;
            for (int64_t n = 1; n < p.states; ++n) {
                least_A = least(least_A, load(A + n * WIDTH + c));
                most_A = most(most_A, load(A + n * WIDTH + c));
            }
            store(low + c, least_A);
            store(high + c, most_A);
        });
    }

    // The same without A.
    void begin_tokens(int64_t of_row, int64_t first) {
        row = of_row;
        channel = first;
        channels = std::min(WIDTH, p.channels - first);
        for (auto [view, to] : {std::pair{&p.D, D}, std::pair{&p.dt_bias, bias}}) {
            std::fill(to, to + WIDTH, T(0));
            if (view->data) read_token<T>(from_element(*view, channel), type_of<T>, 0, 0, channels, T(1), to);
        }
    }

    void read_numbers(const View& view, int64_t t, int64_t count, T* to) {
        read_tile<T>(view, p.type, row, t, count, channel, channels, to, scratch);
    }
    void write_numbers(const View& view, int64_t t, int64_t count, const T* from) {
        write_tile<T>(view, p.type, row, t, count, channel, channels, from, scratch);
    }

    // Reads tokens t … t + count − 1.
    void read(int64_t t, int64_t count) {
        flags = false;
        for (int64_t i = 0; i < count; ++i) {
            const bool off = p.mask.data && !*p.mask.at(row, t + i);
            const bool fresh = p.restart.data && *p.restart.at(row, t + i);
            hidden[std::size_t(i)] = off;
            restart[std::size_t(i)] = fresh;
            flags |= off || fresh;
        }
        read_numbers(p.x, t, count, x);
        read_numbers(p.dt, t, count, raw);
        for (int64_t i = 0; i < count; ++i) {
            read_token<T>(p.B, p.type, row, t + i, p.states, T(1), B + i * p.states);
            read_token<T>(p.C, p.type, row, t + i, p.states, T(1), C + i * p.states);
        }
        by_lanes<T>(channels, [&](int64_t c) {
            const Vec<T> shift = load(bias + c);
            for (int64_t i = c; i < count * WIDTH; i += WIDTH) {
                const Vec<T> y = load(raw + i) + shift;
                store(raw + i, y);
                const Vec<T> delta = p.softplus ? softplus<T>(y) : y;
                store(step + i, delta);
                store(input + i, delta * load(x + i));
            }
        });
    }

    // Whether no e^{ΔA} of a register of channels is subnormal or infinite: then it takes less to compute.
    bool tame(int64_t c, int64_t count) const {
        constexpr T LIMIT = sizeof(T) == 4 ? T(87) : T(708);
        const Vec<T> least_A = load(low + c), most_A = load(high + c);
        Vec<T> bottom{}, top{}, check{};
        for (int64_t i = c; i < count * WIDTH; i += WIDTH) {
            const Vec<T> delta = load(step + i), one = delta * least_A, other = delta * most_A;
            bottom = least(bottom, least(one, other));
            top = most(top, most(one, other));
            check += (one + other) * T(0);
        }
        // A itself may hold a NaN that neither least nor most has kept.
        for (int64_t n = 0; n < p.states; ++n) check += load(A + n * WIDTH + c) * T(0);
        return sum<T>(check) == T(0) && largest<T>(top) < LIMIT && largest<T>(-bottom) < LIMIT;
    }

    // f(number of states, first of them) as constants, for all N.
    template <class F> KT_INLINE void by_states(F&& f) const {
        int64_t n = 0;
        for (; n + STATES <= p.states; n += STATES) f(std::integral_constant<int, STATES>{}, n);
        for (; n < p.states; ++n) f(std::integral_constant<int, 1>{}, n);
    }
};

// How tokens go by: K states of a register of channels, and whether tokens may be hidden or begin a text.
template <int states, bool tame_, bool flags_> struct Way {
    static constexpr int K = states;
    static constexpr bool tame = tame_, flags = flags_;
};

template <class T, class F> KT_INLINE void by_way(const Channels<T>& s, int64_t c, int64_t count, F&& f) {
    const bool tame = s.tame(c, count);
    s.by_states([&](auto k, int64_t n) {
        constexpr int K = decltype(k)::value;
        if (s.flags)
            f(Way<K, false, true>{}, n);
        else if (tame)
            f(Way<K, true, false>{}, n);
        else
            f(Way<K, false, false>{}, n);
    });
}

}  // namespace KT_ISA
}  // namespace kt
