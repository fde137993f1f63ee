// The gradient of a row, φ recomputed and nothing of size n·m kept. Two sweeps. Forward, with the
// state: dq. Backward, with G, the gradient of the state: dk and dv. With V~ = [V, 1] and N~ the
// sums of a row before it is normalised,
//
//     dφ(qᵢ) = S~ dN~ᵢ + Σ_{j≤i} (dN~ᵢ·v~ⱼ) φ(kⱼ)        G ← G + φ(qᵢ) dN~ᵢᵀ
//     dφ(kⱼ) = G v~ⱼ + Σ_{i≥j} (dN~ᵢ·v~ⱼ) φ(qᵢ)          dvⱼ = Gᵀφ(kⱼ) + Σ_{i≥j} Aᵢⱼ dNᵢ
#pragma once

#include "window.h"

namespace kt {
namespace KT_ISA {

template <class T> constexpr double HIGH = sizeof(T) == 4 ? 70 : 600;  // of exponents of far weights

template <class T> class RowGradient {
  public:
    // d_weight, d_bias: one matrix for each query head of the row, then one for its keys.
    RowGradient(const Sizes<T>& s, const Gradient& g, double* d_weight, double* d_bias)
        : s(s), p(s.p), g(g), row(s, true), sums(s, row.arena), G(s, row.arena), d_weight(d_weight),
          d_bias(d_bias) {
        Arena& arena = row.arena;
        const int64_t C = s.Cp, slack = TILE_VECS * LANES<T>;
        dn = arena.take<T>(C * s.Mp);
        dn_lanes = arena.take<T>(s.Mp * C + slack);
        v_lanes = arena.take<T>(s.Mp * C + slack);
        d_den = arena.take<T>(C);
        pairs = arena.take<T>(C * C + slack);
        weights = arena.take<T>(C * C + slack);
        d_phi = arena.take<T>(s.panel * C + slack);
        dx = arena.take<T>((s.d + 1) * C + slack);
        d_v = arena.take<T>(C * s.Mp);
        line = arena.take<T>(std::max(s.Mp, s.d));
        token_rows = arena.take<T>(C * s.d);
        terms = arena.take<double>(C);
        products = arena.take<double>(C);
    }

    void run(int64_t r, Control& control) {
        begin(r);
        if (p.causal)
            causal(r, control);
        else
            full(r, control);
        G.write(s, g.d_sums + r * s.m * (s.M + 1));
    }

    // The same for threads that share a row (kernels.cpp), a block of n tokens from t on at a time: what
    // the block adds to the sums, and its queries by the sums before it …
    void add_keys(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        row.absorb(sums, r, stop);
    }
    void queries(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        sums.lent(stop, [&] { query_side(r, 0, t, n, true, nullptr); });
    }
    // … what it adds to G, and its keys by the G of all that follows.
    void add_queries(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_queries(r, r, t, n, p.mask);
        load_output(r, t, n);
        std::fill(G.Z, G.Z + s.m, 0.0);
        gather(n, 1, stop.u.data());
        std::copy(G.z, G.z + s.m, stop.z.begin());
    }
    void keys(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        alone = true;
        G.lent(stop, [&] { key_side(r, true, nullptr); });
    }

    // The far part of a row in which some keys are near (window.h). What is written is added to.
    void run(int64_t r, const Line& line, Control& control) {
        adds = true;
        begin(r);
        struct Done {
            const Turn* turn;
            int64_t first, count;
            double ref;
        };
        std::vector<Done> all;
        const std::vector<Turn> plan = turns(p, line, s.C);
        for (const Turn& turn : plan) {
            if (turn.fresh) sums.forget(s);
            const int64_t count = std::max(turn.queries, turn.keys);
            if (count == 0) all.push_back({&turn, 0, 0, sums.ref});
            for (int64_t first = 0; first < count;) {
                if (control.stopped()) return;
                int64_t n = count - first;
                if (turn.keys) {
                    row.load_keys(r, line, turn.key + first, n, sums.ref);
                    n = row.count;
                } else {
                    row.no_keys(sums.ref);
                }
                all.push_back({&turn, first, n, sums.ref});
                for (int64_t h = 0; h < p.groups && turn.queries; ++h)
                    query_side(r, h, turn.token + first, n, turn.keys > 0, nullptr);
                if (turn.keys) row.absorb(sums, r);
                first += n;
            }
        }
        for (auto done = all.rbegin(); done != all.rend(); ++done) {
            if (control.stopped()) return;
            const Turn& turn = *done->turn;
            const int64_t t = turn.token + done->first;
            if (turn.keys) {
                row.load_keys(r, line, turn.key + done->first, done->count, done->ref);
                late_keys(r, turn.queries > 0, t, line.at(turn.key + done->first) < 0);
            } else {
                row.no_keys(done->ref);
                for (int64_t h = 0; h < p.groups && done->count; ++h) {
                    row.load_queries(r * p.groups + h, r, t, done->count, View{});
                    load_output(r * p.groups + h, t, done->count);
                    gather(done->count, 1);
                }
            }
            if (turn.fresh && done->first == 0) G.forget(s);
        }
        if (!p.reversed) G.write(s, g.d_sums + r * s.m * (s.M + 1));
    }

  private:
    // Keys of the call, or kept from before.
    void late_keys(int64_t r, bool inside, int64_t at, bool kept) {
        if (kept)
            key_side(r, inside, nullptr, at, g.d_near_k, g.d_near_v, p.near_positions);
        else
            key_side(r, inside, nullptr, at, g.d_k, g.d_v, p.k_positions);
    }

    void begin(int64_t r) {
        sums.begin(s, r);
        if (p.reversed) return G.forget(s);
        G.read(s, g.d_sums + r * s.m * (s.M + 1));
        G.narrow(s);
    }

    struct Piece {
        int64_t first, count;
        double ref;  // of the state before it
    };

    void causal(int64_t r, Control& control) {
        std::vector<Piece> pieces;
        double* d_decay = g.d_log_decay ? g.d_log_decay + r * p.keys * p.decay_width : nullptr;
        if (d_decay) std::fill(d_decay, d_decay + p.keys * p.decay_width, 0.0);
        for (int64_t t = 0; t < p.keys;) {
            if (control.stopped()) return;
            const int64_t n = row.extent(r, t);
            row.load_keys(r, t, n, sums.ref);
            pieces.push_back({t, row.count, sums.ref});
            if (s.by_feature) sums.narrow(s, row.enter, true);
            prefetch(r, t + row.count, std::min(s.C, p.keys - t - row.count));
            for (int64_t h = 0; h < p.groups; ++h) query_side(r, h, t, row.count, true, d_decay);
            row.absorb(sums, r);
            t += row.count;
        }
        std::vector<double> end(std::size_t(std::max<int64_t>(1, p.decay_width)), 0.0);
        if (d_decay) final_term(end);
        for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
            if (control.stopped()) return;
            row.extent(r, piece->first);
            row.load_keys(r, piece->first, piece->count, piece->ref);
            const int64_t n = std::min(s.C, piece->first);
            prefetch(r, piece->first - n, n);
            key_side(r, true, d_decay);
        }
        if (d_decay) cumulate(r, d_decay, end);
    }

    void full(int64_t r, Control& control) {
        std::vector<Piece> pieces;
        for (int64_t t = 0; t < p.keys;) {
            if (control.stopped()) return;
            row.load_keys(r, t, row.extent(r, t), sums.ref);
            pieces.push_back({t, row.count, sums.ref});
            row.absorb(sums, r);
            t += row.count;
        }
        row.no_keys(sums.ref);
        for (int64_t h = 0; h < p.groups; ++h)
            for (int64_t t = 0; t < p.queries; t += s.C) {
                if (control.stopped()) return;
                const int64_t n = std::min(s.C, p.queries - t);
                query_side(r, h, t, n, false, nullptr);
                gather(n, 1);
            }
        for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
            if (control.stopped()) return;
            row.load_keys(r, piece->first, piece->count, piece->ref);
            key_side(r, false, nullptr);
        }
    }

    // What the block from token t will read, fetched while this one is computed.
    void prefetch(int64_t r, int64_t t, int64_t n) {
        row.prefetch = Prefetch{};
        if (p.groups > 1 || n <= 0) return;
        const int64_t size = size_of(p.type), out = size_of(p.output_type);
        row.prefetch.add(p.q, r, t, n, s.d, size);
        row.prefetch.add(p.k, r, t, n, s.d, size);
        row.prefetch.add(p.v, r, t, n, s.M, size);
        row.prefetch.add(p.output, r, t, n, s.M, out);
        row.prefetch.add(g.d_output, r, t, n, s.M, out);
    }

    // Σ U ⊙ dU of the state that is returned: what a decay of the whole of it changes.
    void final_term(std::vector<double>& end) const {
        for (int64_t i = 0; i < s.m; ++i) {
            double total = sums.Z[i] * G.Z[i];
            for (int64_t c = 0; c < s.M; ++c) total += sums.U[i * s.Mp + c] * G.U[i * s.Mp + c];
            end[std::size_t(s.by_feature ? i : 0)] += total;
        }
    }

    // The weight of token j in row i is e^{B_i − B_j}, B the decays summed up: the gradient of a
    // decay is that of all later B.
    void cumulate(int64_t r, double* d_decay, std::vector<double>& later) const {
        for (int64_t t = p.keys - 1; t >= 0; --t) {
            const bool gone = row.restarts(r, t), hidden = row.hidden_key(r, t);
            for (int64_t f = 0; f < p.decay_width; ++f) {
                double& d = d_decay[t * p.decay_width + f];
                later[std::size_t(f)] += d;
                d = gone || hidden ? 0 : later[std::size_t(f)];
                if (gone) later[std::size_t(f)] = 0;
            }
        }
    }

    // What query t + i is divided by, in the units of its far part; or multiplied, if not normalised.
    double normalizer(int64_t q, int64_t t, int64_t i) const {
        const int64_t at = p.slot(q, t + i);
        if (!p.near_normalizer) return p.normalizer[at];
        // Finite: sums over no keys are 0, whatever their scale would be.
        const double unit = std::min(row.far_scale(i, p.near_top[at]) - p.near_reference[at], HIGH<T>);
        if (p.near_normalizer[at] == 0) return 0;
        return p.normalize ? p.near_normalizer[at] * std::exp(-unit) : std::exp(unit);
    }

    // dN~ of n queries from t: in rows (dn), in lanes (dn_lanes), and of the normaliser (d_den).
    void load_output(int64_t q, int64_t t, int64_t n) {
        const bool straight = s.M == s.Mp && direct<T>(g.d_output, p.output_type, q, s.M) &&
                              direct<T>(p.output, p.output_type, q, s.M);
        for (int64_t i = 0; i < row.columns; i += LANES<T>) {
            Vec<T> total[LANES<T>] = {};
            double factor[LANES<T>] = {};  // 0: the query depends on nothing
            for (int l = 0; l < LANES<T>; ++l) {
                const int64_t at = i + l;
                const double saved = at < n ? normalizer(q, t, at) : 0;
                const bool none = (row.q.any_hidden && at < n && row.q.hidden[std::size_t(at)]) || saved == 0;
                if (!none) factor[l] = p.normalize ? 1 / saved : saved;
                total[l] = one_output(q, t + at, T(factor[l]), straight, dn + at * s.Mp);
            }
            T mixed[LANES<T>];
            store(mixed, sums_of<T>(total));
            for (int l = 0; l < LANES<T>; ++l) {
                d_den[i + l] = p.normalize ? -mixed[l] : T(0);
                terms[i + l] = p.normalize || factor[l] == 0 ? 0 : double(mixed[l]) / factor[l];  // N~·dN~
            }
        }
        to_lanes(dn, s.Mp, row.columns, row.columns, s.Mp, dn_lanes, s.Cp);
    }

    // dN of a query, and in lanes the terms of dN·O.
    KT_INLINE Vec<T> one_output(int64_t q, int64_t t, T factor, bool straight, T* to) {
        Vec<T> total{};
        if (factor == T(0)) {
            std::fill(to, to + s.Mp, T(0));
            return total;
        }
        const T *d_out = to, *out = line;
        if (straight) {
            d_out = reinterpret_cast<const T*>(g.d_output.at(q, t));
            out = reinterpret_cast<const T*>(p.output.at(q, t));
        } else {
            read_token<T>(g.d_output, p.output_type, q, t, s.M, T(1), to);
            read_token<T>(p.output, p.output_type, q, t, s.M, T(1), line);
            std::fill(to + s.M, to + s.Mp, T(0));
            std::fill(line + s.M, line + s.Mp, T(0));
        }
        for (int64_t c = 0; c < s.Mp; c += LANES<T>) {
            const Vec<T> o = load(out + c);
            const Ints<T> fine = o == o;  // what NaN has spoilt depends on nothing
            const Vec<T> d = from_bits<T>(bits<T>(load(d_out + c) * factor) & fine);
            total += d * from_bits<T>(bits<T>(o) & fine);
            store(to + c, d);
        }
        return total;
    }

    // pairs[j][i] = (dN~ᵢ · v~ⱼ) for i ≥ j, queries in lanes; for the quadratic map times dA/dt.
    void pairs_by_key() {
        const int64_t n = row.count;
        by_rows(n, [&](auto rows, int64_t j) {
            constexpr int R = decltype(rows)::value;
            const int64_t step = TILE_VECS * LANES<T>;
            for (int64_t i = 0; i < row.columns; i += step) {
                Tile<T, R, TILE_VECS> tile;
                tile.clear();
                if (i + step > j) {
                    tile.add(row.v.x + j * row.v.stride, row.v.stride, 1, dn_lanes + i, s.Cp, s.M);
                    Tile<T, R, TILE_VECS> slope;
                    slope.clear();
                    if (s.quadratic) {
                        slope.add(row.x_k + s.Cp + j, 1, s.Cp, row.x_q + s.Cp + i, s.Cp, s.d);
                    }
                    Ints<T> lane;
                    for (int l = 0; l < LANES<T>; ++l) lane[l] = l;
                    for (int a = 0; a < R; ++a)
                        for (int c = 0; c < TILE_VECS; ++c) {
                            Vec<T> y = tile.acc[a][c] + load(d_den + i + c * LANES<T>);
                            if (row.eb != 1) y *= T(row.eb);
                            if (s.quadratic) y *= slope_of(slope.acc[a][c]) * key_share(j + a);
                            const Ints<T> later = (lane + int(i + c * LANES<T> - j - a)) >= 0;
                            tile.acc[a][c] = from_bits<T>(bits<T>(y) & later);
                        }
                }
                put(tile, pairs, j, i);
            }
        });
    }

    template <int R, int N> void put(const Tile<T, R, N>& tile, T* to, int64_t i, int64_t j) const {
        for (int a = 0; a < R; ++a)
            for (int c = 0; c < N; ++c) store(to + (i + a) * s.Cp + j + c * LANES<T>, tile.acc[a][c]);
    }

    KT_INLINE Vec<T> slope_of(Vec<T> t) const {
        return t * T(2 * p.features.c2) + T(p.features.c1);
    }

    T key_share(int64_t j) const {
        return row.keep[j] == 0 ? T(0) : s.decays ? row.factor[j] : T(1);
    }

    // weights[i][j] = A and pairs[i][j] = (dN~ᵢ · v~ⱼ) for j ≤ i, keys in lanes.
    void pairs_by_query(int64_t n) {
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const int64_t step = TILE_VECS * LANES<T>;
            for (int64_t j = 0; j < row.columns; j += step) {
                Tile<T, R, TILE_VECS> a, b;
                a.clear();
                b.clear();
                if (j < i + R) {
                    row.template weights<R, TILE_VECS>(a, i, j);
                    b.add(dn + i * s.Mp, s.Mp, 1, v_lanes + j, s.Cp, s.M);
                    Tile<T, R, TILE_VECS> slope;
                    slope.clear();
                    if (s.quadratic) {
                        slope.add(row.x_q + s.Cp + i, 1, s.Cp, row.x_k + s.Cp + j, s.Cp, s.d);
                    }
                    Ints<T> lane;
                    for (int l = 0; l < LANES<T>; ++l) lane[l] = l;
                    for (int x = 0; x < R; ++x)
                        for (int c = 0; c < TILE_VECS; ++c) {
                            Vec<T> y = b.acc[x][c] + d_den[i + x];
                            if (s.quadratic && s.decays) add_terms(a.acc[x][c] * y, j + c * LANES<T>);
                            if (row.eb != 1) y *= T(row.eb);
                            if (s.quadratic) {
                                y *= slope_of(slope.acc[x][c]);
                                const int64_t at = j + c * LANES<T>;
                                if (s.decays) y *= load(row.factor + at);
                                y = from_bits<T>(bits<T>(y) & (load(row.keep + at) != Vec<T>{}));
                            }
                            const Ints<T> past = (lane + int(j + c * LANES<T> - i - x)) <= 0;
                            b.acc[x][c] = from_bits<T>(bits<T>(y) & past);
                        }
                }
                put(a, weights, i, j);
                put(b, pairs, i, j);
            }
        });
    }

    void add_terms(Vec<T> products, int64_t j) {
        for (int l = 0; l < LANES<T>; ++l) key_terms[std::size_t(j + l)] += double(products[l]);
    }

    // dφ[r][·] = factor·(S[r]·B + z[r]·last) for features r0 …, tokens in lanes.
    void from_state(const Sums<T>& from, int64_t r0, int64_t size, const T* lanes, const T* last,
                    T factor) {
        by_rows(size, [&](auto rows, int64_t r) {
            constexpr int R = decltype(rows)::value;
            by_cols<T>(row.columns, [&](auto cols, int64_t i) {
                constexpr int N = decltype(cols)::value;
                Tile<T, R, N> tile;
                row.prefetch.step(4);
                tile.clear();
                tile.add(from.u + (r0 + r) * s.Mp, s.Mp, 1, lanes + i, s.Cp, s.M);
                for (int a = 0; a < R; ++a)
                    for (int c = 0; c < N; ++c) {
                        const Vec<T> one = last ? load(last + i + c * LANES<T>) : splat(T(1));
                        store(d_phi + (r + a) * s.Cp + i + c * LANES<T>,
                              (tile.acc[a][c] + one * from.z[r0 + r + a]) * factor);
                    }
            });
        });
    }

    // to[r][·] += Σ_k A(r, k)·pairs[k][·], k from `low(column)` to `high(column)`.
    template <class Low, class High>
    void from_pairs(const T* a, int64_t rows_, T* to, Low low, High high) {
        by_rows(rows_, [&](auto rows, int64_t r) {
            constexpr int R = decltype(rows)::value;
            by_cols<T>(row.columns, [&](auto cols, int64_t i) {
                constexpr int N = decltype(cols)::value;
                const int64_t from = low(i), end = high(i + N * LANES<T>);
                if (end <= from) return;
                Tile<T, R, N> tile;
                for (int x = 0; x < R; ++x)
                    for (int c = 0; c < N; ++c)
                        tile.acc[x][c] = load(to + (r + x) * s.Cp + i + c * LANES<T>);
                tile.add(a + r * s.Cp + from, s.Cp, 1, pairs + from * s.Cp + i, s.Cp, end - from);
                for (int x = 0; x < R; ++x)
                    for (int c = 0; c < N; ++c)
                        store(to + (r + x) * s.Cp + i + c * LANES<T>, tile.acc[x][c]);
            });
        });
    }

    // dq of query head h for n tokens from t; `inside`: they also saw the block's keys.
    void query_side(int64_t r, int64_t h, int64_t t, int64_t n, bool inside, double* d_decay) {
        const int64_t q = r * p.groups + h;
        row.load_queries(q, inside ? r : q, t, n, inside ? p.mask : p.query_mask);
        load_output(q, t, n);
        if (inside) pairs_by_key();
        auto zero = [](int64_t) { return int64_t(0); };
        auto until = [&](int64_t i) { return std::min(i, row.count); };
        if (s.quadratic) {
            std::fill(dx, dx + (s.d + 1) * s.Cp, T(0));
            for (int64_t r0 = 0; r0 < s.m && row.ea != 0; r0 += s.panel) {
                const int64_t size = std::min(s.panel, s.m - r0);
                from_state(sums, r0, size, dn_lanes, d_den, T(row.ea));
                row.map.panel_back(row.x_q, d_phi, row.columns, r0, size, dx);
            }
            if (inside) from_pairs(row.x_k + s.Cp, s.d, dx + s.Cp, zero, until);
            for (int64_t i = 0; i < n && d_decay; ++i) d_decay[t + i] += terms[i];
        } else {
            if (row.ea != 0)
                from_state(sums, 0, s.m, dn_lanes, d_den, T(row.ea));
            else
                std::fill(d_phi, d_phi + s.m * s.Cp, T(0));
            if (inside) from_pairs(row.key, s.m, d_phi, zero, until);
            if (s.by_feature && inside)
                for (int64_t f = 0; f < s.m; ++f) {
                    row.feature_factors(f, false);
                    for (int64_t j = 0; j < row.columns; ++j) d_phi[f * s.Cp + j] *= row.factor[j];
                }
            if (d_decay) decay_terms(row.phi_q, t, n, d_decay, 1, row.q);
            row.positions(p.q_positions, q, t, n);
            row.map.back(row.x_q, row.phi_q, d_phi, row.columns, row.query_weight(q), row.where, dx,
                         d_weight ? d_weight + h * matrix() : nullptr,
                         d_bias ? d_bias + h * p.features.columns : nullptr);
        }
        put_tokens(g.d_q, q, t, n, row.q);
    }

    int64_t matrix() const { return p.features.inputs * p.features.columns; }

    // d_decay[t] += sign · φ·dφ, per token or per token and feature.
    void decay_terms(const T* phi, int64_t t, int64_t n, double* d_decay, double sign,
                     const Block<T>& block) {
        auto hidden = [&](int64_t j) { return block.any_hidden && block.hidden[std::size_t(j)]; };
        for (int64_t j = 0; j < n && s.by_feature; ++j)
            for (int64_t f = 0; f < s.m && !hidden(j); ++f)
                d_decay[(t + j) * s.m + f] += sign * double(phi[f * s.Cp + j]) * double(d_phi[f * s.Cp + j]);
        if (s.by_feature) return;
        std::fill(products, products + row.columns, 0.0);
        for (int64_t f = 0; f < s.m; ++f)
            for (int64_t j = 0; j < row.columns; j += LANES<T>)
                add_product<T>(products + j, load(phi + f * s.Cp + j), load(d_phi + f * s.Cp + j));
        for (int64_t j = 0; j < n; ++j)
            if (!hidden(j)) d_decay[t + j] += sign * products[j];
    }

    void put_tokens(const View& view, int64_t at, int64_t t, int64_t n, const Block<T>& block) {
        to_rows(dx + (s.quadratic ? s.Cp : 0), s.Cp, n, s.d, token_rows, s.d);
        const T root = T(p.features.root_scale);
        for (int64_t i = 0; i < n; ++i) {
            T* one = token_rows + i * s.d;
            const bool hidden = block.any_hidden && block.hidden[std::size_t(i)];
            if (hidden) std::fill(one, one + s.d, T(0));
            if (root != T(1))
                for (int64_t f = 0; f < s.d; ++f) one[f] *= root;
            put(view, at, t + i, s.d, one);
        }
    }

    void put(const View& view, int64_t at, int64_t t, int64_t width, T* one) {
        if (adds) {
            read_token<T>(view, p.type, at, t, width, T(1), line);
            for (int64_t i = 0; i < width; ++i) one[i] += line[i];
        }
        write_token(view, p.type, at, t, width, one);
    }

    // G += factor · φ(q)ᵀ dN~ of the n queries at hand; with `alone`, puts there what they add to it.
    void gather(int64_t n, double factor, T* alone = nullptr) {
        for (int64_t r0 = 0; r0 < s.m; r0 += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r0);
            if (s.quadratic) row.map.panel(row.x_q, row.columns, r0, size, row.phi_q);
            const T* phi = s.quadratic ? row.phi_q : row.query;
            auto share = [&](int64_t r) { return s.by_feature && p.causal ? row.enter[r] : factor; };
            for (int64_t t = 0; t < n; t += SPAN) {
                const int64_t span = std::min(SPAN, n - t);
                by_rows(size, [&](auto rows, int64_t r) {
                    constexpr int R = decltype(rows)::value;
                    by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                        constexpr int N = decltype(cols)::value;
                        Tile<T, R, N> tile;
                        row.prefetch.step(4);
                        tile.clear();
                        tile.add(phi + r * s.Cp + t, s.Cp, 1, dn + t * s.Mp + c, s.Mp, span);
                        row.template each<R, N>([&](int a, int e) {
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
            for (int64_t r = 0; r < size; r += LANES<T>) {
                const int64_t some = std::min<int64_t>(LANES<T>, size - r);
                Vec<T> total[LANES<T>] = {};
                for (int64_t j = 0; j < row.columns; j += LANES<T>)
                    for (int64_t l = 0; l < some; ++l)
                        total[l] += load(phi + (r + l) * s.Cp + j) * load(d_den + j);
                T added[LANES<T>];
                store(added, sums_of<T>(total));
                for (int64_t l = 0; l < some; ++l) {
                    G.Z[r0 + r + l] += double(added[l]) * share(r0 + r + l);
                    G.z[r0 + r + l] = T(G.Z[r0 + r + l]);
                }
            }
        }
    }

    // dk and dv of the block at hand, and G before it.
    void key_side(int64_t r, bool inside, double* d_decay) {
        key_side(r, inside, d_decay, row.first, g.d_k, g.d_v, p.k_positions);
    }

    // `at`: the first query that saw the block's keys from within.
    void key_side(int64_t r, bool inside, double* d_decay, int64_t at, const View& d_keys,
                  const View& d_values, const View& places) {
        const int64_t n = row.count, t = row.first;
        const bool scaled = s.has_scale || s.decays;
        to_lanes(row.v.x, row.v.stride, n, row.columns, s.M, v_lanes, s.Cp);
        if (scaled) G.narrow(s, row.add_block, s.by_feature);
        const Block<T>& keys = row.k;
        if (s.quadratic) std::fill(dx, dx + (s.d + 1) * s.Cp, T(0));
        if (s.quadratic && s.decays) key_terms.assign(std::size_t(s.Cp), 0.0);
        for (int64_t r0 = 0; r0 < s.m; r0 += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r0);
            const T* from = row.key;
            if (s.quadratic) {
                row.map.panel(row.x_k, row.columns, r0, size, row.phi_k);
                for (int64_t f = 0; f < size; ++f)
                    for (int64_t j = 0; j < row.columns; ++j) row.phi_k[f * s.Cp + j] *= key_share(j);
                from = row.phi_k;
            }
            by_rows(n, [&](auto rows, int64_t j) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            tile.acc[a][e] = r0 ? load(d_v + (j + a) * s.Mp + c + e * LANES<T>) : Vec<T>{};
                    tile.add(from + j, 1, s.Cp, G.u + r0 * s.Mp + c, s.Mp, size);
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            store(d_v + (j + a) * s.Mp + c + e * LANES<T>, tile.acc[a][e]);
                });
            });
            from_state(G, r0, size, v_lanes, nullptr, T(1));
            if (s.quadratic) {
                for (int64_t f = 0; f < size && d_decay; ++f)
                    for (int64_t j = 0; j < n; ++j)
                        key_terms[std::size_t(j)] +=
                            double(d_phi[f * s.Cp + j]) * double(row.phi_k[f * s.Cp + j]);
                for (int64_t f = 0; f < size; ++f)
                    for (int64_t j = 0; j < row.columns; ++j) d_phi[f * s.Cp + j] *= key_share(j);
                row.map.panel_back(row.x_k, d_phi, row.columns, r0, size, dx);
            }
        }
        for (int64_t f = 0; f < s.m && scaled; ++f) {
            const double kept = row.keep_state[s.by_feature ? f : 0];
            for (int64_t c = 0; c < s.Mp; ++c) {
                double& value = G.U[f * s.Mp + c];
                value = kept == 0 ? 0 : value * kept;
            }
            G.Z[f] = kept == 0 ? 0 : G.Z[f] * kept;
        }
        for (int64_t h = 0; h < p.groups && inside; ++h) {
            const int64_t q = r * p.groups + h;
            row.load_queries(q, r, at, n, p.mask);
            load_output(q, at, n);
            pairs_by_query(n);
            auto first = [&](int64_t j) { return std::min(j, n); };
            auto all = [&](int64_t) { return n; };
            if (s.quadratic)
                from_pairs(row.x_q + s.Cp, s.d, dx + s.Cp, first, all);
            else
                from_pairs(row.query, s.m, d_phi, first, all);
            by_rows(n, [&](auto rows, int64_t j) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            tile.acc[a][e] = load(d_v + (j + a) * s.Mp + c + e * LANES<T>);
                    tile.add(weights + j * s.Cp + j, 1, s.Cp, dn + j * s.Mp + c, s.Mp, n - j);
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            store(d_v + (j + a) * s.Mp + c + e * LANES<T>, tile.acc[a][e]);
                });
            });
            if (!alone) gather(n, row.ea);
        }
        if (!s.quadratic) {
            for (int64_t f = 0; f < s.m; ++f) {
                if (s.by_feature) row.feature_factors(f, true);
                if (scaled) row.times_factor(d_phi + f * s.Cp, d_phi + f * s.Cp);
            }
            for (int64_t j = 0; j < row.columns && !scaled; ++j)
                if (row.keep[j] == 0)
                    for (int64_t f = 0; f < s.m; ++f) d_phi[f * s.Cp + j] = 0;
            if (d_decay) decay_terms(row.phi_k, t, n, d_decay, -1, keys);
            row.positions(places, r, t, n);
            row.map.back(row.x_k, row.phi_k, d_phi, row.columns, row.key_weight(r), row.where, dx,
                         d_weight ? d_weight + p.groups * matrix() : nullptr,
                         d_bias ? d_bias + p.groups * p.features.columns : nullptr);
        }
        for (int64_t j = 0; j < n && s.quadratic && d_decay; ++j)
            if (row.keep[j] != 0) d_decay[t + j] -= key_terms[std::size_t(j)];
        put_tokens(d_keys, r, t, n, keys);
        for (int64_t i = 0; i < n; ++i) {
            T* one = d_v + i * s.Mp;
            if (keys.any_hidden && keys.hidden[std::size_t(i)]) std::fill(one, one + s.Mp, T(0));
            put(d_values, r, t + i, s.M, one);
        }
    }

    const Sizes<T>& s;
    const Problem& p;
    const Gradient& g;
    Row<T> row;
    Sums<T> sums, G;
    double *d_weight, *d_bias;
    T *dn, *dn_lanes, *v_lanes, *d_den, *pairs, *weights, *d_phi, *dx, *d_v, *line, *token_rows;
    std::vector<double> key_terms;
    bool adds = false;   // to what the gradients hold
    bool alone = false;  // others add up G
    double* terms;     // φ·dφ of each token, for maps whose φ is not formed
    double* products;  // the same for others
};

}  // namespace KT_ISA
}  // namespace kt
