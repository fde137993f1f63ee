// The two kinds of kernels that a row can have. Both have the same members, and Row takes either:
//
//     form_keys, form_queries      φ of the tokens at hand, or what stands for it
//     scale_keys, scale_queries    times the factors of Scaling
//     products(tile, i, j)         φ(qᵢ)·φ(kⱼ) of a tile, with these factors
//     look(sums, n, den)           φ(qᵢ)·Z of n queries; then
//     read(tile, sums, i, c)       φ(qᵢ)·U of a tile
//     each_key_panel(f), each_query_panel(f)   f(first feature, count, φ) until every feature has come
//
// Here: a map whose features are formed, all of them for a block at once. polynomial.h has the other.
#pragma once

#include "side.h"
#include "sums.h"

namespace kt {
namespace KT_ISA {

template <class T> class Featured {
  public:
    Featured(const Sizes<T>& s, const Mapper<T>& map, Scaling<T>& scaling, Keys<T>& k, Queries<T>& q,
             bool for_gradient, Arena&)
        : s(s), p(s.p), map(map), scaling(scaling), k(k), q(q), for_gradient(for_gradient),
          // A gradient needs φ in lanes, and for some maps x too.
          by_rows_(!for_gradient && elementwise(p.features.map) && !s.by_feature),
          needs_x(for_gradient && slope_needs_x(p.features.map)) {}

    void form_keys(int64_t row, const View& places) {
        if (needs_x || !k.quick(k.count, false)) k.map(map, k.weight(row), places, row, k.first, k.count);
    }

    void scale_keys() {
        if (k.scaled != k.phi) {
            for (int64_t r = 0; r < s.m; ++r) {
                if (s.by_feature) scaling.feature_of_keys(r, k.keep, k.log_scale);
                k.times(scaling.factor, k.phi + r * s.Cp, k.scaled + r * s.Cp);
                if (s.by_pair && !k.all_count()) k.drop(k.phi + r * s.Cp);
            }
        } else if (!k.all_count()) {
            for (int64_t r = 0; r < s.m; ++r) k.drop(k.phi + r * s.Cp);
        }
    }

    void form_queries(int64_t row, int64_t t, int64_t n) {
        q.in_rows = by_rows_ && q.quick(n, true);
        if (q.in_rows) return;
        if (for_gradient && !needs_x && q.quick(n, false)) {
            for (int64_t r = 0; r < s.m && n < q.columns; ++r)  // the gradient sums over whole tiles
                std::fill_n(q.phi + r * s.Cp + n, q.columns - n, T(0));
            return;
        }
        q.map(map, q.weight(row), p.q_positions, row, t, n);
    }

    void scale_queries() {
        if (!s.by_feature || !p.causal) return;
        for (int64_t r = 0; r < s.m; ++r) {
            scaling.feature_of_queries(r);
            for (int64_t j = 0; j < q.columns; j += LANES<T>)
                store(q.scaled + r * s.Cp + j, load(q.phi + r * s.Cp + j) * load(scaling.factor + j));
        }
    }

    template <int R, int N> KT_INLINE void products(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        tile.clear();
        if (q.in_rows)
            tile.add(q.phi + i * s.m, s.m, 1, near_keys() + j, s.Cp, s.m);
        else
            tile.add(q.scaled + i, 1, s.Cp, near_keys() + j, s.Cp, s.m);
    }

    // φ of the block's keys, as its own queries see them.
    const T* near_keys() const { return s.by_pair ? k.phi : k.scaled; }

    void look(const Sums<T>& sums, int64_t n, T* den) const {
        if (q.in_rows) {
            for (int64_t i = 0; i < n; i += LANES<T>) {
                Vec<T> total[LANES<T>] = {};
                for (int64_t r = 0; r < s.m; r += LANES<T>)
#pragma GCC unroll 16
                    for (int l = 0; l < LANES<T>; ++l)
                        total[l] += load(q.phi + (i + l) * s.m + r) * load(sums.z + r);
                store(den + i, sums_of<T>(total) * scaling.of_state(i));
            }
            return;
        }
        // Whether φ(q) comes in rows also depends on later tokens, so the order must not.
        const bool as_rows = elementwise(p.features.map) && !s.by_feature && s.m % LANES<T> == 0;
        for (int64_t j = 0; j < q.columns; j += LANES<T>) {
            Vec<T> part[LANES<T>] = {};
            for (int64_t r = 0; r < s.m && !as_rows; ++r) part[0] += load(q.scaled + r * s.Cp + j) * sums.z[r];
            for (int64_t r = 0; r < s.m && as_rows; r += LANES<T>)
                for (int l = 0; l < LANES<T>; ++l)
                    part[l] += load(q.scaled + (r + l) * s.Cp + j) * sums.z[r + l];
            for (int half = LANES<T> / 2; half && as_rows; half /= 2)
                for (int l = 0; l < half; ++l) part[l] += part[l + half];
            store(den + j, part[0] * scaling.of_state(j));
        }
    }

    template <int R, int N>
    KT_INLINE void read(Tile<T, R, N>& tile, const Sums<T>& sums, int64_t i, int64_t c) const {
        tile.clear();
        if (q.in_rows)
            tile.add(q.phi + i * s.m, s.m, 1, sums.u + c, s.Mp, s.m);
        else
            tile.add(q.scaled + i, 1, s.Cp, sums.u + c, s.Mp, s.m);
    }

    template <class F> KT_INLINE void each_key_panel(F&& f) const {
        if (s.m > 0) f(int64_t(0), s.m, k.scaled);
    }
    template <class F> KT_INLINE void each_query_panel(F&& f) const {
        if (s.m > 0) f(int64_t(0), s.m, q.scaled);
    }

    const Sizes<T>& s;
    const Problem& p;
    const Mapper<T>& map;
    Scaling<T>& scaling;
    Keys<T>& k;
    Queries<T>& q;

  private:
    const bool for_gradient, by_rows_, needs_x;
};

}  // namespace KT_ISA
}  // namespace kt
