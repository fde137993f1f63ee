// The tokens near by of a decoder: slots for sinks that have left the window, then a ring in which the
// token of rank a is at a mod its length. The ring has as many slots as the window, or as many as there
// are tokens; so those in use lie one after the other, and their order does not matter.
#pragma once

#include "near.h"

#if !defined(KT_SPAN)
#define KT_SPAN 1024
#endif

namespace kt {
namespace KT_ISA {

// Where the token is that a step adds to the sums, if one is.
struct Left {
    const View *k = nullptr, *v = nullptr;
    Type type = Type::f32;
    int64_t slot = 0;
    bool none() const { return !k; }
};

template <class T> class Ring {
  public:
    // What some of the tokens near by give to the queries of a row: Σ e^{s·q·k − top} of the values, and
    // of ones.
    struct Sums {
        T* mixed;            // (groups, M)
        double *den, *top;  // (groups)
    };

    Ring(const Problem& p, Arena& arena)
        : p(p), on(p.window > 0 || p.sinks > 0), d(p.features.inputs), M(p.width),
          size(p.near_slots - p.sinks), room(SPAN + 2 * LANES<T>),
          type(p.type == Type::f64 ? Type::f64 : Type::f32) {
        if (!on) return;
        q = arena.take<T>(p.groups * d);
        k = arena.take<T>(d);
        v = arena.take<T>(M);
        weight = arena.take<T>(p.groups * room);
        sums = {arena.take<T>(p.groups * M), arena.take<double>(p.groups), arena.take<double>(p.groups)};
        span = {arena.take<T>(p.groups * M), arena.take<double>(p.groups), arena.take<double>(p.groups)};
        bad.resize(std::size_t(M + 1));
    }

    explicit operator bool() const { return on; }

    // In how many spans the tokens of a row are taken. They do not depend on who takes them.
    static int64_t spans(const Problem& p) {
        return p.window > 0 || p.sinks > 0 ? (p.near_slots + SPAN - 1) / SPAN : 0;
    }

    // The new token of a row takes its place.
    void enter(int64_t r) {
        const int64_t rank = p.seen[r];
        p.seen_after[r] = rank + 1;
        if (p.window > 0 || rank < p.sinks) put(r, p.window > 0 ? p.sinks + rank % size : rank);
    }

    // After that, which token of the row is to be added to the sums.
    Left leaving(int64_t r, double& position) {
        const int64_t rank = p.seen_after[r] - 1, oldest = p.window > 0 ? rank - p.window + 1 : rank;
        const bool far = p.features.count > 0;
        position = double(p.start);
        if (p.window == 0 && rank >= p.sinks) return far ? Left{&p.k, &p.v, p.type, 0} : Left{};
        if (p.window == 0 || oldest < 0) return {};
        const int64_t slot = p.sinks + oldest % size;
        if (oldest < p.sinks) {  // seen from there after this step
            for (const View* view : {&p.near_k, &p.near_v, &p.near_positions, &p.near_keep})
                std::memcpy(view->at(r, oldest), view->at(r, slot), std::size_t(view->token));
            return {};
        }
        std::memcpy(&position, p.near_positions.at(r, slot), sizeof position);
        return far ? Left{&p.near_k, &p.near_v, type, slot} : Left{};
    }

    // The sums of a span of a row. The queries of all groups go through the tokens together, so these are
    // read from memory once.
    void attend_span(int64_t r, int64_t number, const Sums& to) {
        for (int64_t g = 0; g < p.groups; ++g)
            read_token<T>(p.q, p.type, r * p.groups + g, 0, d, T(p.near_scale), q + g * d);
        if (type == type_of<T>)
            sum_up<T>(r, number * SPAN, to);
        else
            sum_up<float>(r, number * SPAN, to);
    }

    // The sums of a row, from those of its spans if somebody has them: of all rows, in order.
    void attend(int64_t r, const Sums* known) {
        note_bad(r);
        const int64_t count = spans(p);
        for (int64_t i = 0; i < count; ++i) {
            if (!known) attend_span(r, i, i ? span : sums);
            if (known || i) add(known ? known[r * count + i] : span, i == 0);
        }
    }

    const Problem& p;
    const bool on;
    Sums sums = {}, span = {};
    std::vector<uint8_t> bad;    // columns that a NaN or inf reaches; the last stands for all of them
    bool any_bad = false;

  private:
    void put(int64_t r, int64_t slot) {
        read_token<T>(p.k, p.type, r, 0, d, T(1), k);
        read_token<T>(p.v, p.type, r, 0, M, T(1), v);
        write_token(p.near_k, type, r, slot, d, k);
        write_token(p.near_v, type, r, slot, M, v);
        const double position = double(p.start);
        std::memcpy(p.near_positions.at(r, slot), &position, sizeof position);
        *p.near_keep.at(r, slot) = all_finite(k, d) && all_finite(v, M) ? FINE : STRANGE;
    }

    // f(first slot, count) of the slots in use, sinks first: of those from `start` on, at most `most`.
    template <class F> void runs(int64_t r, int64_t start, int64_t most, F&& f) const {
        const int64_t seen = p.seen_after[r], left = std::max<int64_t>(0, seen - p.window);
        const int64_t sunk = std::min(p.sinks, left), end = std::min(start + most, sunk + std::min(seen, p.window));
        if (start < std::min(sunk, end)) f(start, std::min(sunk, end) - start);
        const int64_t in_ring = std::max(start, sunk);
        if (in_ring < end) f(p.sinks + in_ring - sunk, end - in_ring);
    }

    void note_bad(int64_t r) {
        any_bad = false;
        runs(r, 0, p.near_slots, [&](int64_t first, int64_t n) {
            if (p.near_keep.token == 1 && !std::memchr(p.near_keep.at(r, first), STRANGE, std::size_t(n))) return;
            for (int64_t i = first; i < first + n; ++i) {
                if (*p.near_keep.at(r, i) != STRANGE) continue;
                if (!any_bad) std::fill(bad.begin(), bad.end(), 0);
                any_bad = true;
                read_token<T>(p.near_k, type, r, i, d, T(1), k);
                read_token<T>(p.near_v, type, r, i, M, T(1), v);
                if (!all_finite(k, d)) std::fill(bad.begin(), bad.end(), 1);
                for (int64_t c = 0; c < M; ++c) bad[std::size_t(c)] |= !std::isfinite(v[c]);
            }
        });
    }

    // Adds the sums of another span to those of the row, which may be the first.
    void add(const Sums& more, bool first) {
        for (int64_t g = 0; g < p.groups; ++g) {
            const double now = first ? more.top[g] : std::max(sums.top[g], more.top[g]);
            const T old = first ? T(0) : factor(sums.top[g], now), fresh = factor(more.top[g], now);
            sums.top[g] = now;
            sums.den[g] = product(old, sums.den[g]) + product(fresh, more.den[g]);
            for (int64_t c = g * M; c < (g + 1) * M; ++c)
                sums.mixed[c] = product(old, sums.mixed[c]) + product(fresh, more.mixed[c]);
        }
    }

    // Sums of weight 0 are gone, whatever they were, inf too.
    template <class X> static X product(T weight, X x) { return weight == 0 ? X(0) : X(weight) * x; }

    static T factor(double top, double now) { return top == now ? T(1) : T(std::exp(top - now)); }

    template <class N> static KT_INLINE Vec<T> load_as(const N* from) {
        if constexpr (sizeof(N) == sizeof(T)) {
            return load(from);
        } else {
            typedef float half __attribute__((vector_size(KT_VECTOR_BYTES / 2)));
            half x;
            __builtin_memcpy(&x, from, sizeof x);
            return __builtin_convertvector(x, Vec<T>);
        }
    }

    template <class N> void sum_up(int64_t r, int64_t start, const Sums& to) {
        int64_t n = 0;
        runs(r, start, SPAN, [&](int64_t first, int64_t count) {
            const N* keys = reinterpret_cast<const N*>(p.near_k.at(r, first));
            for (int64_t i = 0; i < count; i += LANES<T>)
                for (int64_t g = 0; g < p.groups; ++g)
                    products(q + g * d, keys, i, count, weight + g * room + n + i);
            n += count;
        });
        for (int64_t g = 0; g < p.groups; ++g) exponentials(g, n, to);
        std::fill(to.mixed, to.mixed + p.groups * M, T(0));
        int64_t at = 0;
        runs(r, start, SPAN, [&](int64_t first, int64_t count) {
            for (int64_t i = 0; i < count; i += BLOCK) {
                const N* values = reinterpret_cast<const N*>(p.near_v.at(r, first + i));
                for (int64_t g = 0; g < p.groups; ++g)
                    mix(values, std::min(BLOCK, count - i), weight + g * room + at + i, to.mixed + g * M);
            }
            at += count;
        });
    }

    // The weights of n tokens from the scores of a query.
    void exponentials(int64_t g, int64_t n, const Sums& to) {
        T* own = weight + g * room;
        for (int64_t i = 0; i < LANES<T>; ++i) own[n + i] = T(-INF);
        Vec<T> high = splat(T(-INF)), total{};
        for (int64_t i = 0; i < n; i += LANES<T>) high = most(load(own + i), high);
        const T largest_here = largest<T>(high);
        for (int64_t i = 0; i < n; i += LANES<T>) {
            const Vec<T> e = exp_down<T>(load(own + i) - largest_here);
            store(own + i, e);
            total += e;
        }
        to.den[g] = double(sum<T>(total));
        to.top[g] = double(largest_here);
    }

    // q·k of the keys i … of a run, as many as there are lanes.
    template <class N>
    KT_INLINE void products(const T* query, const N* keys, int64_t i, int64_t count, T* to) const {
        constexpr int L = LANES<T>;
        const int64_t step = p.near_k.token / int64_t(sizeof(N));
        const N* key[L];
        for (int l = 0; l < L; ++l) key[l] = keys + std::min(i + l, count - 1) * step;
        Vec<T> total[L] = {};
        int64_t f = 0;
        for (; f + L <= d; f += L) {
            const Vec<T> x = load(query + f);
#pragma GCC unroll 16
            for (int l = 0; l < L; ++l) {
                if (f * int64_t(sizeof(N)) % LINE == 0) __builtin_prefetch(key[l] + f + AHEAD / sizeof(N));
                total[l] += x * load_as<N>(key[l] + f);
            }
        }
        for (; f < d; ++f)
            for (int l = 0; l < L; ++l) total[l][0] += query[f] * T(key[l][f]);
        store(to, sums_of<T>(total));
    }

    // Adds the n values, with their weights, to `to`.
    template <class N> void mix(const N* values, int64_t n, const T* weights, T* to) const {
        constexpr int64_t L = LANES<T>;
        const int64_t step = p.near_v.token / int64_t(sizeof(N));
        int64_t c = 0;
        for (; c + 8 * L <= M; c += 8 * L) mix_columns<N, 8>(values + c, n, step, weights, to + c);
        for (; c + 4 * L <= M; c += 4 * L) mix_columns<N, 4>(values + c, n, step, weights, to + c);
        for (; c + L <= M; c += L) mix_columns<N, 1>(values + c, n, step, weights, to + c);
        for (; c < M; ++c)
            for (int64_t i = 0; i < n; ++i) to[c] += weights[i] * T(values[i * step + c]);
    }

    template <class N, int vecs>
    KT_INLINE void mix_columns(const N* values, int64_t n, int64_t step, const T* weights, T* to) const {
        Vec<T> total[vecs];
        for (int e = 0; e < vecs; ++e) total[e] = load(to + e * LANES<T>);
        for (int64_t i = 0; i < n; ++i, values += step) {
            const T w = weights[i];
#pragma GCC unroll 8
            for (int e = 0; e < vecs; ++e) {
                const N* from = values + e * LANES<T>;
                if (e * LANES<T> * int(sizeof(N)) % LINE == 0) __builtin_prefetch(from + AHEAD / sizeof(N));
                total[e] += load_as<N>(from) * w;
            }
        }
        for (int e = 0; e < vecs; ++e) store(to + e * LANES<T>, total[e]);
    }

    // Bytes: rows follow each other in memory, so what comes next is often that of the next row.
    static constexpr int LINE = 64, AHEAD = 8192;
    static constexpr int64_t SPAN = KT_SPAN;  // tokens that one thread takes at once
    static constexpr int64_t BLOCK = 32;  // values that stay in the cache for the queries of all groups
    static constexpr char FINE = 1, STRANGE = 2;  // in near_keep
    const int64_t d, M, size, room;
    const Type type;  // of the tokens that are kept
    T *q = nullptr, *k = nullptr, *v = nullptr, *weight = nullptr;
};

}  // namespace KT_ISA
}  // namespace kt
