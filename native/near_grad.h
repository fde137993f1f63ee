// The gradient of the near part of a row. With Pᵢⱼ the weights, D = dO of the row and δᵢ = Dᵢ·Oᵢ,
//
//     dSᵢⱼ = Pᵢⱼ (Dᵢ·vⱼ − δᵢ)     dqᵢ = s Σⱼ dSᵢⱼ kⱼ     dkⱼ = s Σᵢ dSᵢⱼ qᵢ     dvⱼ = Σᵢ Pᵢⱼ Dᵢ
//
// The normaliser is common to near and far, so what δ takes from the near part is the gradient of the
// far part's logarithm with the other sign: of the gain, and where it is relative of the largest Sᵢⱼ.
#pragma once

#include "window.h"

namespace kt {
namespace KT_ISA {

constexpr int64_t NEAR_GRADIENT_BLOCK = 96;

template <class T> class NearGradient {
  public:
    // p without its map: the near part needs no turns of far keys.
    NearGradient(const Problem& p, const Gradient& g, bool far)
        : p(p), g(g), near(p, NEAR_GRADIENT_BLOCK, 1), head(near.heads[0]), d(p.features.inputs), M(p.width), Mp(near.Mp),
          dp(near.dp), Kp(near.Kp), far(far) {
        const int64_t n = NEAR_GRADIENT_BLOCK;
        Arena& arena = near.arena;
        d_out = arena.take<T>(n * Mp);
        line_ = arena.take<T>(std::max(Mp, dp));
        delta = arena.take<T>(n);
        level = arena.take<T>(n);
        share = arena.take<T>(n);
        v_lanes = arena.take<T>(Mp * Kp + TILE_COLUMNS<T>);
        P = arena.take<T>(n * Kp);
        dS = arena.take<T>(n * Kp);
        dq = arena.take<T>(n * dp);
        term.resize(std::size_t(n));
        top.resize(std::size_t(n));
        best.resize(std::size_t(n));
    }

    // Adds to what the far part has written.
    void run(int64_t r, const Line& line, Control& control) {
        const int64_t keys = line.segments.back().end;
        Arena own;
        const bool straight = line.key.empty() && place_straight(g.d_k, r, d, dp, d_keys, key_step) &&
                              place_straight(g.d_v, r, M, Mp, d_values, value_step);
        if (!straight) {
            const int64_t count = keys + p.sinks;
            key_step = dp;
            value_step = Mp;
            d_keys = own.take<T>(count * dp);
            d_values = own.take<T>(count * Mp);
            std::fill(d_keys, d_keys + count * dp, T(0));
            std::fill(d_values, d_values + count * Mp, T(0));
        }
        for (int64_t h = 0; h < p.groups; ++h) {
            const int64_t q = r * p.groups + h;
            double gain = 0;
            for (const Turn& turn : turns(p, line, NEAR_GRADIENT_BLOCK)) {
                if (control.stopped()) return;
                const Line::Segment& segment = line.segments[std::size_t(turn.segment)];
                near.see(line, segment, turn.token, turn.queries);
                if (turn.queries) gain += block(r, q, line, segment, turn.token, turn.queries);
            }
            if (g.d_gain) g.d_gain[q] = gain;
        }
        for (int64_t a = 0; a < keys && !straight; ++a) {
            const int64_t id = line.at(a);
            add_token(id < 0 ? g.d_near_k : g.d_k, r, id < 0 ? -1 - id : id, d, d_keys + a * dp);
            add_token(id < 0 ? g.d_near_v : g.d_v, r, id < 0 ? -1 - id : id, M, d_values + a * Mp);
        }
        for (std::size_t i = 0; i < line.kept_sinks.size(); ++i) {
            const int64_t slot = -1 - line.kept_sinks[i], at = keys + slot;
            add_token(g.d_near_k, r, slot, d, d_keys + at * dp);
            add_token(g.d_near_v, r, slot, M, d_values + at * Mp);
        }
    }

  private:
    // Whether gradients of tokens can be added up where they are wanted.
    bool place_straight(const View& view, int64_t r, int64_t width, int64_t padded, T*& at, int64_t& step) const {
        if (width != padded || !direct<T>(view, p.type, r, width)) return false;
        at = reinterpret_cast<T*>(view.at(r, 0));
        step = view.token / int64_t(sizeof(T));
        return true;
    }

    void add_token(const View& view, int64_t row, int64_t t, int64_t width, const T* more) {
        read_token<T>(view, p.type, row, t, width, T(1), line_);
        for (int64_t i = 0; i < width; ++i) line_[i] += more[i];
        write_token(view, p.type, row, t, width, line_);
    }

    // dO, δ and what the weights are relative to, of the n queries at hand.
    void load_output(int64_t q, int64_t first, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t t = first + i, at = p.slot(q, t);
            T* to = d_out + i * Mp;
            const double total = p.near_normalizer[at];
            delta[i] = share[i] = level[i] = T(0);
            term[std::size_t(i)] = 0;
            std::fill(to, to + Mp, T(0));
            if (total == 0 || (head.q.any_bad && head.q.bad[std::size_t(i)])) continue;
            read_token<T>(g.d_output, p.output_type, q, t, M, T(1), to);
            read_token<T>(p.output, p.output_type, q, t, M, T(1), line_);
            T mixed = 0;
            for (int64_t c = 0; c < M; ++c) {
                if (line_[c] != line_[c]) to[c] = 0;  // what NaN has spoilt depends on nothing
                if (to[c] != 0) mixed += to[c] * line_[c];
            }
            if (p.normalize)
                delta[i] = mixed;
            else
                term[std::size_t(i)] = double(mixed);
            level[i] = T(p.near_reference[at]);
            share[i] = T(1 / total);
            top[std::size_t(i)] = T(p.near_top[at]);
        }
    }

    // One block: returns its part of the gradient of the gain.
    double block(int64_t r, int64_t q, const Line& line, const Line::Segment& segment, int64_t t,
                 int64_t n) {
        near.load_queries(head, q, t, n);
        load_output(q, t, n);
        std::fill(dq, dq + n * dp, T(0));
        std::fill(best.begin(), best.end(), int64_t(-1));
        near.each_panel(r, line, segment, n, [&](int64_t base) {
            const Panel<T>& panel = near.panel;
            to_lanes(panel.v.x, panel.v.stride, panel.count, panel.columns, M, v_lanes, Kp);
            std::fill(P, P + n * Kp, T(0));
            std::fill(dS, dS + n * Kp, T(0));
            weights(n, base, line);
            to_queries(n, base);
            to_keys(n, base, line, segment);
        });
        double gain = 0;
        for (int64_t i = 0; i < n; ++i) {
            if (far && share[i] != T(0)) {
                gain += term[std::size_t(i)];
                if (p.relative && best[std::size_t(i)] >= 0) to_largest(r, line, i);
            }
            add_scaled(q, t + i, dq + i * dp);
        }
        return gain;
    }

    void add_scaled(int64_t q, int64_t t, T* one) {
        for (int64_t f = 0; f < d; ++f) one[f] *= T(p.near_scale);
        add_token(g.d_q, q, t, d, one);
    }

    // The relative gain moves with the largest exponent of its row.
    void to_largest(int64_t r, const Line& line, int64_t i) {
        const int64_t at = best[std::size_t(i)], keys = line.segments.back().end;
        const int64_t id = at < keys ? line.at(at) : -1 - (at - keys);
        read_token<T>(id < 0 ? p.near_k : p.k, p.type, r, id < 0 ? -1 - id : id, d, T(1), line_);
        const T by = T(term[std::size_t(i)]);
        for (int64_t f = 0; f < d; ++f) {
            dq[i * dp + f] += by * line_[f];
            d_keys[at * key_step + f] += by * head.q.x[i * dp + f];
        }
    }

    // P and dS of all pairs that the panel holds.
    void weights(int64_t n, int64_t base, const Line& line) {
        const Panel<T>& panel = near.panel;
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const auto reach = near.reach(i, R, base);
            Vec<T> total[R] = {};
            near.tiles(reach, [&](auto vecs, int64_t j) __attribute__((always_inline)) {
                constexpr int N = decltype(vecs)::value;
                Tile<T, R, N> a, b;
                a.clear();
                a.add(head.q.x + i * dp, dp, 1, panel.lanes + j, Kp, d);
                if (p.relative && far) note_top<R, N>(a, i, j, base, line);
                b.clear();
                b.add(d_out + i * Mp, Mp, 1, v_lanes + j, Kp, M);
                a.change([&](Vec<T> y, int x, int) __attribute__((always_inline)) {
                    const Vec<T> s = y - level[i + x];
                    return (p.normalize ? exp_down<T>(s) : exp<false>(s)) * share[i + x];
                });
                near.template hide<R, N>(a, i, j, base, Vec<T>{});
                b.each([&](int x, int c) __attribute__((always_inline)) {
                    b.acc[x][c] = a.acc[x][c] * (b.acc[x][c] - delta[i + x]);
                    total[x] += b.acc[x][c];
                });
                a.store(P + i * Kp + j, Kp);
                b.store(dS + i * Kp + j, Kp);
            });
            for (int x = 0; x < R && far; ++x) term[std::size_t(i + x)] -= double(sum<T>(total[x]));
        });
    }

    // Notes the first key that has the largest exponent of its row, which forward has told.
    template <int R, int N>
    KT_INLINE void note_top(const Tile<T, R, N>& tile, int64_t i, int64_t j, int64_t base, const Line& line) {
        for (int x = 0; x < R; ++x)
            for (int c = 0; c < N; ++c) {
                T hit[LANES<T>];
                store(hit, from_bits<T>(bits<T>(splat(T(1))) & (tile.acc[x][c] == splat(top[std::size_t(i + x)]))));
                for (int l = 0; l < LANES<T>; ++l) {
                    const int64_t at = j + c * LANES<T> + l;
                    if (hit[l] == T(0) || best[std::size_t(i + x)] >= 0 || at >= near.panel.count) continue;
                    if (near.sees(i + x, at, base)) best[std::size_t(i + x)] = place(at, base, line);
                }
            }
    }

    // Where the gradients of the key at index j of the panel are kept.
    int64_t place(int64_t j, int64_t base, const Line& line) const {
        if (j >= near.panel.fronts) return base + j - near.panel.fronts;
        const int64_t at = near.in_front[std::size_t(j)];
        return at < 0 ? line.segments.back().end + (-1 - at) : at;
    }

    // dq += dS·K
    void to_queries(int64_t n, int64_t base) {
        const Panel<T>& panel = near.panel;
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const auto reach = near.reach(i, R, base);
            if (reach.none()) return;
            const int64_t sunk = std::min(reach.sunk, panel.count);
            by_cols<T>(dp, [&](auto cols, int64_t c) {
                constexpr int C = decltype(cols)::value;
                accumulate<R, C>(dq + i * dp + c, dp, [&](Tile<T, R, C>& tile) {
                    if (sunk) tile.add(dS + i * Kp, Kp, 1, panel.k.x + c, panel.k.stride, sunk);
                    if (reach.to > reach.seen)
                        tile.add(dS + i * Kp + reach.seen, Kp, 1,
                                 panel.k.x + reach.seen * panel.k.stride + c, panel.k.stride,
                                 reach.to - reach.seen);
                });
            });
        });
    }

    template <int R, int C, class F> KT_INLINE void accumulate(T* to, int64_t stride, F&& f) {
        Tile<T, R, C> tile;
        tile.load(to, stride);
        f(tile);
        tile.store(to, stride);
    }

    // dk += dSᵀ·(s·q), dv += Pᵀ·dO
    void to_keys(int64_t n, int64_t base, const Line& line, const Line::Segment&) {
        const Panel<T>& panel = near.panel;
        for (int64_t j = 0; j < panel.fronts; ++j) keys_from<1>(j, place(j, base, line), 0, n);
        by_rows(panel.count - panel.fronts, [&](auto rows, int64_t j) {
            constexpr int R = decltype(rows)::value;
            const int64_t a = base + j;
            int64_t from = 0, to = n;
            if (a >= near.sinks_end || p.causal)
                while (from < n && near.hi[std::size_t(from)] <= a) ++from;
            if (a >= near.sinks_end)
                while (to > from && near.lo[std::size_t(to - 1)] > a + R - 1) --to;
            if (to > from) keys_from<R>(j + panel.fronts, a, from, to);
        });
    }

    template <int R> void keys_from(int64_t j, int64_t at, int64_t from, int64_t to) {
        by_cols<T>(dp, [&](auto cols, int64_t c) {
            constexpr int C = decltype(cols)::value;
            accumulate<R, C>(d_keys + at * key_step + c, key_step, [&](Tile<T, R, C>& tile) {
                tile.add(dS + from * Kp + j, 1, Kp, head.q.x + from * dp + c, dp, to - from);
            });
        });
        by_cols<T>(Mp, [&](auto cols, int64_t c) {
            constexpr int C = decltype(cols)::value;
            accumulate<R, C>(d_values + at * value_step + c, value_step, [&](Tile<T, R, C>& tile) {
                tile.add(P + from * Kp + j, 1, Kp, d_out + from * Mp + c, Mp, to - from);
            });
        });
    }

    const Problem& p;
    const Gradient& g;
    Near<T> near;
    typename Near<T>::Head& head;
    const int64_t d, M, Mp, dp, Kp;
    const bool far;
    T *d_out, *line_, *delta, *level, *share, *v_lanes, *P, *dS, *dq;
    T *d_keys = nullptr, *d_values = nullptr;  // by key in order, then of sinks that the state has kept
    int64_t key_step = 0, value_step = 0;
    std::vector<double> term;
    std::vector<T> top;
    std::vector<int64_t> best;
};

}  // namespace KT_ISA
}  // namespace kt
