// The tokens of a block, its keys or its queries, with room of their own for all that is made of them.
#pragma once

#include "maps.h"
#include "scaling.h"

namespace kt {
namespace KT_ISA {

// Keys or queries. Tokens in lanes (x) come after a row of ones, which polynomials use.
template <class T> class Side {
  public:
    Side(const Sizes<T>& s, bool scales, Arena& arena)
        : s(s), p(s.p), x(arena.take<T>(s.in_lanes(s.d + 1)) + s.Cp), phi(arena.take<T>(s.in_lanes(s.panel))),
          scaled(scales ? arena.take<T>(s.in_lanes(s.panel)) : phi), log_scale(arena.take<double>(s.Cp)),
          where(arena.take<double>(s.Cp)), rows(arena.take<T>(s.Cp * s.d)) {
        std::fill(ones(), ones() + s.Cp, T(1));
    }

    T* ones() const { return x - s.Cp; }
    bool hidden(int64_t j) const { return tokens.any_hidden && tokens.hidden[std::size_t(j)]; }
    bool bad(int64_t j) const { return tokens.any_bad && tokens.bad[std::size_t(j)]; }

    void fetch_tokens(const View& from, int64_t row, int64_t t, int64_t n, const View& mask, int64_t mask_row) {
        columns = s.tile_columns(n);
        fetch(from, p.type, row, t, n, s.d, s.d, T(p.features.root_scale), T(1), mask, mask_row, rows, tokens);
    }

    // φ in rows or in lanes, straight from the caller's tokens; false where they need care.
    bool quick(int64_t n, bool in_rows) {
        if (s.d % LANES<T> || tokens.any_hidden || (!in_rows && n % LANES<T>)) return false;
        auto go = [&](auto f) {
            using F = decltype(f);
            return in_rows ? map_rows<T, F>(tokens.x, tokens.stride, n, s.d, phi)
                           : map_columns<T, F>(tokens.x, tokens.stride, n, s.d, phi, s.Cp);
        };
        switch (p.features.map) {
            case Map::given: return go(IdentityMap<T>{});
            case Map::elu: return go(EluMap<T, true>{});
            case Map::relu: return go(ReluMap<T>{});
            case Map::relu2: return go(Relu2Map<T>{});
            case Map::square: return go(SquareMap<T>{});
            default: return false;
        }
    }

    // x: the tokens in lanes, without NaN and inf.
    void spread(int64_t n) {
        clean(tokens, n, s.d, s.d, T(1), false, rows);
        to_lanes(tokens.x, tokens.stride, n, columns, s.d, x, s.Cp);
    }

    // And φ of them.
    void map(const Mapper<T>& mapper, int64_t which, const View& places, int64_t row, int64_t t, int64_t n) {
        spread(n);
        if (p.features.map == Map::cosformer) read_positions(places, row, t, n);
        mapper.phi(x, columns, which, where, phi, log_scale);
    }

    void read_scales(const View& from, int64_t row, int64_t t, int64_t n) {
        for (int64_t j = 0; j < n && from.data; ++j) std::memcpy(log_scale + j, from.at(row, t + j), 8);
    }

    const Sizes<T>& s;
    const Problem& p;
    Block<T> tokens;      // as they come, or in `rows`
    int64_t columns = 0;  // lanes in use: whole tiles
    T *x, *phi;           // in lanes; of a polynomial, φ is one panel of its features
    T* scaled;            // φ times the factors of Scaling, or φ itself where it has none
    double *log_scale, *where;

  private:
    void read_positions(const View& view, int64_t row, int64_t t, int64_t n) {
        for (int64_t j = 0; j < columns; ++j) {
            where[j] = double(p.start + t + j);
            if (view.data && j < n) std::memcpy(where + j, view.at(row, t + j), sizeof(double));
        }
    }

    T* rows;
};

// Where keys come from: the call, or what the state has kept.
struct KeyViews {
    const View &keys, &values, &places;
};

template <class T> class Keys : public Side<T> {
  public:
    using Side<T>::s, Side<T>::p, Side<T>::columns;

    Keys(const Sizes<T>& s, Arena& arena)
        : Side<T>(s, s.has_scale || s.decays, arena), keep(arena.take<T>(s.Cp)), v_rows(arena.take<T>(s.Cp * s.Mp)) {}

    void fetch_block(int64_t row, int64_t t, int64_t n, const KeyViews& from) {
        first = t;
        count = n;
        this->fetch_tokens(from.keys, row, t, n, p.mask, row);
        fetch(from.values, p.type, row, t, n, s.M, s.Mp, T(1), T(0), p.mask, row, v_rows, v);
        clean(v, n, s.M, s.Mp, T(0), true, v_rows);
    }

    bool all_count() const { return !this->tokens.any_hidden && count == columns; }

    // The first n of them are left.
    void cut(int64_t n) {
        count = n;
        columns = s.tile_columns(n);
        for (int64_t j = 0; j < columns; ++j) keep[j] = T(j < n && !this->hidden(j));
    }

    void none() {
        count = 0;
        this->tokens.any_bad = v.any_bad = false;
    }

    int64_t weight(int64_t row) const { return p.features.key_weight(row % p.heads, p.heads); }

    // +0 in the lanes of `to` that no key counts in.
    KT_INLINE void drop(T* to) const {
        for (int64_t j = 0; j < columns; j += LANES<T>)
            store(to + j, masked<T>(load(to + j), load(keep + j) != Vec<T>{}));
    }

    // to = from · factor, and +0 in these lanes.
    KT_INLINE void times(const T* factor, const T* from, T* to) const {
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            const Vec<T> y = load(from + j) * load(factor + j);
            store(to + j, masked<T>(y, load(keep + j) != Vec<T>{}));
        }
    }

    // What key j spoils of the sums: all of them, or columns.
    void add_bad(int64_t j, std::vector<uint8_t>& flags) const {
        if (this->bad(j)) std::fill(flags.begin(), flags.end(), 1);
        if (v.any_bad)
            for (int64_t c = 0; c < s.M; ++c) flags[std::size_t(c)] |= v.bad[std::size_t(j * s.M + c)];
    }

    int64_t first = 0, count = 0;
    Block<T> v;
    T* keep;  // 1, or 0 in lanes of hidden keys and of none

  private:
    T* v_rows;
};

template <class T> class Queries : public Side<T> {
  public:
    using Side<T>::s, Side<T>::p, Side<T>::log_scale;

    Queries(const Sizes<T>& s, Arena& arena)
        : Side<T>(s, s.by_feature, arena), row_factor(arena.take<double>(s.Cp)) {}

    // There is no far part: Near has the queries.
    void none(int64_t n) {
        this->columns = s.tile_columns(n);
        this->tokens.any_bad = this->tokens.any_hidden = false;
    }

    void fetch_block(int64_t row, int64_t t, int64_t n, const View& mask, int64_t mask_row) {
        if (p.gain) gain = p.gain[row % (p.heads * p.groups)];
        this->fetch_tokens(p.q, row, t, n, mask, mask_row);
    }

    // What the sums of n queries count, and where outputs are not normalised the outputs.
    void set_row_factors(Scaling<T>& scaling, int64_t n) {
        for (int64_t j = 0; j < n; ++j) {
            const double logs = p.normalize ? -INF : scale(j, scaling) + scaling.decayed(j);
            const double rest = logs + scaling.lower(j, logs);
            if (!p.normalize) row_factor[j] = rest == 0 ? 1 : std::exp(rest);
        }
        scaling.form_shares(n);
    }

    // The logarithm of what sums of query j are multiplied by, decays aside.
    double scale(int64_t j, const Scaling<T>& scaling) const {
        return s.has_scale ? log_scale[j] + scaling.reference : 0;
    }

    int64_t weight(int64_t row) const {
        const int64_t heads = p.heads * p.groups;
        return p.features.query_weight(row % heads, heads);
    }

    bool in_rows = false;  // φ has tokens in rows, not in lanes
    double gain = 0;       // of the query head
    double* row_factor;
};

}  // namespace KT_ISA
}  // namespace kt
