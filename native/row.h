// One row of keys and values (a batch index and a key head) and the queries that look at it, block
// by block. Within a block the sums are those of one small matrix product; between blocks there is
// the state (sums.h). A block ends at a multiple of C, at a restart, or where decays and log-scales
// since its first token would leave the range in which they can be factored (scaling.h).
//
// The phases of a block, always in this order. Each reads what those before it have left:
//
//     extent          how many tokens the block has; begins Scaling's decays
//     load_keys       Keys and Scaling; may cut the block short, so `keys.count` counts from here on
//     no_keys         in its place, where queries see the state alone
//     load_queries    Queries, of one query head at a time
//     output.write_block   their outputs, by the state before the block and the block's keys
//     absorb          adds the keys to the state, after the last query head
#pragma once

#include "near.h"
#include "output.h"
#include "polynomial.h"

namespace kt {
namespace KT_ISA {

// put(r, Σⱼ value(r, j)) for rows r of some features in lanes.
template <class T, class Value, class Put>
KT_INLINE void sum_lanes(int64_t rows, int64_t columns, Value&& value, Put&& put) {
    for (int64_t r = 0; r < rows; r += LANES<T>) {
        const int64_t n = std::min<int64_t>(LANES<T>, rows - r);
        Vec<T> total[LANES<T>] = {};
        for (int64_t j = 0; j < columns; j += LANES<T>)
            for (int64_t l = 0; l < n; ++l) total[l] += value(r + l, j);
        T sums[LANES<T>];
        store(sums, sums_of<T>(total));
        for (int64_t l = 0; l < n; ++l) put(r + l, sums[l]);
    }
}

template <class T, class Kernel> class Row {
  public:
    Row(const Sizes<T>& s, bool for_gradient)
        : s(s), p(s.p), map(p.features, s.Cp, arena), scaling(s, arena), keys(s, arena), queries(s, arena),
          kernel(s, map, scaling, keys, queries, for_gradient, arena), output(s, kernel, prefetch, arena) {}

    Arena arena;
    const Sizes<T>& s;
    const Problem& p;
    Mapper<T> map;
    Scaling<T> scaling;
    Keys<T> keys;
    Queries<T> queries;
    Kernel kernel;
    Prefetch prefetch;
    Output<T, Kernel> output;

    int64_t extent(int64_t row, int64_t t) { return scaling.extent(row, t); }

    void load_keys(int64_t row, int64_t t, int64_t n, double state_ref) {
        load_keys(row, t, n, state_ref, {p.k, p.v, p.k_positions});
    }

    void load_keys(int64_t row, int64_t t, int64_t n, double state_ref, const KeyViews& from) {
        keys.fetch_block(row, t, n, from);
        kernel.form_keys(row, from.places);
        keys.read_scales(p.k_scale, row, t, n);
        keys.cut(scaling.begin(row, t, n, state_ref, keys.log_scale));
        kernel.scale_keys();
    }

    // Keys a … of a line: tokens of the call, or kept from before.
    void load_keys(int64_t row, const Line& line, int64_t a, int64_t n, double state_ref) {
        const int64_t t = line.at(a);
        if (t >= 0)
            load_keys(row, t, n, state_ref);
        else
            load_keys(row, -1 - t, n, state_ref, {p.near_k, p.near_v, p.near_positions});
    }

    void no_keys(double state_ref) {
        keys.none();
        scaling.none(state_ref);
    }

    // The queries of the block (causal: its own tokens), of query row `row`.
    void load_queries(int64_t row, int64_t mask_row, int64_t t, int64_t n, const View& mask) {
        if (s.m == 0) return queries.none(n);
        queries.fetch_block(row, t, n, mask, mask_row);
        kernel.form_queries(row, t, n);
        queries.read_scales(p.q_scale, row, t, n);
        kernel.scale_queries();
        if (!p.normalize || scaling.factored) queries.set_row_factors(scaling, n);
    }

    // What is read next, fetched while this block is computed: n tokens of a row from t on.
    void fetch_queries(int64_t q, int64_t t, int64_t n) { prefetch.add(p.q, q, t, n, s.d, size_of(p.type)); }
    void fetch_keys(int64_t r, int64_t t, int64_t n) {
        prefetch.add(p.k, r, t, n, s.d, size_of(p.type));
        prefetch.add(p.v, r, t, n, s.M, size_of(p.type));
    }
    // The same of a block of causal attention, or with `sums` of its keys alone.
    void fetch_block(int64_t r, int64_t t, bool sums) {
        const int64_t n = std::min(s.C, p.keys - t);
        prefetch = Prefetch{};
        if (!sums && p.groups == 1) fetch_queries(r, t, n);
        fetch_keys(r, t, n);
    }

    // What the block's keys add to the sums; `own` is for the doing of it.
    void absorb(Sums<T>& own, int64_t row, Stop<T>& stop) {
        std::fill(own.Z, own.Z + s.m, Wide<T>(0));
        own.set_bad(nullptr);
        absorb(own, row, stop.u.data());
        std::copy(own.z, own.z + s.m, stop.z.begin());
        std::copy(own.bad.begin(), own.bad.end(), stop.bad.begin());
    }

    // Adds the block's keys to the sums; with `alone`, puts there what they add to them.
    void absorb(Sums<T>& sums, int64_t row, T* alone = nullptr) {
        const bool scaled = s.has_scale || s.decays || scaling.restarts(row, keys.first);
        const double *keep = scaling.keep_state, *add = scaling.add_sums;
        if (!alone) sums.fill(s);
        kernel.each_key_panel([&](int64_t r0, int64_t size, T* phi) {
            for (int64_t r = 0; r < size && scaled; ++r) {
                const T share = scaling.on_keys[s.by_feature ? r0 + r : 0];
                for (int64_t j = 0; j < keys.columns && share != T(1); j += LANES<T>)
                    store(phi + r * s.Cp + j, load(phi + r * s.Cp + j) * share);
            }
            by_rows(size, [&](auto rows, int64_t r) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    prefetch.step(6);
                    auto at = [&](int a, int e) { return (r0 + r + a) * s.Mp + c + e * LANES<T>; };
                    tile.clear();
                    tile.add(phi + r * s.Cp, s.Cp, 1, keys.v.x + c, keys.v.stride, keys.count);
                    if (alone)
                        tile.store(alone + at(0, 0), s.Mp);
                    else if (s.pairs)
                        tile.each([&](int a, int e) {
                            accumulate_pair<T>(sums.u + at(a, e), sums.rest + at(a, e), tile.acc[a][e]);
                        });
                    else
                        tile.each([&](int a, int e) {
                            const int64_t f = s.by_feature ? r0 + r + a : 0, o = at(a, e);
                            accumulate<T>(sums.U + o, sums.u + o, tile.acc[a][e], scaled, keep[f], add[f]);
                        });
                });
            });
            sum_lanes<T>(
                size, keys.columns, [&](int64_t r, int64_t j) { return load(phi + r * s.Cp + j); },
                [&](int64_t r, T added) {
                    const int64_t f = s.by_feature ? r0 + r : 0;
                    Wide<T>& Z = sums.Z[r0 + r];
                    Z = scaled ? faded<T>(Z, keep[f]) + double(added) * add[f] : Z + double(added);
                    sums.z[r0 + r] = T(Z);
                });
        });
        if (s.has_scale) sums.ref = scaling.new_ref;
        if (sums.any_bad || keys.tokens.any_bad || keys.v.any_bad) {
            if (scaling.restarts(row, keys.first)) std::fill(sums.bad.begin(), sums.bad.end(), 0);
            for (int64_t j = 0; j < keys.count; ++j) keys.add_bad(j, sums.bad);
            sums.any_bad = std::any_of(sums.bad.begin(), sums.bad.end(), [](uint8_t b) { return b; });
        }
        for (int64_t t = keys.first; t < keys.first + keys.count && p.decay_total; ++t)
            for (int64_t f = 0; f < p.decay_width; ++f)
                p.decay_total[row * p.decay_width + f] += scaling.restarts(row, t) ? -INF : scaling.decay(row, t, f);
    }
};

}  // namespace KT_ISA
}  // namespace kt
