// Exact attention over the keys near by: for a block of queries, Σ e^{s·q·k − c} of the values and of
// ones over the keys that each query sees exactly, c the largest exponent of the row. Keys are taken
// a panel at a time, and what is there is scaled down when a larger exponent comes (online softmax),
// so no row depends on later tokens, and nothing of size n × n is formed. With a window without end
// this is softmax attention; otherwise the far part (row.h) is added to it.
#pragma once

#include <limits>

#include "maps.h"

namespace kt {
namespace KT_ISA {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();
constexpr int64_t PANEL_KEYS = 96;    // keys of a panel: with their values they stay in L2
constexpr int64_t NEAR_BLOCK = 192;   // queries of a block where there is no far part

// The keys of a row that are not hidden, in order; with a restart a new segment begins. A key is a
// token of the call, or, below 0, −1 − slot of the tokens that the state has kept.
struct Line {
    struct Segment {
        int64_t first, end;  // of the keys in order
        int64_t rank;        // of the first one: how many tokens of the segment came before
        bool continues;      // the state's own segment
    };
    std::vector<int32_t> key;  // empty: 0, 1, 2, …
    int64_t rising = 0;        // so many of them rise: mirrored, what the state has kept comes last
    std::vector<Segment> segments;
    std::vector<int32_t> kept_sinks;  // sinks that the state has kept, for the first segment

    int64_t at(int64_t a) const { return key.empty() ? a : key[std::size_t(a)]; }

    // Whether keys a … a + n − 1 are tokens of the call that follow each other.
    bool run(int64_t a, int64_t n) const {
        return key.empty() || n == 0 || (key[std::size_t(a)] >= 0 && at(a + n - 1) - at(a) == n - 1);
    }

    Line(const Problem& p, int64_t row) {
        const bool plain = !p.mask.data && !p.restart.data && p.near_slots == 0;
        const int64_t seen = p.seen ? p.seen[row] : 0;
        if (plain) {
            segments.push_back({0, p.keys, seen, true});
            return;
        }
        for (int64_t i = 0; i < p.near_slots; ++i) {
            if (!*p.near_keep.at(row, i)) continue;
            (i < p.sinks ? kept_sinks : key).push_back(int32_t(-1 - i));
        }
        segments.push_back({0, 0, seen - int64_t(key.size()), true});
        for (int64_t t = 0; t < p.keys; ++t) {
            if (p.restart.data && *p.restart.at(row, t)) {
                segments.back().end = int64_t(key.size());
                segments.push_back({int64_t(key.size()), 0, 0, false});
            }
            if (!p.mask.data || *p.mask.at(row, t)) key.push_back(int32_t(t));
        }
        segments.back().end = int64_t(key.size());
        if (key.empty()) key.push_back(std::numeric_limits<int32_t>::max());  // none: it lies in no segment
        rising = int64_t(key.size());
    }

    // What a state keeps after the call: sinks that have left the window, then the last tokens.
    void keep(const Problem& p, int64_t row) const {
        const Segment& last = segments.back();
        if (!p.near_after) return;
        p.seen_after[row] = last.rank + last.end - last.first;
        int64_t* slot = p.near_after + row * p.near_slots_after;
        std::fill(slot, slot + p.near_slots_after, NO_TOKEN);
        const int64_t ring = p.near_slots_after - p.sinks;
        const int64_t from = std::max(last.first, last.end - std::min(ring, std::max<int64_t>(0, p.window - 1)));
        for (int64_t a = from; a < last.end; ++a) slot[p.sinks + ring - (last.end - a)] = at(a);
        for (std::size_t i = 0; i < kept_sinks.size() && last.continues; ++i)
            slot[-1 - kept_sinks[i]] = kept_sinks[i];
        for (int64_t a = last.first; a < std::min(from, sinks_end(p, last)); ++a)
            slot[last.rank + a - last.first] = at(a);
    }

    // The same keys for a call whose last of n tokens comes first.
    Line mirrored(int64_t n) const {
        Line back = *this;
        const int64_t end = segments[0].end;
        if (key.empty()) return back;
        std::reverse(back.key.begin(), back.key.begin() + end);
        for (int64_t a = 0; a < end; ++a) {
            int32_t& k = back.key[std::size_t(a)];
            if (k >= 0) k = int32_t(n - 1 - k);
        }
        back.rising = std::find_if(back.key.begin(), back.key.end(), [](int32_t k) { return k < 0; }) -
                      back.key.begin();
        return back;
    }

    // How many keys come before token t.
    int64_t before(int64_t t) const {
        if (key.empty()) return t;
        return std::lower_bound(key.begin(), key.begin() + rising, t,
                                [](int32_t a, int64_t b) { return a < b; }) -
               key.begin();
    }

    // Where the sinks of a segment end, in order.
    static int64_t sinks_end(const Problem& p, const Segment& segment) {
        return std::min(segment.end, segment.first + std::max<int64_t>(0, p.sinks - segment.rank));
    }
};

// The keys and values of some tokens, in lanes and in rows.
template <class T> class Panel {
  public:
    Panel(const Problem& p, int64_t most, Arena& arena)
        : p(p), d(p.features.inputs), M(p.width), Mp(round_up(M, TILE_COLUMNS<T>)),
          dp(round_up(d, TILE_COLUMNS<T>)), Kp(round_up(most, TILE_COLUMNS<T>)) {
        k_rows = arena.take<T>(Kp * dp);
        v_rows = arena.take<T>(Kp * Mp);
        lanes = arena.take<T>(d * Kp + TILE_COLUMNS<T>);
    }

    // `head` (keys in order, or below 0 sinks that the state has kept), then the keys a … a + n − 1.
    void load(int64_t row, const Line& line, const std::vector<int32_t>& head, int64_t a, int64_t n) {
        heads = int64_t(head.size());
        count = heads + n;
        columns = round_up(count, TILE_COLUMNS<T>);
        if (heads == 0 && line.run(a, n)) {
            const int64_t t = line.at(a);
            fetch(p.k, p.type, row, t, n, d, dp, T(1), T(1), View{}, 0, k_rows, k);
            fetch(p.v, p.type, row, t, n, M, Mp, T(1), T(0), View{}, 0, v_rows, v);
        } else {
            k.any_bad = v.any_bad = false;
            k.x = k_rows;
            k.stride = dp;
            v.x = v_rows;
            v.stride = Mp;
            for (int64_t i = 0; i < count; ++i) {
                const int64_t at = i < heads ? head[std::size_t(i)] : a + i - heads;
                const int64_t id = at < 0 ? at : line.at(at);
                read_token<T>(id < 0 ? p.near_k : p.k, p.type, row, id < 0 ? -1 - id : id, d, T(1),
                              k_rows + i * dp);
                std::fill(k_rows + i * dp + d, k_rows + (i + 1) * dp, T(0));
                read_token<T>(id < 0 ? p.near_v : p.v, p.type, row, id < 0 ? -1 - id : id, M, T(1),
                              v_rows + i * Mp);
                std::fill(v_rows + i * Mp + M, v_rows + (i + 1) * Mp, T(0));
            }
        }
        clean(k, count, d, dp, T(1), false, k_rows);
        clean(v, count, M, Mp, T(0), true, v_rows);
        to_lanes(k.x, k.stride, count, columns, d, lanes, Kp);
    }

    const Problem& p;
    const int64_t d, M, Mp, dp, Kp;
    int64_t heads = 0, count = 0, columns = 0;
    Block<T> k, v;
    T *k_rows, *v_rows, *lanes;
};

template <class T> KT_INLINE Vec<T> exp_down(Vec<T> x) {  // of x ≤ 0, −inf among them; 0 for what is not normal
    return from_bits<T>(bits<T>(exp<true>(most(x, splat(TAME<T>)))) & (x > splat(TAME<T>)));
}

template <class T> class Near {
  public:
    Near(const Problem& p, int64_t rows)
        : p(p), d(p.features.inputs), M(p.width), panel(p, longest(p, rows), arena), Mp(panel.Mp),
          dp(panel.dp), Kp(panel.Kp), whole(band(p, rows) > 0) {
        q_rows = arena.take<T>(rows * dp);
        mixed = arena.take<T>(rows * Mp);
        den = arena.take<T>(rows + TILE_ROWS);
        top = arena.take<T>(rows + TILE_ROWS);
        strip = arena.take<T>(TILE_ROWS * Kp);
        lo.resize(std::size_t(rows));
        hi.resize(std::size_t(rows));
    }

    // All that a block of a short window sees, or 0: then panels have PANEL_KEYS keys.
    static int64_t band(const Problem& p, int64_t rows) {
        if (p.window > 256) return 0;
        const int64_t all = p.sinks + rows + p.window * (p.causal ? 1 : 2);
        return all <= 384 ? all : 0;
    }
    static int64_t longest(const Problem& p, int64_t rows) {
        return std::max(band(p, rows), p.sinks + PANEL_KEYS);
    }

    // Which keys the n queries from token t on see besides sinks.
    void see(const Line& line, const Line::Segment& segment, int64_t t, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t a = line.before(t + i);
            lo[std::size_t(i)] = std::max(segment.first, a - p.window + 1);
            hi[std::size_t(i)] = p.causal ? a + 1 : std::min(segment.end, a + p.window);
        }
    }

    // The n queries of query row `row` from token t on, times the scale.
    void load_queries(int64_t row, int64_t t, int64_t n) {
        q.any_bad = false;
        q.x = q_rows;
        q.stride = dp;
        for (int64_t i = 0; i < n; ++i) {
            read_token<T>(p.q, p.type, row, t + i, d, T(p.near_scale), q_rows + i * dp);
            std::fill(q_rows + i * dp + d, q_rows + (i + 1) * dp, T(0));
        }
        clean(q, n, d, dp, T(0), false, q_rows);
    }

    // mixed, den and top of the n queries at hand, which see the keys lo … hi − 1 of the line and the
    // sinks; lo and hi do not fall.
    void attend(int64_t row, const Line& line, const Line::Segment& segment, int64_t n) {
        std::fill(mixed, mixed + n * Mp, T(0));
        std::fill(den, den + n, T(0));
        std::fill(top, top + n, T(NOTHING));
        any_bad = false;
        each_panel(row, line, segment, n, [&](int64_t base) { add(n, base); });
    }

    // Panel after panel of what the n queries see; `base` is the key in order that stands at panel.heads.
    template <class F>
    void each_panel(int64_t row, const Line& line, const Line::Segment& segment, int64_t n, F&& f) {
        const int64_t first = lo[0], end = hi[std::size_t(n - 1)];
        head.clear();
        if (p.sinks > 0) {
            if (segment.continues) head = line.kept_sinks;
            const int64_t until = std::min(Line::sinks_end(p, segment), first);
            for (int64_t a = segment.first; a < until; ++a) head.push_back(int32_t(a));
            sinks_end = Line::sinks_end(p, segment);
            for (int64_t a = std::max({first, end, segment.first}); a < sinks_end && !p.causal; ++a)
                head.push_back(int32_t(a));
        } else {
            sinks_end = 0;
        }
        const int64_t step = whole ? end - first : PANEL_KEYS;
        for (int64_t a = first; a < end || !head.empty(); a += step) {
            panel.load(row, line, head, a, std::max<int64_t>(0, std::min(step, end - a)));
            std::swap(in_head, head);
            head.clear();
            f(a);
            if (step <= 0) break;
        }
    }

    // Whether query i sees the key at index j of the panel.
    bool sees(int64_t i, int64_t j, int64_t base) const {
        const int64_t a = base + j - panel.heads;
        return j < panel.heads || (a >= lo[std::size_t(i)] && a < hi[std::size_t(i)]) || a < sunk_for(i);
    }

    // Where the sinks that query i sees end, in order: in full attention they may lie ahead.
    int64_t sunk_for(int64_t i) const {
        return p.causal ? std::min(sinks_end, hi[std::size_t(i)]) : sinks_end;
    }

    // The columns of the panel that rows i … i + R − 1 see: 0 … sunk − 1 and from … to − 1.
    struct Reach {
        int64_t sunk, from, to;
        bool none() const { return to <= from && sunk == 0; }
    };

    Reach reach(int64_t i, int64_t R, int64_t base) const {
        const int64_t step = TILE_COLUMNS<T>, shift = base - panel.heads;
        const int64_t low = std::max<int64_t>(0, lo[std::size_t(i)] - shift) / step * step;
        const int64_t sinks = std::max(panel.heads, std::min(panel.count, sunk_for(i + R - 1) - shift));
        const int64_t high = std::max(sinks, std::min(panel.count, hi[std::size_t(i + R - 1)] - shift));
        return {std::min(round_up(sinks, step), low), low, std::max(low, high)};
    }

    // tile of e^{…}: what is not seen becomes `other`.
    template <int R, int N>
    KT_INLINE void hide(Tile<T, R, N>& tile, int64_t i, int64_t j, int64_t base, Vec<T> other) const {
        const int64_t shift = base - panel.heads, width = N * LANES<T>;
        // A query may see further than the panel, whose last tile may have columns of no key.
        auto until = [&](int64_t row) { return std::min(hi[std::size_t(row)] - shift, panel.count); };
        if (lo[std::size_t(i + R - 1)] - shift <= j && until(i) >= j + width) return;
        if (j + width <= panel.heads) return;
        Ints<T> lane;
        for (int l = 0; l < LANES<T>; ++l) lane[l] = l;
        for (int a = 0; a < R; ++a) {
            const int64_t low = lo[std::size_t(i + a)] - shift - j, high = until(i + a) - j;
            const int64_t sunk = std::max(panel.heads, std::min(panel.count, sunk_for(i + a) - shift)) - j;
            for (int c = 0; c < N; ++c) {
                const Ints<T> at = lane + int(c * LANES<T>);
                const Ints<T> seen = ((at >= clip(low)) & (at < clip(high))) | (at < clip(sunk));
                tile.acc[a][c] = from_bits<T>((bits<T>(tile.acc[a][c]) & seen) | (bits<T>(other) & ~seen));
            }
        }
    }

    static KT_INLINE int clip(int64_t x) {
        return int(std::max<int64_t>(-1, std::min<int64_t>(x, 1 << 20)));
    }

    template <int R, class F> KT_INLINE void tiles(const Reach& r, F&& f) const {
        for (int64_t j = 0; j < r.sunk; j += TILE_COLUMNS<T>) f(j);
        for (int64_t j = r.from; j < r.to; j += TILE_COLUMNS<T>) f(j);
    }

    void add(int64_t n, int64_t base) {
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value, N = TILE_VECS;
            const Reach r = reach(i, R, base);
            if (r.none()) return;
            Vec<T> high[R];
            for (int a = 0; a < R; ++a) high[a] = splat(T(NOTHING));
            tiles<R>(r, [&](int64_t j) __attribute__((always_inline)) {
                Tile<T, R, N> tile;
                tile.clear();
                tile.add(q.x + i * q.stride, q.stride, 1, panel.lanes + j, Kp, d);
                hide<R, N>(tile, i, j, base, splat(T(NOTHING)));
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int c = 0; c < N; ++c) {
                        high[a] = kt::KT_ISA::most(tile.acc[a][c], high[a]);
                        store(strip + a * Kp + j + c * LANES<T>, tile.acc[a][c]);
                    }
            });
            T keep[R], level[R];
            bool some = false;
            for (int a = 0; a < R; ++a) {
                const T before = top[i + a], now = std::max(before, largest<T>(high[a]));
                level[a] = now == T(NOTHING) ? T(0) : now;
                keep[a] = before == T(NOTHING) ? T(0) : before == now ? T(1) : std::exp(before - now);
                top[i + a] = now;
                some |= now != T(NOTHING);
            }
            if (!some) return;
            Vec<T> total[R] = {};
            tiles<R>(r, [&](int64_t j) __attribute__((always_inline)) {
                Tile<T, R, N> tile;
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int c = 0; c < N; ++c)
                        tile.acc[a][c] = exp_down<T>(load(strip + a * Kp + j + c * LANES<T>) - level[a]);
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int c = 0; c < N; ++c) {
                        total[a] += tile.acc[a][c];
                        store(strip + a * Kp + j + c * LANES<T>, tile.acc[a][c]);
                    }
            });
            for (int a = 0; a < R; ++a) den[i + a] = den[i + a] * keep[a] + sum<T>(total[a]);
            const int64_t sunk = std::min(r.sunk, panel.count);
            by_cols<T>(Mp, [&](auto cols, int64_t c) {
                constexpr int C = decltype(cols)::value;
                Tile<T, R, C> tile;
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int e = 0; e < C; ++e)
                        tile.acc[a][e] = load(mixed + (i + a) * Mp + c + e * LANES<T>) * keep[a];
                if (sunk) tile.add(strip, Kp, 1, panel.v.x + c, panel.v.stride, sunk);
                if (r.to > r.from)
                    tile.add(strip + r.from, Kp, 1, panel.v.x + r.from * panel.v.stride + c,
                             panel.v.stride, r.to - r.from);
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int e = 0; e < C; ++e)
                        store(mixed + (i + a) * Mp + c + e * LANES<T>, tile.acc[a][e]);
            });
        });
        if (panel.k.any_bad || panel.v.any_bad) note_bad(n, base);
    }

    // Which columns of which rows a NaN or inf reaches; the last column stands for all of a row.
    void note_bad(int64_t n, int64_t base) {
        if (!any_bad) bad.assign(std::size_t(n * (M + 1)), 0);
        any_bad = true;
        for (int64_t i = 0; i < n; ++i) {
            uint8_t* flags = bad.data() + i * (M + 1);
            for (int64_t j = 0; j < panel.count; ++j) {
                if (!sees(i, j, base)) continue;
                if (panel.k.any_bad && panel.k.bad[std::size_t(j)]) std::fill(flags, flags + M + 1, 1);
                for (int64_t c = 0; c < M && panel.v.any_bad; ++c)
                    flags[c] |= panel.v.bad[std::size_t(j * M + c)];
            }
        }
    }

    Arena arena;
    const Problem& p;
    const int64_t d, M;
    Panel<T> panel;
    const int64_t Mp, dp, Kp;
    Block<T> q;
    T *q_rows, *mixed, *den, *top, *strip;
    std::vector<int64_t> lo, hi;
    std::vector<int32_t> head, in_head;  // keys in front of a panel: to come, and of the one at hand
    std::vector<uint8_t> bad;
    bool any_bad = false;
    int64_t sinks_end = 0;
    const bool whole;  // a block sees one panel
};

}  // namespace KT_ISA
}  // namespace kt
