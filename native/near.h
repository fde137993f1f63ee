// Exact attention over the keys near by: for a block of queries, Σ e^{s·q·k − c} of the values and of
// ones over the keys that each query sees exactly, c the largest exponent of the row. Keys are taken
// a panel at a time, and what is there is scaled down when a larger exponent comes (online softmax),
// so no row depends on later tokens, and nothing of size n × n is formed. With a window without end
// this is softmax attention; otherwise the far part (row.h) is joined with it (join.h).
#pragma once

#include "maps.h"
#include "sizes.h"

namespace kt {
namespace KT_ISA {

constexpr int64_t PANEL_KEYS = 96;    // keys of a panel: with their values they stay in L2

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

    // `front` (keys in order, or below 0 sinks that the state has kept), then the keys a … a + n − 1.
    void load(int64_t row, const Line& line, const std::vector<int32_t>& front, int64_t a, int64_t n) {
        fronts = int64_t(front.size());
        count = fronts + n;
        columns = round_up(count, TILE_COLUMNS<T>);
        if (fronts == 0 && line.run(a, n)) {
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
                const int64_t at = i < fronts ? front[std::size_t(i)] : a + i - fronts;
                const int64_t id = at < 0 ? at : line.at(at);
                read_token<T>(id < 0 ? p.near_k : p.k, p.type, row, id < 0 ? -1 - id : id, d, T(1),
                              k_rows + i * dp);
                std::fill(k_rows + i * dp + d, k_rows + (i + 1) * dp, T(0));
                read_token<T>(id < 0 ? p.near_v : p.v, p.type, row, id < 0 ? -1 - id : id, M, T(1),
                              v_rows + i * Mp);
                std::fill(v_rows + i * Mp + M, v_rows + (i + 1) * Mp, T(0));
            }
        }
        if (!known_finite(row, a, n)) {
            clean(k, count, d, dp, T(1), false, k_rows);
            clean(v, count, M, Mp, T(0), true, v_rows);
        }
        to_lanes(k.x, k.stride, count, columns, d, lanes, Kp);
    }

    const Problem& p;
    const int64_t d, M, Mp, dp, Kp;
    int64_t fronts = 0, count = 0, columns = 0;
    Block<T> k, v;
    T *k_rows, *v_rows, *lanes;

  private:
    // Whether all that has been loaded is finite. Most keys of a window were in the panel before.
    bool known_finite(int64_t row, int64_t a, int64_t n) {
        const bool more = row == fine_row && a >= fine_from && a <= fine_to;
        const int64_t from = fronts + (more ? std::min(n, fine_to - a) : 0);
        const bool fine = finite(k, 0, fronts, d) && finite(k, from, count, d) && finite(v, 0, fronts, M) &&
                          finite(v, from, count, M);
        fine_row = fine ? row : -1;
        if (!more) fine_from = fine_to = a;
        fine_to = std::max(fine_to, a + n);
        return fine;
    }

    int64_t fine_row = -1, fine_from = 0, fine_to = 0;
};

template <class T> KT_INLINE Vec<T> exp_down(Vec<T> x) {  // of x ≤ 0, −inf among them; 0 for what is not normal
    return from_bits<T>(bits<T>(exp<true>(most(x, splat(TAME<T>)))) & (x > splat(TAME<T>)));
}

template <class T> class Near {
  public:
    // A query head of the row, and its sums over the keys that it sees.
    struct Head {
        Block<T> q;
        T *q_rows, *mixed, *den, *top;
        std::vector<uint8_t> bad;
        bool any_bad = false;
    };

    Near(const Problem& p, int64_t rows, int64_t groups)
        : p(p), d(p.features.inputs), M(p.width), panel(p, longest(p, rows), arena), Mp(panel.Mp),
          dp(panel.dp), Kp(panel.Kp), heads(std::size_t(groups)), whole(band(p, rows) > 0) {
        for (Head& head : heads) {
            head.q_rows = arena.take<T>(rows * dp);
            head.mixed = arena.take<T>(rows * Mp);
            head.den = arena.take<T>(rows + TILE_ROWS);
            head.top = arena.take<T>(rows + TILE_ROWS);
        }
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
    void load_queries(Head& head, int64_t row, int64_t t, int64_t n) {
        Block<T>& q = head.q;
        q.any_bad = false;
        q.x = head.q_rows;
        q.stride = dp;
        bool fine = true;
        for (int64_t i = 0; i < n; ++i) {
            T* to = head.q_rows + i * dp;
            fine &= read_finite<T>(p.q, p.type, row, t + i, d, T(p.near_scale), to);
            std::fill(to + d, to + dp, T(0));
        }
        if (!fine) clean(q, n, d, dp, T(0), false, head.q_rows);
    }

    // mixed, den and top of the n queries from token t on, of every query head of the row: they see the
    // keys lo … hi − 1 of the line and the sinks; lo and hi do not fall.
    void attend(int64_t row, const Line& line, const Line::Segment& segment, int64_t t, int64_t n) {
        first = t;
        see(line, segment, t, n);
        for (std::size_t g = 0; g < heads.size(); ++g) {
            Head& head = heads[g];
            load_queries(head, row * p.groups + int64_t(g), t, n);
            std::fill(head.mixed, head.mixed + n * Mp, T(0));
            std::fill(head.den, head.den + n, T(0));
            std::fill(head.top, head.top + n, T(-INF));
            head.any_bad = false;
        }
        each_panel(row, line, segment, n, [&](int64_t base) {
            for (Head& head : heads) add(head, n, base);
        });
    }

    // Panel after panel of what the n queries see; `base` is the key in order that stands at panel.fronts.
    template <class F>
    void each_panel(int64_t row, const Line& line, const Line::Segment& segment, int64_t n, F&& f) {
        const int64_t begin = lo[0], end = hi[std::size_t(n - 1)];
        front.clear();
        if (p.sinks > 0) {
            if (segment.continues) front = line.kept_sinks;
            const int64_t until = std::min(Line::sinks_end(p, segment), begin);
            for (int64_t a = segment.first; a < until; ++a) front.push_back(int32_t(a));
            sinks_end = Line::sinks_end(p, segment);
            for (int64_t a = std::max({begin, end, segment.first}); a < sinks_end && !p.causal; ++a)
                front.push_back(int32_t(a));
        } else {
            sinks_end = 0;
        }
        const int64_t step = whole ? end - begin : PANEL_KEYS;
        for (int64_t a = begin; a < end || !front.empty(); a += step) {
            panel.load(row, line, front, a, std::max<int64_t>(0, std::min(step, end - a)));
            std::swap(in_front, front);
            front.clear();
            f(a);
            if (step <= 0) break;
        }
    }

    // Whether query i sees the key at index j of the panel.
    bool sees(int64_t i, int64_t j, int64_t base) const {
        const int64_t a = base + j - panel.fronts;
        return j < panel.fronts || (a >= lo[std::size_t(i)] && a < hi[std::size_t(i)]) || a < sunk_for(i);
    }

    // Where the sinks that query i sees end, in order: in full attention they may lie ahead.
    int64_t sunk_for(int64_t i) const {
        return p.causal ? std::min(sinks_end, hi[std::size_t(i)]) : sinks_end;
    }

    // The columns of the panel that rows i … i + R − 1 see: 0 … sunk − 1 and from … to − 1, of which
    // the first is `seen`.
    struct Reach {
        int64_t sunk, from, to, seen;
        bool none() const { return to <= from && sunk == 0; }
    };

    Reach reach(int64_t i, int64_t R, int64_t base) const {
        const int64_t step = LANES<T>, shift = base - panel.fronts;
        const int64_t low = std::max<int64_t>(0, lo[std::size_t(i)] - shift), from = low / step * step;
        const int64_t sinks = std::max(panel.fronts, std::min(panel.count, sunk_for(i + R - 1) - shift));
        const int64_t to = std::max({from, sinks, std::min(panel.count, hi[std::size_t(i + R - 1)] - shift)});
        return {std::min(round_up(sinks, step), from), from, to, sinks > from ? from : std::min(low, to)};
    }

    // tile of e^{…}: what is not seen becomes `other`.
    template <int R, int N>
    KT_INLINE void hide(Tile<T, R, N>& tile, int64_t i, int64_t j, int64_t base, Vec<T> other) const {
        const int64_t shift = base - panel.fronts, width = N * LANES<T>;
        // A query may see further than the panel, whose last tile may have columns of no key.
        auto until = [&](int64_t row) { return std::min(hi[std::size_t(row)] - shift, panel.count); };
        if (lo[std::size_t(i + R - 1)] - shift <= j && until(i) >= j + width) return;
        if (j + width <= panel.fronts) return;
        Ints<T> lane;
        for (int l = 0; l < LANES<T>; ++l) lane[l] = l;
        for (int a = 0; a < R; ++a) {
            const int64_t low = lo[std::size_t(i + a)] - shift - j, high = until(i + a) - j;
            const int64_t sunk = std::max(panel.fronts, std::min(panel.count, sunk_for(i + a) - shift)) - j;
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

    // f(registers of a tile, first column) for tiles that cover what is reached.
    template <class F> KT_INLINE void tiles(const Reach& r, F&& f) const {
        tiles(0, r.sunk, f);
        tiles(r.from, r.to, f);
    }

    template <class F> KT_INLINE void tiles(int64_t from, int64_t to, F& f) const {
        int64_t j = from;
        for (; j + LANES<T> < to; j += TILE_COLUMNS<T>) f(std::integral_constant<int, TILE_VECS>{}, j);
        if (j < to) f(std::integral_constant<int, 1>{}, j);
    }

    void add(Head& head, int64_t n, int64_t base) {
        const Block<T>& q = head.q;
        T *mixed = head.mixed, *den = head.den, *top = head.top;
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const Reach r = reach(i, R, base);
            if (r.none()) return;
            constexpr int RP = (R + LANES<T> - 1) / LANES<T> * LANES<T>;
            Vec<T> high[RP];
            for (int a = 0; a < RP; ++a) high[a] = splat(T(-INF));
            tiles(r, [&](auto vecs, int64_t j) __attribute__((always_inline)) {
                constexpr int N = decltype(vecs)::value;
                Tile<T, R, N> tile;
                tile.clear();
                tile.add(q.x + i * q.stride, q.stride, 1, panel.lanes + j, Kp, d);
                hide<R, N>(tile, i, j, base, splat(T(-INF)));
                tile.store(strip + j, Kp);
                tile.each([&](int a, int c) __attribute__((always_inline)) { high[a] = most(tile.acc[a][c], high[a]); });
            });
            T keep[R], level[R], here[RP];
            bool some = false;
            for (int a = 0; a < RP; a += LANES<T>) store(here + a, largest_of<T>(high + a));
            for (int a = 0; a < R; ++a) {
                const T before = top[i + a], now = std::max(before, here[a]);
                level[a] = now == T(-INF) ? T(0) : now;
                keep[a] = before == T(-INF) ? T(0) : before == now ? T(1) : std::exp(before - now);
                top[i + a] = now;
                some |= now != T(-INF);
            }
            if (!some) return;
            Vec<T> total[RP] = {};
            tiles(r, [&](auto vecs, int64_t j) __attribute__((always_inline)) {
                constexpr int N = decltype(vecs)::value;
                Tile<T, R, N> tile;
                tile.load(strip + j, Kp);
                tile.change([&](Vec<T> x, int a, int) __attribute__((always_inline)) { return exp_down<T>(x - level[a]); });
                tile.store(strip + j, Kp);
                tile.each([&](int a, int c) __attribute__((always_inline)) { total[a] += tile.acc[a][c]; });
            });
            for (int a = 0; a < RP; a += LANES<T>) store(here + a, sums_of<T>(total + a));
            for (int a = 0; a < R; ++a) den[i + a] = den[i + a] * keep[a] + here[a];
            const int64_t sunk = std::min(r.sunk, panel.count);
            by_cols<T>(Mp, [&](auto cols, int64_t c) {
                constexpr int C = decltype(cols)::value;
                Tile<T, R, C> tile;
                tile.load(mixed + i * Mp + c, Mp);
                tile.change([&](Vec<T> x, int a, int) __attribute__((always_inline)) {
                    return keep[a] == T(0) ? Vec<T>{} : x * keep[a];  // forgotten, inf too
                });
                if (sunk) tile.add(strip, Kp, 1, panel.v.x + c, panel.v.stride, sunk);
                if (r.to > r.seen)
                    tile.add(strip + r.seen, Kp, 1, panel.v.x + r.seen * panel.v.stride + c,
                             panel.v.stride, r.to - r.seen);
                tile.store(mixed + i * Mp + c, Mp);
            });
        });
        if (panel.k.any_bad || panel.v.any_bad) note_bad(head, n, base);
    }

    // Which columns of which rows a NaN or inf reaches; the last column stands for all of a row.
    void note_bad(Head& head, int64_t n, int64_t base) {
        if (!head.any_bad) head.bad.assign(std::size_t(n * (M + 1)), 0);
        head.any_bad = true;
        for (int64_t i = 0; i < n; ++i) {
            uint8_t* flags = head.bad.data() + i * (M + 1);
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
    std::vector<Head> heads;
    int64_t first = 0;  // the first query at hand
    T* strip;
    std::vector<int64_t> lo, hi;
    std::vector<int32_t> front, in_front;  // keys in front of a panel: to come, and of the one at hand
    int64_t sinks_end = 0;
    const bool whole;  // a block sees one panel
};

}  // namespace KT_ISA
}  // namespace kt
