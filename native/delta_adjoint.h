// The gradient of a chunk (delta_chunk.h), given those of its outputs, o', and of the state after it, G.
// From the last token to the first,
//
//     u'_s = Σ_{t≥s} (q_t·k_s e^{b_t − b_s}) o'_t + k_s e^{b − b_s} G + Σ_{t>s} (e_t·k_s e^{b_t − b_s}) z'_t,
//     z'_t = −β_t u'_t,    G ← e^b G + Σ_t q_t e^{b_t} o'_tᵀ + Σ_t e_t e^{b_t} z'_tᵀ.
//
// The triangles have gradients z'_t·u_s and o'_t·u_s, from which those of e, q and k follow, and those of
// the decays between their tokens (delta_slope.h).
#pragma once

#include <optional>

#include "delta_row.h"
#include "delta_slope.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaAdjoint {
  public:
    static constexpr int64_t W = TILE_COLUMNS<T>;
    template <int R> using Rows = Tile<T, R, TILE_VECS>;

    DeltaAdjoint(const DeltaSizes<T>& s, const DeltaChunk<T>& chunk, Arena& arena)
        : w(nullptr), u(arena.take<T>(s.rows * s.Ms)), plain(arena.take<T>(s.rows * s.Ms)), d_out(arena.take<T>(s.rows * s.Ms)),
          d_z(arena.take<T>(s.rows * s.Ms)), d_w(s.erases ? arena.take<T>(s.rows * s.Ms) : nullptr),
          d_q(arena.take<T>(s.rows * s.ds)), d_e(arena.take<T>(s.rows * s.ds)), d_x(arena.take<T>(s.rows * s.ds)),
          d_k(s.erases ? arena.take<T>(s.rows * s.ds) : d_x), d_beta(arena.take<T>(s.rows)),
          s(s), chunk(chunk), tokens(chunk.tokens),
          far_out(s.by_token ? arena.take<T>(s.rows * s.Ms) : d_out),
          far_z(s.by_token ? arena.take<T>(s.rows * s.Ms) : d_z), by_beta(arena.take<T>(s.rows * LANES<T>)),
          turned_G(arena.take<T>(s.dp * s.Mp)), lanes(arena.take<T>(s.Mp * s.Cp + W)),
          read_x(arena.take<T>(s.rows * s.Cp)), look_x(arena.take<T>(s.rows * s.Cp)),
          read_k(s.erases ? arena.take<T>(s.rows * s.Cp) : read_x),
          look_k(s.erases ? arena.take<T>(s.rows * s.Cp) : look_x) {
        w = s.erases ? arena.take<T>(s.rows * s.Ms) : u;
        if (s.by_token) token_slope.emplace(s, chunk, arena);
        if (!s.by_feature) return;
        feature_slope.emplace(s, chunk, arena);
        through = arena.take<T>(s.ds);
        scaled_x = arena.take<T>(s.rows * s.ds);
        scaled_k = s.erases ? arena.take<T>(s.rows * s.ds) : scaled_x;
    }

    T* w;                  // rows β v, or U where there are no erase vectors
    T *u, *plain;          // given: U, and U without β
    T* d_out;              // given: o', 0 where hidden
    T *d_z, *d_w;          // z', and w' where there are erase vectors
    T *d_q, *d_e, *d_x, *d_k;  // of q times `scale`, and of −x
    T* d_beta;

    // The gradient of token i's log-decays.
    const T* d_log_decay(int64_t i) const {
        static const T none = 0;  // where there are no features to decay
        return s.by_feature ? feature_slope->out + i * s.ds : s.by_token ? token_slope->out + i : &none;
    }

    // G goes from after the chunk to before it. `turned` is the state before the chunk, transposed, in
    // panels; null if it is 0.
    void run(DeltaState<T>& G, const T* turned) {
        const int64_t rows = chunk.rows();
        turn(G.data, turned_G);
        std::fill(by_beta, by_beta + rows * LANES<T>, T(0));
        form_written();
        if (s.by_token) by_rows_of(d_out, chunk.enter, far_out);
        for (int64_t c = 0; c < s.Mp; c += W) values(G.panel(c), c);
        for (int64_t i = 0; i < rows; ++i) d_beta[i] = sum<T>(load(by_beta + i * LANES<T>));
        if (s.by_token) token_slope->clear();
        triangles();
        s.by_feature ? features_by_span(turned) : features(turned);
        if (s.by_token) token_slope->finish(turned ? double(chunk.keep) * along_states(turned, nullptr) : 0);
    }

    // w = β v, where there are erase vectors.
    void form_written() {
        if (s.erases) by_rows_of(tokens.v, tokens.beta, w);
    }

    // A state in panels, (Mp / W, dr, W), to its transpose in panels, (dp / W, Mp, W).
    void turn(const T* from, T* to) const {
        for (int64_t c = 0; c < s.Mp; c += LANES<T>)
            for (int64_t f = 0; f < s.dp; f += LANES<T>) {
                Vec<T> row[LANES<T>];
#pragma GCC unroll 16
                for (int a = 0; a < LANES<T>; ++a)
                    row[a] = f + a < s.dr ? load(from + c / W * W * s.dr + (f + a) * W + c % W) : Vec<T>{};
                transpose<T>(row);
#pragma GCC unroll 16
                for (int a = 0; a < LANES<T>; ++a) store(to + f / W * W * s.Mp + (c + a) * W + f % W, row[a]);
            }
    }

  private:
    // out_i = factor_i x_i, of values.
    void by_rows_of(const T* x, const T* factor, T* out) const {
        for (int64_t i = 0; i < chunk.rows(); ++i)
            for (int64_t c = 0; c < s.Mp; c += LANES<T>)
                store(out + i * s.Ms + c, load(x + i * s.Ms + c) * factor[i]);
    }

    void values(T* G, int64_t c) {
        const int64_t n = chunk.count(), Cp = s.Cp, Ms = s.Ms;
        const T sign = s.erases ? T(1) : T(-1);
        even_rows_back(chunk.rows(), [&](auto r, int64_t i) {
            constexpr int R = decltype(r)::value;
            Rows<R> y;
            y.clear();
            y.add(chunk.lanes_x + i, 1, Cp, G, W, s.d);
            y.add(chunk.look_x + i * Cp + i, 1, Cp, d_out + i * Ms + c, Ms, n - i);
            y.add(chunk.read_x + (i + R) * Cp + i, 1, Cp, d_z + (i + R) * Ms + c, Ms, n - i - R);
            const T* own = chunk.read_x + i * Cp + i;
#pragma GCC unroll 6
            for (int a = R - 1; a >= 0; --a) {
                const T beta = sign * tokens.beta[i + a];
                Vec<T> total = load(by_beta + (i + a) * LANES<T>);
#pragma GCC unroll 4
                for (int j = 0; j < TILE_VECS; ++j) {
                    total += y.acc[a][j] * load(plain + (i + a) * Ms + c + j * LANES<T>);
                    y.acc[a][j] *= beta;
#pragma GCC unroll 6
                    for (int e = 0; e < a; ++e) y.acc[e][j] += own[a * Cp + e] * y.acc[a][j];
                }
                store(by_beta + (i + a) * LANES<T>, total);
            }
            y.store(d_z + i * Ms + c, Ms);
            if (!s.by_token) return;
            y.change([&](Vec<T> x, int a, int) __attribute__((always_inline)) { return x * chunk.enter[i + a]; });
            y.store(far_z + i * Ms + c, Ms);
        });
        if (s.erases) writes(G, c);
        even_rows(s.dr, [&](auto r, int64_t f) {
            constexpr int R = decltype(r)::value;
            Rows<R> sum;
            sum.clear();
            sum.add(chunk.far_q + f, 1, s.ds, far_out + c, Ms, n);
            sum.add(chunk.far_e + f, 1, s.ds, far_z + c, Ms, n);
            sum.each([&](int a, int j) __attribute__((always_inline)) {
                T* to = G + (f + a) * W + j * LANES<T>;
                store(to, load(to) * (s.by_feature ? chunk.keep_feature[f + a] : chunk.keep) + sum.acc[a][j]);
            });
        });
    }

    // w', where there are erase vectors.
    void writes(const T* G, int64_t c) {
        const int64_t n = chunk.count(), Cp = s.Cp, Ms = s.Ms;
        even_rows(chunk.rows(), [&](auto r, int64_t i) {
            constexpr int R = decltype(r)::value;
            Rows<R> y;
            y.clear();
            y.add(chunk.lanes_k + i, 1, Cp, G, W, s.d);
            y.add(chunk.look_k + i * Cp + i, 1, Cp, d_out + i * Ms + c, Ms, n - i);
            y.add(chunk.read_k + i * Cp + i, 1, Cp, d_z + i * Ms + c, Ms, n - i);
            y.each([&](int a, int j) __attribute__((always_inline)) {
                T* total = by_beta + (i + a) * LANES<T>;
                store(total, load(total) + y.acc[a][j] * load(tokens.v + (i + a) * Ms + c + j * LANES<T>));
            });
            y.store(d_w + i * Ms + c, Ms);
        });
    }

    // z'_t·u_s and o'_t·u_s, with the decays of tokens.
    void triangles() {
        const int64_t n = chunk.count();
        T* pairs = s.by_token ? token_slope->pairs : nullptr;
        to_lanes(u, s.Ms, n, n, s.M, lanes, s.Cp);
        chunk.triangle(d_z, s.M, s.Ms, lanes, read_x, 0, n, true, chunk.read_x, pairs);
        chunk.triangle(d_out, s.M, s.Ms, lanes, look_x, 0, n, false, chunk.look_x, pairs);
        if (!s.erases) return;
        to_lanes(w, s.Ms, n, n, s.M, lanes, s.Cp);
        chunk.triangle(d_z, s.M, s.Ms, lanes, read_k, 0, n, true, chunk.read_k, pairs);
        chunk.triangle(d_out, s.M, s.Ms, lanes, look_k, 0, n, false, chunk.look_k, pairs);
    }

    template <int R> KT_INLINE void by_state(Rows<R>& y, const T* x, const T* turned, int64_t i, int64_t j) const {
        y.clear();
        if (turned) y.add(x + i * s.Ms, s.Ms, 1, turned + j * s.Mp, W, s.M);
    }

    template <int R> KT_INLINE void add_slope(T* lanes, const Rows<R>& y, const T* x, int64_t i, int64_t j) {
        y.each([&](int a, int v) __attribute__((always_inline)) {
            token_slope->add(lanes, i + a, y.acc[a][v], x + (i + a) * s.ds + j + v * LANES<T>);
        });
    }

    void features(const T* turned) {
        const int64_t n = chunk.count(), ds = s.ds, Cp = s.Cp;
        auto tile = [&](auto r, int64_t i, int64_t j) {
            constexpr int R = decltype(r)::value;
            Rows<R> y;
            auto query = [&](const T* far, const T* x, const T* by_x, const T* by_k, T* out) __attribute__((always_inline)) {
                by_state(y, far, turned, i, j);
                if (s.by_token && turned) add_slope(token_slope->first, y, x, i, j);
                y.add(by_x + i * Cp, Cp, 1, tokens.x + j, ds, std::min(i + R, n));
                if (s.erases) y.add(by_k + i * Cp, Cp, 1, tokens.k + j, ds, std::min(i + R, n));
                y.store(out + i * ds + j, ds);
            };
            query(far_z, tokens.e, read_x, read_k, d_e);
            query(far_out, tokens.q, look_x, look_k, d_q);
            auto key = [&](const T* written, const T* x, const T* by_e, const T* by_q, T* out) __attribute__((always_inline)) {
                by_state(y, written, turned_G, i, j);
                if (s.by_token) {
                    y.change([&](Vec<T> x, int a, int) __attribute__((always_inline)) {
                        return x * chunk.leave[std::min(i + a, Cp - 1)];
                    });
                    add_slope(token_slope->last, y, x, i, j);
                }
                y.add(by_e + i * Cp + i, 1, Cp, tokens.e + i * ds + j, ds, n - i);
                y.add(by_q + i * Cp + i, 1, Cp, tokens.q + i * ds + j, ds, n - i);
                y.store(out + i * ds + j, ds);
            };
            key(u, tokens.x, read_x, look_x, d_x);
            if (s.erases) key(w, tokens.k, read_k, look_k, d_k);
        };
        for (int64_t j = 0; j < s.dp; j += W)
            even_rows(chunk.rows(), [&](auto r, int64_t i) { tile(r, i, j); });
    }

    // The same with decays of features. In a span, e'_t = e^{b_t − b_a} (e^{b_a} z'_t Sᵀ + Σ_s … x_s e^{b_a − b_s}),
    // with the second factor in scaled_x.
    void features_by_span(const T* turned) {
        const int64_t ds = s.ds, Cp = s.Cp;
        const int64_t count = int64_t(chunk.spans.size());
        DeltaFeatureSlope<T>& slope = *feature_slope;
        slope.clear();
        std::size_t first = 0, last = 0;  // blocks of the span
        for (int64_t k = 0; k < count; ++k, first = last) {
            const auto [a, z] = chunk.spans[std::size_t(k)];
            const T *rate = chunk.ratio + k * ds, *total = chunk.totals + k * ds;
            scale_span(tokens.x, rate, a, z, scaled_x);
            if (s.erases) scale_span(tokens.k, rate, a, z, scaled_k);
            while (last < slope.blocks.size() && slope.blocks[last].span == k) ++last;
            for (int64_t j = 0; j < s.dp; j += W)
                slope.each(first, last, [&](auto r, std::size_t m) {
                    constexpr int R = decltype(r)::value;
                    const int64_t i = slope.blocks[m].begin, end = slope.blocks[m].end;
                    Rows<R> y;
                    auto query = [&](const T* far, const T* near, const T* by_x, const T* by_k, T* out) __attribute__((always_inline)) {
                        by_state(y, far, turned, i, j);
                        y.change([&](Vec<T> x, int, int v) __attribute__((always_inline)) { return x * load(total + j + v); });
                        slope.by_state(y, near, m, j);
                        y.add(by_x + i * Cp, Cp, 1, scaled_x + j, ds, i);
                        if (s.erases) y.add(by_k + i * Cp, Cp, 1, scaled_k + j, ds, i);
                        slope.by_past(y, near, m, j);
                        y.add(by_x + i * Cp + i, Cp, 1, scaled_x + i * ds + j, ds, end - i);
                        if (s.erases) y.add(by_k + i * Cp + i, Cp, 1, scaled_k + i * ds + j, ds, end - i);
                        y.change([&](Vec<T> x, int b, int v) __attribute__((always_inline)) {
                            return i + b < end ? x * load(chunk.up + (i + b) * ds + j + v) : Vec<T>{};
                        });
                        y.store(out + i * ds + j, ds);
                    };
                    query(d_z, chunk.near_e, read_x, read_k, d_e);
                    query(d_out, chunk.near_q, look_x, look_k, d_q);
                });
        }
        scale_span(tokens.x, nullptr, 0, chunk.count(), scaled_x);
        keys_by_span(u, scaled_x, read_x, look_x, d_x);
        if (s.erases) {
            scale_span(tokens.k, nullptr, 0, chunk.count(), scaled_k);
            keys_by_span(w, scaled_k, read_k, look_k, d_k);
        }
        std::fill(through, through + ds, T(0));
        if (turned) along_states(turned, through);
        for (int64_t f = 0; f < s.dp; f += LANES<T>) store(through + f, load(through + f) * load(chunk.keep_feature + f));
        slope.finish(through);
    }

    void scale_span(const T* x, const T* rate, int64_t a, int64_t z, T* out) const {
        for (int64_t i = 0; i < z; ++i)
            for (int64_t f = 0; f < s.dp; f += LANES<T>) {
                const int64_t at = i * s.ds + f;
                store(out + at, i < a ? load(out + at) * load(rate + f) : load(x + at) * load(chunk.down + at));
            }
    }

    // x'_s, from the gradient of x = x_s e^{b_a − b_s} with its own span's a: what a later span adds to that is
    // less by all ratios up to it.
    void keys_by_span(const T* written, const T* x, const T* by_e, const T* by_q, T* out) {
        const int64_t ds = s.ds, Cp = s.Cp;
        DeltaFeatureSlope<T>& slope = *feature_slope;
        const std::size_t count = slope.blocks.size();
        for (int64_t j = 0; j < s.dp; j += W)
            slope.each(0, count, [&](auto r, std::size_t m) {
                constexpr int R = decltype(r)::value;
                const auto [begin, end, span] = slope.blocks[m];
                const int64_t i = begin, to = end;
                Rows<R> y, all;
                Vec<T> less[TILE_VECS];
                for (Vec<T>& x : less) x = splat(T(1));
                all.clear();
                auto add_tokens = [&](Rows<R>& y, int64_t from, int64_t n) __attribute__((always_inline)) {
                    y.add(by_e + from * Cp + i, 1, Cp, chunk.near_e + from * ds + j, ds, n);
                    y.add(by_q + from * Cp + i, 1, Cp, chunk.near_q + from * ds + j, ds, n);
                };
                auto take = [&](std::size_t number) __attribute__((always_inline)) {
                    y.each([&](int b, int v) __attribute__((always_inline)) {
                        y.acc[b][v] *= less[v];
                        all.acc[b][v] += y.acc[b][v];
                    });
                    slope.by_later(y, x, m, number, j);
                };
                for (std::size_t later = m + 1; later < count; ++later) {
                    const auto [from, until, of] = slope.blocks[later];
                    for (int v = 0; v < TILE_VECS && of > slope.blocks[later - 1].span; ++v)
                        less[v] *= load(chunk.ratio + of * ds + j + v * LANES<T>);
                    y.clear();
                    add_tokens(y, from, until - from);
                    take(count - later);
                }
                by_state(y, written, turned_G, i, j);
                for (int v = 0; v < TILE_VECS; ++v) less[v] *= load(chunk.add_feature + j + v * LANES<T>);
                take(0);
                slope.by_future(all, x, m, j);
                slope.inside(x, by_e, by_q, m, j);
                add_tokens(all, i, to - i);
                all.change([&](Vec<T> x, int b, int v) __attribute__((always_inline)) {
                    return i + b < to ? x * load(chunk.down + (i + b) * ds + j + v) : x;
                });
                all.store(out + i * ds + j, ds);
            });
    }

    // Σ S G of the states before and after the chunk, but for the decay between them: of each feature, if
    // that is wanted, and of all.
    double along_states(const T* turned, T* by_feature) const {
        double all = 0;
        for (int64_t j = 0; j < s.dp; j += LANES<T>) {
            Vec<T> total{};
            const int64_t at = j / W * W * s.Mp + j % W;
            for (int64_t c = 0; c < s.Mp; ++c) total += load(turned + at + c * W) * load(turned_G + at + c * W);
            if (by_feature) store(by_feature + j, total);
            all += double(sum<T>(total));
        }
        return all;
    }

    const DeltaSizes<T>& s;
    const DeltaChunk<T>& chunk;
    const DeltaTokens<T>& tokens;
    T *far_out, *far_z;     // o' and z' times e^{b_t}, where decays are those of tokens
    T *by_beta, *turned_G, *lanes;
    T *read_x, *look_x, *read_k, *look_k;  // gradients of the chunk's triangles
    T *scaled_x = nullptr, *scaled_k = nullptr, *through = nullptr;
    std::optional<DeltaTokenSlope<T>> token_slope;
    std::optional<DeltaFeatureSlope<T>> feature_slope;
};

}  // namespace KT_ISA
}  // namespace kt
