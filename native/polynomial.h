// The kernel c0 + c1·t + c2·t² of t = q·k. Within a block its weights come from t itself. The state has
// all of its features, about d²/2, which are formed a panel at a time (see featured.h).
#pragma once

#include "featured.h"

namespace kt {
namespace KT_ISA {

template <class T> class Polynomial {
  public:
    Polynomial(const Sizes<T>& s, const Mapper<T>& map, Scaling<T>& scaling, Keys<T>& k, Queries<T>& q, bool,
               Arena& arena)
        : s(s), p(s.p), map(map), scaling(scaling), k(k), q(q), share(arena.take<T>(s.Cp)),
          mixed(arena.take<T>(s.Cp * s.Mp)) {}

    void form_keys(int64_t, const View&) { k.spread(k.count); }
    void form_queries(int64_t, int64_t, int64_t n) { q.spread(n); }

    void scale_keys() {
        for (int64_t j = 0; j < k.columns; ++j)
            share[j] = k.keep[j] == 0 ? T(0) : s.decays ? scaling.factor[j] : T(1);
    }
    void scale_queries() {}

    template <int R, int N> KT_INLINE void products(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        const T c0 = T(p.features.c0), c1 = T(p.features.c1), c2 = T(p.features.c2);
        tile.clear();
        tile.add(q.x + i, 1, s.Cp, k.x + j, s.Cp, s.d);
        tile.change([&](Vec<T> t, int, int) __attribute__((always_inline)) { return (t * c2 + c1) * t + c0; });
        if (s.decays || k.tokens.any_hidden) tile.change(only_kept(j));
    }

    // A weight times the share of its key; +0 of those that do not count.
    auto only_kept(int64_t j) const {
        return [this, j](Vec<T> y, int, int c) __attribute__((always_inline)) {
            return masked<T>(y * load(share + j + c), load(k.keep + j + c) != Vec<T>{});
        };
    }

    // dA/dt of a tile of t.
    template <int R, int N> KT_INLINE void slopes(Tile<T, R, N>& tile) const {
        const T c1 = T(p.features.c1), c2 = T(2 * p.features.c2);
        tile.change([&](Vec<T> t, int, int) __attribute__((always_inline)) { return t * c2 + c1; });
    }

    void look(const Sums<T>& sums, int64_t n, T* den) {
        std::fill(den, den + q.columns, T(0));
        each_query_panel([&](int64_t r, int64_t size, const T* phi) {
            for (int64_t j = 0; j < q.columns; j += LANES<T>) {
                Vec<T> total = load(den + j);
                for (int64_t f = 0; f < size; ++f) total += load(phi + f * s.Cp + j) * sums.z[r + f];
                store(den + j, total);
            }
            by_rows(n, [&](auto rows, int64_t i) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    r ? tile.load(mixed + i * s.Mp + c, s.Mp) : tile.clear();
                    tile.add(phi + i, 1, s.Cp, sums.u + r * s.Mp + c, s.Mp, size);
                    tile.store(mixed + i * s.Mp + c, s.Mp);
                });
            });
        });
        for (int64_t j = 0; j < q.columns; j += LANES<T>) store(den + j, load(den + j) * scaling.of_state(j));
    }

    template <int R, int N>
    KT_INLINE void read(Tile<T, R, N>& tile, const Sums<T>&, int64_t i, int64_t c) const {
        tile.load(mixed + i * s.Mp + c, s.Mp);
    }

    template <class F> void each_key_panel(F&& f) const {
        each_panel(k, [&](int64_t r0, int64_t size, T* phi) {
            for (int64_t r = 0; r < size; ++r) k.times(share, phi + r * s.Cp, phi + r * s.Cp);
            f(r0, size, phi);
        });
    }
    template <class F> void each_query_panel(F&& f) const { each_panel(q, f); }

    const Sizes<T>& s;
    const Problem& p;
    const Mapper<T>& map;
    Scaling<T>& scaling;
    Keys<T>& k;
    Queries<T>& q;
    T* share;  // what key j counts

  private:
    template <class F> void each_panel(const Side<T>& side, F&& f) const {
        for (int64_t r = 0; r < s.m; r += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r);
            map.panel(side.ones(), side.columns, r, size, side.phi);
            f(r, size, side.phi);
        }
    }

    T* mixed;  // φ(q)·U of the queries at hand
};

}  // namespace KT_ISA
}  // namespace kt
