// dx of the keys or the queries of a block, by the kinds of kernels that Row takes (featured.h). Both have
// the same members:
//
//     by_key(tile, j, i), by_query(tile, i, j)                what a tile of dN~·v~ is multiplied by
//     queries_from_state, queries_from_pairs, finish_queries     dx of queries, in this order
//     keys_from_state, keys_from_pairs, finish_keys              dx of keys
//
// of which keys_from_pairs is called for every query head.
//
// The gradient of a log-decay sums over the pairs of a query and an earlier key that it is between. With
// terms +1 for every pair at its query and −1 at its key, it is a sum over later tokens (grad.h). A query
// and the key of the same token are no such pair. Where decays are strong that pair is by far the largest,
// so it is left out from the start: taken twice with two signs, it would cancel only to rounding.
#pragma once

#include "grad_output.h"
#include "row.h"

namespace kt {
namespace KT_ISA {

// Where the gradients of the weights of one side of a row are added up, or null.
struct WeightGradient {
    double *weight, *bias;
};

// What both kinds have.
template <class T, class Kernel> class LanesGradient {
  public:
    LanesGradient(Row<T, Kernel>& row, const OutputGradient<T>& out)
        : s(row.s), row(row), kernel(row.kernel), scaling(row.scaling), k(row.keys), q(row.queries), out(out),
          dx(row.arena.template take<T>(s.in_lanes(s.d + 1)) + s.Cp),
          pairs(row.arena.template take<T>(s.in_lanes(s.Cp))),
          d_phi(row.arena.template take<T>(s.in_lanes(s.panel))) {}

    const Sizes<T>& s;
    Row<T, Kernel>& row;
    Kernel& kernel;
    Scaling<T>& scaling;
    Keys<T>& k;
    Queries<T>& q;
    const OutputGradient<T>& out;
    T* dx;     // of the side at hand, in lanes; before it, a row for the ones of polynomials
    T* pairs;  // (dN~ᵢ · v~ⱼ) of the block, times what by_key or by_query says

  protected:
    // dφ[r][·] = factor·(S[r]·B + z[r]·last) for features r0 …, tokens in lanes.
    void from_state(const Sums<T>& from, int64_t r0, int64_t size, const T* lanes, const T* last, T factor,
                    int64_t columns) {
        by_rows(size, [&](auto rows, int64_t r) {
            constexpr int R = decltype(rows)::value;
            by_cols<T>(columns, [&](auto cols, int64_t i) {
                constexpr int N = decltype(cols)::value;
                Tile<T, R, N> tile;
                row.prefetch.step(4);
                tile.clear();
                tile.add(from.u + (r0 + r) * s.Mp, s.Mp, 1, lanes + i, s.Cp, s.M);
                tile.change([&](Vec<T> y, int a, int c) __attribute__((always_inline)) {
                    return (y + load(last + i + c) * from.z[r0 + r + a]) * factor;
                });
                tile.store(d_phi + r * s.Cp + i, s.Cp);
            });
        });
    }

    // to[r][·] += Σ A(r, k)·pairs[k][·]: of keys for queries over the keys up to each of them …
    void up_to_queries(const T* a, int64_t rows, T* to) {
        from_pairs(a, rows, to, q.columns, [&](int64_t, int64_t end) {
            return std::make_pair(int64_t(0), std::min(end, k.count));
        });
    }
    // … and of queries for keys over the n queries from each of them on.
    void from_keys_on(const T* a, int64_t rows, T* to) {
        const int64_t n = k.count;
        from_pairs(a, rows, to, k.columns, [n](int64_t first, int64_t) {
            return std::make_pair(std::min(first, n), n);
        });
    }

    // d_decay[t] += sign · φ·dφ of `size` features.
    void token_terms(const Side<T>& side, const T* phi, int64_t size, int64_t t, int64_t n, double* d_decay,
                     double sign) {
        products.assign(std::size_t(side.columns), 0.0);
        for (int64_t f = 0; f < size; ++f)
            for (int64_t j = 0; j < side.columns; j += LANES<T>)
                add_product<T>(products.data() + j, load(phi + f * s.Cp + j), load(d_phi + f * s.Cp + j));
        for (int64_t j = 0; j < n; ++j)
            if (!side.hidden(j)) d_decay[t + j] += sign * products[std::size_t(j)];
    }

    T* d_phi;  // in lanes, a panel of features
    std::vector<double> products;

  private:
    // range(first, end): the rows of `pairs` that columns first … end − 1 take.
    template <class Range> void from_pairs(const T* a, int64_t rows_, T* to, int64_t columns, Range range) {
        by_rows(rows_, [&](auto rows, int64_t r) {
            constexpr int R = decltype(rows)::value;
            by_cols<T>(columns, [&](auto cols, int64_t i) {
                constexpr int N = decltype(cols)::value;
                const auto [from, end] = range(i, i + N * LANES<T>);
                if (end <= from) return;
                Tile<T, R, N> tile;
                tile.load(to + r * s.Cp + i, s.Cp);
                tile.add(a + r * s.Cp + from, s.Cp, 1, pairs + from * s.Cp + i, s.Cp, end - from);
                tile.store(to + r * s.Cp + i, s.Cp);
            });
        });
    }
};

template <class T, class Kernel> class KernelGradient;

// φ is formed: dφ of all features, then by the map's own gradient dx.
template <class T> class KernelGradient<T, Featured<T>> : public LanesGradient<T, Featured<T>> {
    using Base = LanesGradient<T, Featured<T>>;
    using Base::s, Base::row, Base::scaling, Base::k, Base::q, Base::out, Base::d_phi;

  public:
    using Base::Base, Base::dx, Base::pairs;

    template <int R, int N> KT_INLINE void by_key(Tile<T, R, N>& tile, int64_t j, int64_t i) const {
        scaling.by_block_turned(tile, j, i);
    }
    template <int R, int N> KT_INLINE void by_query(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        scaling.by_block(tile, i, j);
    }

    void queries_from_state(const Sums<T>& sums, int64_t t, int64_t n, double* d_decay) {
        if (scaling.state_share == 0 || sums.empty) return std::fill(d_phi, d_phi + s.m * s.Cp, T(0));
        const T share = s.by_pair ? T(1) : T(scaling.state_share);
        this->from_state(sums, 0, s.m, out.dn_lanes, out.d_den, share, q.columns);
        for (int64_t f = 0; f < s.m && s.by_pair; ++f)
            for (int64_t j = 0; j < q.columns; j += LANES<T>) {
                T* one = d_phi + f * s.Cp + j;
                store(one, load(one) * load(scaling.since + j));
            }
        if (d_decay && !s.by_feature) this->token_terms(q, q.phi, s.m, t, n, d_decay, 1);
    }

    void queries_from_pairs(int64_t t, int64_t n, double* d_decay) {
        if (s.by_feature) take_own();
        this->up_to_queries(row.kernel.near_keys(), s.m, d_phi);
        for (int64_t f = 0; f < s.m && s.by_feature; ++f) {
            T* one = d_phi + f * s.Cp;
            scaling.feature_of_queries(f);
            for (int64_t j = 0; j < q.columns; ++j) one[j] *= scaling.factor[j];
            if (d_decay) feature_terms(q, f, t, n, d_decay, 1);
            for (int64_t j = 0; j < n; ++j) one[j] += own[j] * k.scaled[f * s.Cp + j] * scaling.factor[j];
        }
    }

    void finish_queries(int64_t at, const WeightGradient& d) {
        row.map.back(q.x, q.phi, d_phi, q.columns, q.weight(at), q.where, dx, d.weight, d.bias);
    }

    // values(first feature, count, φ) takes what the keys give to their values.
    template <class F>
    void keys_from_state(const Sums<T>& G, const T* v_lanes, const T* ones, double* d_decay, F&& values) {
        values(int64_t(0), s.m, k.scaled);
        if (s.by_feature) own_keys.assign(std::size_t(s.m * s.Cp), T(0));
        if (G.empty) return std::fill(d_phi, d_phi + s.m * s.Cp, T(0));
        this->from_state(G, 0, s.m, v_lanes, ones, T(1), k.columns);
        if (d_decay && !s.by_feature) this->token_terms(k, k.scaled, s.m, k.first, k.count, d_decay, -1);
        for (int64_t f = 0; f < s.m && s.by_pair; ++f)  // pairs have their factor already
            k.times(scaling.factor, d_phi + f * s.Cp, d_phi + f * s.Cp);
    }

    void keys_from_pairs() {
        if (s.by_feature) take_own();
        this->from_keys_on(q.scaled, s.m, d_phi);
        for (int64_t f = 0; f < s.m && s.by_feature; ++f)
            for (int64_t j = 0; j < k.count; ++j)
                own_keys[std::size_t(f * s.Cp + j)] += own[j] * q.scaled[f * s.Cp + j];
    }

    void finish_keys(int64_t r, double* d_decay, const WeightGradient& d) {
        const bool scaled = s.has_scale || (s.decays && !s.by_pair);
        for (int64_t f = 0; f < s.m && (scaled || !k.all_count()); ++f) {
            T* one = d_phi + f * s.Cp;
            if (s.by_feature) scaling.feature_of_keys(f, k.keep, k.log_scale);
            scaled ? k.times(scaling.factor, one, one) : k.drop(one);
            if (!s.by_feature) continue;
            if (d_decay) feature_terms(k, f, k.first, k.count, d_decay, -1);
            T* same = own_keys.data() + f * s.Cp;
            k.times(scaling.factor, same, same);
            for (int64_t j = 0; j < k.count; ++j) one[j] += same[j];
        }
        row.map.back(k.x, k.phi, d_phi, k.columns, k.weight(r), k.where, dx, d.weight, d.bias);
    }

  private:
    // Takes the pair of every token with itself out of `pairs`.
    void take_own() {
        own.assign(std::size_t(s.Cp), T(0));
        for (int64_t j = 0; j < k.count; ++j) own[std::size_t(j)] = std::exchange(pairs[j * s.Cp + j], T(0));
    }

    // d_decay[t][f] += sign · φ·dφ.
    void feature_terms(const Side<T>& side, int64_t f, int64_t t, int64_t n, double* d_decay, double sign) const {
        const T *phi = side.phi + f * s.Cp, *d = d_phi + f * s.Cp;
        for (int64_t j = 0; j < n; ++j)
            if (!side.hidden(j)) d_decay[(t + j) * s.m + f] += sign * double(phi[j]) * double(d[j]);
    }

    std::vector<T> own;       // (dN~ᵢ · v~ᵢ) of every token, where decays are of features
    std::vector<T> own_keys;  // what it gives to dφ(kᵢ), in lanes
};

// φ of a panel at a time is taken back to dx at once; within the block there is dA/dt, and no φ.
template <class T> class KernelGradient<T, Polynomial<T>> : public LanesGradient<T, Polynomial<T>> {
    using Base = LanesGradient<T, Polynomial<T>>;
    using Base::s, Base::row, Base::kernel, Base::scaling, Base::k, Base::q, Base::out, Base::d_phi;

  public:
    using Base::Base, Base::dx;

    template <int R, int N> KT_INLINE void by_key(Tile<T, R, N>& tile, int64_t j, int64_t i) const {
        Tile<T, R, N> slope;
        slope.clear();
        slope.add(k.x + j, 1, s.Cp, q.x + i, s.Cp, s.d);
        kernel.slopes(slope);
        tile.scale(T(scaling.block_share));
        tile.each([&](int a, int c) __attribute__((always_inline)) {
            tile.acc[a][c] *= slope.acc[a][c] * kernel.share[j + a];
        });
    }

    template <int R, int N> KT_INLINE void by_query(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        Tile<T, R, N> slope;
        slope.clear();
        slope.add(q.x + i, 1, s.Cp, k.x + j, s.Cp, s.d);
        kernel.slopes(slope);
        tile.scale(T(scaling.block_share));
        tile.each([&](int a, int c) __attribute__((always_inline)) { tile.acc[a][c] *= slope.acc[a][c]; });
        tile.change(kernel.only_kept(j));
    }

    void queries_from_state(const Sums<T>& sums, int64_t t, int64_t n, double* d_decay) {
        std::fill(dx - s.Cp, dx + s.d * s.Cp, T(0));
        for (int64_t r0 = 0; r0 < s.m && scaling.state_share != 0 && !sums.empty; r0 += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r0);
            this->from_state(sums, r0, size, out.dn_lanes, out.d_den, T(scaling.state_share), q.columns);
            if (d_decay) {
                row.map.panel(q.ones(), q.columns, r0, size, q.phi);
                this->token_terms(q, q.phi, size, t, n, d_decay, 1);
            }
            row.map.panel_back(q.ones(), d_phi, q.columns, r0, size, dx - s.Cp);
        }
    }

    void queries_from_pairs(int64_t, int64_t, double*) { this->up_to_queries(k.x, s.d, dx); }

    void finish_queries(int64_t, const WeightGradient&) {}

    template <class F>
    void keys_from_state(const Sums<T>& G, const T* v_lanes, const T* ones, double* d_decay, F&& values) {
        std::fill(dx - s.Cp, dx + s.d * s.Cp, T(0));
        if (G.empty) return values(int64_t(0), int64_t(0), k.phi);
        kernel.each_key_panel([&](int64_t r0, int64_t size, const T* phi) {
            values(r0, size, phi);
            this->from_state(G, r0, size, v_lanes, ones, T(1), k.columns);
            if (d_decay) this->token_terms(k, phi, size, k.first, k.count, d_decay, -1);
            for (int64_t f = 0; f < size; ++f)
                for (int64_t j = 0; j < k.columns; ++j) d_phi[f * s.Cp + j] *= kernel.share[j];
            row.map.panel_back(k.ones(), d_phi, k.columns, r0, size, dx - s.Cp);
        });
    }

    void keys_from_pairs() { this->from_keys_on(q.x, s.d, dx); }

    void finish_keys(int64_t, double*, const WeightGradient&) {}
};

}  // namespace KT_ISA
}  // namespace kt
