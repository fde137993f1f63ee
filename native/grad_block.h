// The gradients of a block: dq of its queries by the state before it, dk and dv of its keys by G, the
// gradient of the state after it.
#pragma once

#include "grad_kernel.h"

namespace kt {
namespace KT_ISA {

template <class T, class Kernel> class BlockGradient {
  public:
    BlockGradient(const Sizes<T>& s, const Gradient& g)
        : row(s, true), sums(s, row.arena), G(s, row.arena), s(s), p(s.p), g(g),
          out(s, g, row.queries, row.scaling, row.arena), lanes(row, out),
          ones(take(s.Cp)), v_lanes(take(s.in_lanes(s.Mp))), weights(take(s.in_lanes(s.Cp))),
          d_v(take(s.Cp * s.Mp)), token_rows(take(s.Cp * s.d)), before(take(std::max(s.Mp, s.d))) {
        std::fill(ones, ones + s.Cp, T(1));
    }

    Row<T, Kernel> row;
    Sums<T> sums, G;
    bool adds = false;  // to what the gradients hold
    // Of every query head of the row, then of its keys; or null.
    double *d_weight = nullptr, *d_bias = nullptr;

    // dq of query head h for n tokens from t; `inside`: they also saw the block's keys.
    void query_side(int64_t r, int64_t h, int64_t t, int64_t n, bool inside, double* d_decay) {
        const int64_t q = r * p.groups + h;
        row.load_queries(q, inside ? r : q, t, n, inside ? p.mask : p.query_mask);
        out.load_block(q, t, n);
        if (inside) row.scaling.turn();
        if (inside) pairs_by_key();
        lanes.queries_from_state(sums, t, n, d_decay);
        if (inside) lanes.queries_from_pairs(t, n, d_decay);
        lanes.finish_queries(q, weights_of(h));
        put_tokens(g.d_q, q, t, n, row.queries);
    }

    // What the n queries of query row q from token t on add to G.
    void gather_queries(int64_t r, int64_t q, int64_t t, int64_t n, const View& mask, T* alone = nullptr) {
        row.load_queries(q, r, t, n, mask);
        out.load_rows(q, t, n);
        gather(n, 1, alone);
    }

    // dk and dv of the block at hand, and G before it. `at`: the first query that saw the block's keys from
    // within. `alone`: others add up G.
    void key_side(int64_t r, bool inside, double* d_decay, bool alone = false) {
        key_side(r, inside, d_decay, alone, row.keys.first, g.d_k, g.d_v);
    }

    void key_side(int64_t r, bool inside, double* d_decay, bool alone, int64_t at, const View& d_keys,
                  const View& d_values) {
        const Keys<T>& keys = row.keys;
        const int64_t n = keys.count, t = keys.first;
        const bool scaled = s.has_scale || s.decays;
        to_lanes(keys.v.x, keys.v.stride, n, keys.columns, s.M, v_lanes, s.Cp);
        if (scaled) G.narrow(s, row.scaling.add_block, s.by_feature);
        lanes.keys_from_state(G, v_lanes, ones, d_decay, [&](int64_t r0, int64_t size, const T* phi) {
            values_from([&](auto& tile, int64_t j, int64_t c) {
                r0 ? tile.load(d_v + j * s.Mp + c, s.Mp) : tile.clear();
                if (!G.empty) tile.add(phi + j, 1, s.Cp, G.u + r0 * s.Mp + c, s.Mp, size);
            });
        });
        if (scaled && !G.empty) G.fade(s, row.scaling.keep_state);
        for (int64_t h = 0; h < p.groups && inside; ++h) {
            const int64_t q = r * p.groups + h;
            row.load_queries(q, r, at, n, p.mask);
            out.load_block(q, at, n);
            pairs_by_query(n, s.by_feature || !d_decay ? nullptr : d_decay + at);
            lanes.keys_from_pairs();
            values_from([&](auto& tile, int64_t j, int64_t c) {
                tile.load(d_v + j * s.Mp + c, s.Mp);
                tile.add(weights + j * s.Cp + j, 1, s.Cp, out.dn + j * s.Mp + c, s.Mp, n - j);
            });
            if (s.by_pair) out.times(row.scaling.since, n);
            if (!alone) gather(n, s.by_pair ? 1 : row.scaling.state_share);
        }
        lanes.finish_keys(r, d_decay, weights_of(p.groups));
        put_tokens(d_keys, r, t, n, keys);
        for (int64_t i = 0; i < n; ++i) {
            T* one = d_v + i * s.Mp;
            if (keys.hidden(i)) std::fill(one, one + s.Mp, T(0));
            put(d_values, r, t + i, s.M, one);
        }
    }

    // G += factor · φ(q)ᵀ dN~ of the n queries at hand; with `alone`, puts there what they add to it.
    void gather(int64_t n, double factor, T* alone = nullptr) {
        auto share = [&](int64_t r) { return s.by_feature && p.causal ? row.scaling.enter[r] : factor; };
        if (!alone) G.fill(s);
        row.kernel.each_query_panel([&](int64_t r0, int64_t size, const T* phi) {
            for (int64_t t = 0; t < n; t += SPAN) {
                const int64_t span = std::min(SPAN, n - t);
                by_rows(size, [&](auto rows, int64_t r) {
                    constexpr int R = decltype(rows)::value;
                    by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                        constexpr int N = decltype(cols)::value;
                        Tile<T, R, N> tile;
                        row.prefetch.step(4);
                        tile.clear();
                        tile.add(phi + r * s.Cp + t, s.Cp, 1, out.dn + t * s.Mp + c, s.Mp, span);
                        tile.each([&](int a, int e) {
                            const int64_t o = (r0 + r + a) * s.Mp + c + e * LANES<T>;
                            const double f = share(r0 + r + a);
                            if (alone)
                                store(alone + o, tile.acc[a][e]);
                            else if (s.pairs)
                                accumulate_pair<T>(G.u + o, G.rest + o, tile.acc[a][e]);
                            else
                                accumulate<T>(G.U + o, G.u + o, tile.acc[a][e], f != 1, 1, f);
                        });
                    });
                });
            }
            sum_lanes<T>(
                size, row.queries.columns,
                [&](int64_t r, int64_t j) { return load(phi + r * s.Cp + j) * load(out.d_den + j); },
                [&](int64_t r, T added) {
                    G.Z[r0 + r] += double(added) * share(r0 + r);
                    G.z[r0 + r] = T(G.Z[r0 + r]);
                });
        });
    }

  private:
    T* take(int64_t count) { return row.arena.template take<T>(count); }

    // Of a query head of the row, or after all of them of its keys.
    WeightGradient weights_of(int64_t side) const {
        const int64_t columns = p.features.columns;
        return {d_weight ? d_weight + side * p.features.inputs * columns : nullptr,
                d_bias ? d_bias + side * columns : nullptr};
    }

    // pairs[j][i] = (dN~ᵢ · v~ⱼ) for i ≥ j, queries in lanes.
    void pairs_by_key() {
        const Block<T>& v = row.keys.v;
        by_rows(row.keys.count, [&](auto rows, int64_t j) {
            constexpr int R = decltype(rows)::value;
            for (int64_t i = 0; i < row.queries.columns; i += TILE_COLUMNS<T>) {
                Tile<T, R, TILE_VECS> tile;
                tile.clear();
                if (i + TILE_COLUMNS<T> > j) {
                    tile.add(v.x + j * v.stride, v.stride, 1, out.dn_lanes + i, s.Cp, s.M);
                    tile.change([&](Vec<T> y, int, int c) __attribute__((always_inline)) {
                        return y + load(out.d_den + i + c);
                    });
                    lanes.by_key(tile, j, i);
                    tile.keep_upper(j, i);
                }
                tile.store(lanes.pairs + j * s.Cp + i, s.Cp);
            }
        });
    }

    // weights[i][j] = A and pairs[i][j] = (dN~ᵢ · v~ⱼ) for j ≤ i, keys in lanes. `d_decay`: where their products
    // are terms of decays of tokens (grad_kernel.h), or null.
    void pairs_by_query(int64_t n, double* d_decay) {
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            for (int64_t j = 0; j < row.keys.columns; j += TILE_COLUMNS<T>) {
                Tile<T, R, TILE_VECS> a, b;
                a.clear();
                b.clear();
                if (j < i + R) {
                    row.output.weights(a, i, j);
                    b.add(out.dn + i * s.Mp, s.Mp, 1, v_lanes + j, s.Cp, s.M);
                    b.change([&](Vec<T> y, int x, int) __attribute__((always_inline)) { return y + out.d_den[i + x]; });
                    if (d_decay) decay_terms(a, b, i, j, d_decay);
                    lanes.by_query(b, i, j);
                    b.keep_lower(i, j);
                }
                a.store(weights + i * s.Cp + j, s.Cp);
                b.store(lanes.pairs + i * s.Cp + j, s.Cp);
            }
        });
    }

    template <int R, int N>
    void decay_terms(const Tile<T, R, N>& a, const Tile<T, R, N>& b, int64_t i, int64_t j, double* d_decay) const {
        for (int x = 0; x < R; ++x)
            for (int64_t y = j; y < std::min(i + x, j + N * LANES<T>); ++y) {
                const int64_t c = (y - j) / LANES<T>, l = (y - j) % LANES<T>;
                const double term = double(a.acc[x][c][l]) * double(b.acc[x][c][l]);
                d_decay[i + x] += term;
                d_decay[y] -= term;
            }
    }

    // d_v = tile, which f(tile, first key, first column) fills.
    template <class F> KT_INLINE void values_from(F&& f) {
        by_rows(row.keys.count, [&](auto rows, int64_t j) {
            constexpr int R = decltype(rows)::value;
            by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                constexpr int N = decltype(cols)::value;
                Tile<T, R, N> tile;
                f(tile, j, c);
                tile.store(d_v + j * s.Mp + c, s.Mp);
            });
        });
    }

    void put_tokens(const View& view, int64_t at, int64_t t, int64_t n, const Side<T>& side) {
        to_rows(lanes.dx, s.Cp, n, s.d, token_rows, s.d);
        const T root = T(p.features.root_scale);
        for (int64_t i = 0; i < n; ++i) {
            T* one = token_rows + i * s.d;
            if (side.hidden(i)) std::fill(one, one + s.d, T(0));
            if (root != T(1))
                for (int64_t f = 0; f < s.d; ++f) one[f] *= root;
            put(view, at, t + i, s.d, one);
        }
    }

    void put(const View& view, int64_t at, int64_t t, int64_t width, T* one) {
        if (adds) {
            read_token<T>(view, p.type, at, t, width, T(1), before);
            for (int64_t i = 0; i < width; ++i) one[i] += before[i];
        }
        write_token(view, p.type, at, t, width, one);
    }

    const Sizes<T>& s;
    const Problem& p;
    const Gradient& g;
    OutputGradient<T> out;
    KernelGradient<T, Kernel> lanes;
    T *ones, *v_lanes, *weights, *d_v;
    T *token_rows, *before;  // tokens to be written; one that was there before
};

}  // namespace KT_ISA
}  // namespace kt
