// The gradient of a row, φ recomputed and nothing of size n·m kept. Two sweeps. Forward, with the
// state: dq. Backward, with G, the gradient of the state: dk and dv. With V~ = [V, 1] and N~ the
// sums of a row before it is normalised,
//
//     dφ(qᵢ) = S~ dN~ᵢ + Σ_{j≤i} (dN~ᵢ·v~ⱼ) φ(kⱼ)        G ← G + φ(qᵢ) dN~ᵢᵀ
//     dφ(kⱼ) = G v~ⱼ + Σ_{i≥j} (dN~ᵢ·v~ⱼ) φ(qᵢ)          dvⱼ = Gᵀφ(kⱼ) + Σ_{i≥j} Aᵢⱼ dNᵢ
//
// The phases of a block in the sweep forward: load_keys, query_side of every query head, absorb; and
// backward: load_keys with the state's log-scale of the first sweep, key_side.
#pragma once

#include "grad_block.h"
#include "window.h"

namespace kt {
namespace KT_ISA {

template <class T, class Kernel> class RowGradient {
  public:
    RowGradient(const Sizes<T>& s, const Gradient& g)
        : s(s), p(s.p), g(g), block(s, g), row(block.row), sums(block.sums), G(block.G) {}

    // d_weight, d_bias: one matrix for each query head of the row, then one for its keys; or null.
    void run(int64_t r, double* d_weight, double* d_bias, Control& control) {
        begin(r, d_weight, d_bias);
        if (!g.d_q.data && !g.d_k.data)
            state_alone(r, control);
        else if (p.causal)
            causal(r, control);
        else
            full(r, control);
        end(r);
    }

    // The same block by block, from token t on. `begin`, then in the sweep forward the block's queries, and
    // the sums after it. Returns how many tokens it has. `final_state`: the sums after the last block count.
    void begin(int64_t r, double* d_weight, double* d_bias) {
        block.d_weight = d_weight;
        block.d_bias = d_bias;
        sums.begin(s, r);
        p.reversed ? G.forget(s) : G.read(s, d_state(r));
    }
    int64_t queries(int64_t r, int64_t t, double* d_decay, bool final_state) {
        row.load_keys(r, t, row.extent(r, t), sums.ref);
        const int64_t n = row.keys.count;
        if (s.by_feature) sums.narrow(s, row.scaling.enter, true);
        prefetch(r, t + n, std::min(s.C, p.keys - t - n));
        for (int64_t h = 0; h < p.groups; ++h) block.query_side(r, h, t, n, true, d_decay);
        if (final_state || t + n < p.keys) row.absorb(sums, r);
        return n;
    }
    // In the sweep backward its keys, and G before it. `ref`: the sums' log-scale before the block.
    void keys(int64_t r, int64_t t, int64_t n, double ref, double* d_decay) {
        row.extent(r, t);
        row.load_keys(r, t, n, ref);
        const int64_t before = std::min(s.C, t);
        prefetch(r, t - before, before);
        block.key_side(r, true, d_decay, t == 0 && !g.d_sums);
    }
    void end(int64_t r) { G.write(s, d_state(r)); }

    // Only the sums after a block, and only G before it, where nothing but the position ends blocks.
    void sum_keys(int64_t r, int64_t t) {
        row.load_keys(r, t, row.extent(r, t), sums.ref);
        row.fetch_block(r, t + row.keys.count, true);
        row.absorb(sums, r);
    }
    void sum_queries(int64_t r, int64_t t, int64_t n) {
        const int64_t before = std::min(s.C, t);
        prefetch_queries(r, t - before, before);
        block.gather_queries(r, r, t, n, p.mask);
    }

    // For threads that share a row (kernels.cpp): what a block of n tokens from t on adds to the sums, and its
    // queries by the sums before it …
    void add_keys(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        row.absorb(sums, r, stop);
    }
    void queries(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        sums.with(stop, [&] { block.query_side(r, 0, t, n, true, nullptr); });
    }
    // … what it adds to G, and its keys by the G of all that follows.
    void add_queries(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        std::fill(G.Z, G.Z + s.m, Wide<T>(0));
        block.gather_queries(r, r, t, n, p.mask, stop.u.data());
        std::copy(G.z, G.z + s.m, stop.z.begin());
    }
    void keys(int64_t r, int64_t t, int64_t n, Stop<T>& stop) {
        row.load_keys(r, t, n, -INF);
        G.with(stop, [&] { block.key_side(r, true, nullptr, true); });
    }

    // The far part of a row in which some keys are near (window.h). What is written is added to.
    void run(int64_t r, const Line& line, double* d_weight, double* d_bias, Control& control) {
        block.adds = true;
        begin(r, d_weight, d_bias);
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
                    n = row.keys.count;
                } else {
                    row.no_keys(sums.ref);
                }
                all.push_back({&turn, first, n, sums.ref});
                for (int64_t h = 0; h < p.groups && turn.queries; ++h)
                    block.query_side(r, h, turn.token + first, n, turn.keys > 0, nullptr);
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
                for (int64_t h = 0; h < p.groups && done->count; ++h)
                    block.gather_queries(r, r * p.groups + h, t, done->count, View{});
            }
            if (turn.fresh && done->first == 0) G.forget(s);
        }
        if (!p.reversed) G.write(s, d_state(r));
    }

  private:
    // Keys of the call, or kept from before.
    void late_keys(int64_t r, bool inside, int64_t at, bool kept) {
        if (kept)
            block.key_side(r, inside, nullptr, false, at, g.d_near_k, g.d_near_v);
        else
            block.key_side(r, inside, nullptr, false, at, g.d_k, g.d_v);
    }

    // Where the gradient of the state of row r is, if it has one.
    double* d_state(int64_t r) const { return g.d_sums ? g.d_sums + r * s.m * (s.M + 1) : nullptr; }

    struct Piece {
        int64_t first, count;
        double ref;  // of the state before it
    };

    void causal(int64_t r, Control& control) {
        std::vector<Piece> pieces;
        double* d_decay = g.d_log_decay ? g.d_log_decay + r * p.keys * p.decay_width : nullptr;
        if (d_decay) std::fill(d_decay, d_decay + p.keys * p.decay_width, 0.0);
        const bool final_state = d_decay && g.d_sums;  // the last block's keys count for nothing else
        for (int64_t t = 0; t < p.keys;) {
            if (control.stopped()) return;
            const double ref = sums.ref;
            pieces.push_back({t, queries(r, t, d_decay, final_state), ref});
            t += pieces.back().count;
        }
        std::vector<double> end(std::size_t(s.w), 0.0);
        if (final_state) final_term(end);
        for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
            if (control.stopped()) return;
            keys(r, piece->first, piece->count, piece->ref, d_decay);
        }
        if (d_decay) cumulate(r, d_decay, end);
    }

    // Only the gradient of the state before, where nothing fades: what all queries add to G.
    void state_alone(int64_t r, Control& control) {
        row.no_keys(-INF);
        for (int64_t q = r * p.groups; q < (r + 1) * p.groups; ++q)
            for (int64_t t = 0; t < p.queries; t += s.C) {
                if (control.stopped()) return;
                const int64_t n = std::min(s.C, p.queries - t);
                prefetch_queries(q, t + n, std::min(s.C, p.queries - t - n));
                if (p.causal)
                    block.gather_queries(r, q, t, n, p.mask);
                else
                    block.gather_queries(q, q, t, n, p.query_mask);
            }
    }

    void full(int64_t r, Control& control) {
        std::vector<Piece> pieces;
        for (int64_t t = 0; t < p.keys;) {
            if (control.stopped()) return;
            row.load_keys(r, t, row.extent(r, t), sums.ref);
            pieces.push_back({t, row.keys.count, sums.ref});
            row.absorb(sums, r);
            t += row.keys.count;
        }
        row.no_keys(sums.ref);
        for (int64_t h = 0; h < p.groups; ++h)
            for (int64_t t = 0; t < p.queries; t += s.C) {
                if (control.stopped()) return;
                const int64_t n = std::min(s.C, p.queries - t);
                block.query_side(r, h, t, n, false, nullptr);
                block.gather(n, 1);
            }
        for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
            if (control.stopped()) return;
            row.load_keys(r, piece->first, piece->count, piece->ref);
            block.key_side(r, false, nullptr);
        }
    }

    // What the block from token t will read, fetched while this one is computed.
    void prefetch(int64_t r, int64_t t, int64_t n) {
        row.prefetch = Prefetch{};
        if (p.groups > 1) return;
        prefetch_queries(r, t, n);
        row.fetch_keys(r, t, n);
    }
    void prefetch_queries(int64_t q, int64_t t, int64_t n) {
        const int64_t size = size_of(p.output_type);
        row.prefetch = Prefetch{};
        row.fetch_queries(q, t, n);
        row.prefetch.add(p.output, q, t, n, s.M, size);
        row.prefetch.add(g.d_output, q, t, n, s.M, size);
    }

    // Σ U ⊙ dU of the state that is returned: what a decay of the whole of it changes.
    void final_term(std::vector<double>& end) {
        sums.fill(s);
        G.fill(s);
        for (int64_t i = 0; i < s.m; ++i) {
            double total = sums.Z[i] * G.Z[i];
            for (int64_t c = 0; c < s.M; ++c) total += sums.U[i * s.Mp + c] * G.U[i * s.Mp + c];
            end[std::size_t(s.by_feature ? i : 0)] += total;
        }
    }

    // The weight of token j in row i is e^{B_i − B_j}, B the decays summed up: the gradient of a
    // decay is that of all later B, whose terms d_decay has (grad_kernel.h).
    void cumulate(int64_t r, double* d_decay, std::vector<double>& later) const {
        for (int64_t t = p.keys - 1; t >= 0; --t) {
            const bool gone = row.scaling.restarts(r, t), hidden = row.scaling.hidden_key(r, t);
            for (int64_t f = 0; f < p.decay_width; ++f) {
                double& d = d_decay[t * p.decay_width + f];
                later[std::size_t(f)] += d;
                d = gone || hidden ? 0 : later[std::size_t(f)];
                if (gone) later[std::size_t(f)] = 0;
            }
        }
    }

    const Sizes<T>& s;
    const Problem& p;
    const Gradient& g;
    BlockGradient<T, Kernel> block;
    Row<T, Kernel>& row;
    Sums<T>&sums, &G;
};

}  // namespace KT_ISA
}  // namespace kt
