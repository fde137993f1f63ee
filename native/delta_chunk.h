// The delta rule in a chunk. Let b be the log-decay since the chunk's beginning, and S the state there.
// What token t reads is z, and the chunk's tokens write the rows of U:
//
//     z_t = e_t e^{b_t} S + Σ_{s<t} (e_t·k_s e^{b_t − b_s}) u_s,    u_t = β_t (v_t − z_t)
//     o_t = q_t e^{b_t} S + Σ_{s≤t} (q_t·k_s e^{b_t − b_s}) u_s,    S ← e^b S + Σ_s (k_s e^{b − b_s}) u_sᵀ.
//
// With an erase vector x the tokens write w = β v by k, and u = β z by −x; z and o have sums of both.
//
// Decays of tokens multiply the products e_t·k_s. Decays of features are factored, in spans: in the span
// that begins with token a, e_t e^{b_t − b_a} and k_s e^{b_a − b_s}. The second is at most 1 for earlier
// tokens, and at most e^RANGE for those of the span, which ends where it would be more.
#pragma once

#include "delta_tokens.h"
#include "sizes.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaChunk {
  public:
    struct Span {
        int64_t begin, end;
    };

    DeltaChunk(const DeltaSizes<T>& s, Arena& arena)
        : s(s), tokens(s, arena), enter(arena.take<T>(s.rows)), leave(arena.take<T>(s.Cp)),
          between(s.by_token ? arena.take<T>(s.rows * s.Cp) : nullptr), since(arena.take<double>(s.Cp)),
          read_k(arena.take<T>(s.rows * s.Cp)), look_k(arena.take<T>(s.rows * s.Cp)),
          read_x(s.erases ? arena.take<T>(s.rows * s.Cp) : read_k),
          look_x(s.erases ? arena.take<T>(s.rows * s.Cp) : look_k), lanes_k(arena.take<T>(s.dr * s.Cp + s.W)),
          lanes_x(s.erases ? arena.take<T>(s.dr * s.Cp + s.W) : lanes_k) {
        for (T* lanes : {lanes_k, lanes_x}) std::fill(lanes + s.d * s.Cp, lanes + s.dr * s.Cp, T(0));
        far_e = tokens.e;
        far_q = tokens.q;
        if (!s.by_feature) return;
        up = arena.take<T>(s.rows * s.ds);
        down = arena.take<T>(s.rows * s.ds);
        ratio = arena.take<T>(CHUNK * s.ds);
        near_q = arena.take<T>(s.rows * s.ds);
        far_q = arena.take<T>(s.rows * s.ds);
        near_e = arena.take<T>(s.rows * s.ds);
        far_e = arena.take<T>(s.rows * s.ds);
        scaled = arena.take<T>(s.rows * s.ds);
        totals = arena.take<T>(CHUNK * s.ds);
        keep_feature = arena.take<T>(s.ds);
        add_feature = arena.take<T>(s.ds);
    }

    const DeltaSizes<T>& s;
    DeltaTokens<T> tokens;
    T* enter;       // e^{b_t}, where decays are those of tokens
    T* leave;       // e^{b − b_s}
    T keep = 1;     // e^b
    T* between;     // e^{b_t − b_s}
    double* since;  // log-decays, while they are summed
    T *read_k, *look_k, *read_x, *look_x;  // e·k, q·k, e·(−x) and q·(−x) with their decays, below the diagonal
    T *lanes_k, *lanes_x;  // tokens in lanes; after `form`, k_s e^{b − b_s}, so that no u_s is multiplied by more
    T *far_q, *far_e;      // q_t and e_t, where decays are those of features times e^{b_t}
    // Decays of features. Of a token: e^{b_t − b_a} and its inverse; of a span: e^{b_a}, also over
    // that of the span before; of the chunk: e^b, and e^{b − b_a} of the last span.
    std::vector<Span> spans;
    T *up = nullptr, *down = nullptr, *ratio = nullptr, *totals = nullptr;
    T *near_q = nullptr, *near_e = nullptr;
    T *keep_feature = nullptr, *add_feature = nullptr;

    int64_t count() const { return tokens.count; }
    int64_t rows() const { return even(tokens.count); }

    // Tokens t … t + n − 1: the triangles and factors; `looks` if the outputs are wanted.
    void form(int64_t row, int64_t t, int64_t n, bool looks) {
        tokens.load(row, t, n);
        if (!tokens.any) return;
        for (T* lanes : {lanes_k, lanes_x})
            for (int64_t f = 0; f < s.d && n < rows(); ++f)
                std::fill(lanes + f * s.Cp + n, lanes + f * s.Cp + rows(), T(0));
        if (s.by_feature) {
            by_feature(looks);
        } else {
            by_token();
            put_lanes(tokens.k, 0, n, lanes_k);
            if (s.erases) put_lanes(tokens.x, 0, n, lanes_x);
            triangles(tokens.e, tokens.q, 0, n, looks);
            if (s.by_token) scale_lanes(lanes_k);
            if (s.by_token && s.erases) scale_lanes(lanes_x);
        }
    }

    // out(i, j) = x_i · lanes_j, for rows from … to and j ≤ i (strict: j < i), times the decay of tokens
    // between them. x are rows of so many numbers. If this is the gradient of a triangle, `pairs` gets, for
    // j < i, what it adds to the gradient of that decay's logarithm.
    void triangle(const T* x, int64_t numbers, int64_t stride, const T* lanes, T* out, int64_t from, int64_t to,
                  bool strict, const T* of = nullptr, T* pairs = nullptr) const {
        even_rows(even(to - from), [&](auto r, int64_t at) {
            constexpr int R = decltype(r)::value;
            const int64_t i = from + at;
            // Rows are used in other tiles than these, which may look further right.
            for (int64_t j = 0; j < std::min(i + R + TILE_ROWS, s.Cp); j += s.W) {
                Tile<T, R, TILE_VECS> tile;
                tile.clear();
                if (j < i + R) tile.add(x + i * stride, stride, 1, lanes + j, s.Cp, numbers);
                if (pairs && j < i + R) {
                    Tile<T, R, TILE_VECS> below = tile;
                    below.keep_lower(i - 1, j);
                    below.each([&](int a, int c) __attribute__((always_inline)) {
                        const int64_t at = (i + a) * s.Cp + j + c * LANES<T>;
                        store(pairs + at, KT_ISA::load(pairs + at) + below.acc[a][c] * KT_ISA::load(of + at));
                    });
                }
                if (s.by_token && j < i + R)
                    tile.change([&](Vec<T> y, int a, int c) __attribute__((always_inline)) {
                        return y * KT_ISA::load(between + (i + a) * s.Cp + j + c);
                    });
                tile.keep_lower(strict ? i - 1 : i, j);
                tile.store(out + i * s.Cp + j, s.Cp);
            }
        });
    }

  private:
    void put_lanes(const T* x, int64_t from, int64_t to, T* lanes) {
        to_lanes(x + from * s.ds, s.ds, to - from, to - from, s.d, lanes + from, s.Cp);
    }

    // Tokens before `to` times what each of their features counts.
    void scale_features(const T* rate, int64_t to) {
        for (int64_t f = 0; f < s.d; ++f)
            for (int64_t j = f * s.Cp; j < f * s.Cp + to; j += LANES<T>) {
                store(lanes_k + j, KT_ISA::load(lanes_k + j) * rate[f]);
                if (s.erases) store(lanes_x + j, KT_ISA::load(lanes_x + j) * rate[f]);
            }
    }

    void scale_lanes(T* lanes) {
        for (int64_t f = 0; f < s.d; ++f)
            for (int64_t j = 0; j < count(); j += LANES<T>)
                store(lanes + f * s.Cp + j, KT_ISA::load(lanes + f * s.Cp + j) * KT_ISA::load(leave + j));
    }

    // Log-decays are summed from each token on, never subtracted: beside a strong one a sum of all loses the rest.
    void by_token() {
        const int64_t n = count();
        keep = 1;
        if (!s.by_token) return;
        auto exp_to = [](const double* from, int64_t count, T* to) {
            T x[LANES<T>];
            for (int64_t j = 0; j < count; j += LANES<T>) {
                for (int l = 0; l < LANES<T>; ++l) x[l] = T(from[j + l]);
                store(to + j, exp(KT_ISA::load(x)));
            }
        };
        std::fill(since, since + s.Cp, 0.0);
        double total = 0;
        for (int64_t i = 0; i < n; ++i) since[i] = total += tokens.decay[i];
        exp_to(since, n, enter);
        keep = enter[n - 1];
        std::fill(enter + n, enter + s.rows, T(1));
        std::fill(since, since + s.Cp, 0.0);
        for (int64_t i = 0; i < std::min(rows(), s.Cp); ++i) {
            for (int64_t j = 0; j < i; ++j) since[j] += tokens.decay[i];
            exp_to(since, std::min(s.Cp, round_up(i + TILE_ROWS, s.W)), between + i * s.Cp);
        }
        exp_to(since, s.Cp, leave);
    }

    // Rows from … to of the triangles, by tokens e and q as they are factored there.
    void triangles(const T* e, const T* q, int64_t from, int64_t to, bool looks) {
        triangle(e, s.d, s.ds, lanes_k, read_k, from, to, true);
        if (s.erases) triangle(e, s.d, s.ds, lanes_x, read_x, from, to, true);
        if (looks) triangle(q, s.d, s.ds, lanes_k, look_k, from, to, false);
        if (looks && s.erases) triangle(q, s.d, s.ds, lanes_x, look_x, from, to, false);
    }

    void by_feature(bool looks) {
        const int64_t n = count(), ds = s.ds;
        find_spans();
        for (std::size_t i = 0; i < spans.size(); ++i) {
            const auto [a, z] = spans[i];
            const T* rate = ratio + int64_t(i) * ds;
            T* total = totals + int64_t(i) * ds;
            for (int64_t f = 0; f < ds; f += LANES<T>)
                store(total + f, i ? KT_ISA::load(total - ds + f) * KT_ISA::load(rate + f) : KT_ISA::load(rate + f));
            scale_features(rate, a);  // those from a on are written next
            factor_span(a, z, total);
            product(tokens.k, down, a, z, scaled);
            put_lanes(scaled, a, z, lanes_k);
            if (s.erases) {
                product(tokens.x, down, a, z, scaled);
                put_lanes(scaled, a, z, lanes_x);
            }
            triangles(near_e, near_q, a, z < n ? z : rows(), looks);
        }
        for (int64_t f = 0; f < ds; f += LANES<T>) {
            const Vec<T> last = KT_ISA::load(up + (n - 1) * ds + f);
            store(add_feature + f, last);
            store(keep_feature + f, last * KT_ISA::load(totals + int64_t(spans.size() - 1) * ds + f));
        }
        scale_features(add_feature, n);
        for (T* y : {far_e, far_q}) std::fill(y + n * ds, y + std::min(n + MARGIN, s.rows) * ds, T(0));
    }

    // Where spans begin, log-decays in them (into `up`), and the ratio of each.
    void find_spans() {
        const int64_t n = count(), ds = s.ds;
        spans.clear();
        for (int64_t i = 0; i < n; ++i) {
            const T *g = tokens.g + i * ds, *before = up + (i - 1) * ds;
            T* now = up + i * ds;
            bool inside = i > 0;
            if (inside) {
                Vec<T> lowest{};
                for (int64_t f = 0; f < ds; f += LANES<T>) {
                    const Vec<T> y = KT_ISA::load(before + f) + KT_ISA::load(g + f);
                    lowest = least(lowest, y);
                    store(now + f, y);
                }
                inside = -largest<T>(-lowest) >= T(-RANGE<T>);
            } else {
                std::copy(g, g + ds, now);
            }
            if (inside) continue;
            T* rate = ratio + int64_t(spans.size()) * ds;
            for (int64_t f = 0; f < ds; f += LANES<T>) {
                store(rate + f, exp(KT_ISA::load(now + f)));
                store(now + f, Vec<T>{});
            }
            if (i > 0) spans.back().end = i;
            spans.push_back({i, n});
        }
    }

    // up, down, and the tokens of a span.
    void factor_span(int64_t a, int64_t z, const T* total) {
        const int64_t ds = s.ds;
        for (int64_t i = a; i < z; ++i)
            for (int64_t f = 0; f < ds; f += LANES<T>) {
                const int64_t at = i * ds + f;
                const Vec<T> y = KT_ISA::load(up + at), rise = exp<true>(y);
                const Vec<T> q = KT_ISA::load(tokens.q + at) * rise, e = KT_ISA::load(tokens.e + at) * rise;
                store(up + at, rise);
                store(down + at, exp<true>(-y));
                store(near_q + at, q);
                store(near_e + at, e);
                store(far_q + at, q * KT_ISA::load(total + f));
                store(far_e + at, e * KT_ISA::load(total + f));
            }
        for (int64_t i = z; i < std::min(z + MARGIN, s.rows); ++i)  // a tile may read them
            for (T* y : {near_q, near_e}) std::fill(y + i * ds, y + (i + 1) * ds, T(0));
    }

    void product(const T* x, const T* y, int64_t from, int64_t to, T* out) {
        for (int64_t i = from * s.ds; i < to * s.ds; i += LANES<T>)
            store(out + i, KT_ISA::load(x + i) * KT_ISA::load(y + i));
    }

    T* scaled = nullptr;
};

}  // namespace KT_ISA
}  // namespace kt
