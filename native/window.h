// A row in which some keys are near. The far part is that of row.h with keys that come `window` tokens
// late: query a sees by the map the keys up to a − window, and exactly those from there on. So both
// parts go through the row in step, turn by turn. In full attention there are far keys ahead as well:
// the far part goes through the row once more, backwards.
#pragma once

#include "row.h"

namespace kt {
namespace KT_ISA {

// The call as the far part sees it: hidden tokens and restarts are in the Line.
inline Problem far_part(const Problem& p) {
    Problem far = p;
    far.mask = far.query_mask = far.restart = View{};
    far.decay_width = 0;
    return far;
}

inline View backwards(View view, int64_t n) {
    if (view.data) view.data += (n - 1) * view.token;
    view.token = -view.token;
    return view;
}

// The same call with its last token first, and no state.
inline Problem backwards(const Problem& p) {
    Problem back = p;
    for (View* view : {&back.q, &back.output, &back.q_positions, &back.q_scale})
        *view = backwards(*view, p.queries);
    for (View* view : {&back.k, &back.v, &back.k_positions, &back.k_scale})
        *view = backwards(*view, p.keys);
    back.reversed = true;
    return back;
}

// Whether there are far keys before a query and ahead of it, with near ones in between.
inline bool both_ways(const Problem& p) { return !p.causal && p.features.count > 0 && p.window > 0; }

// What is done at once: queries that follow each other, and keys that have just become far. As many
// keys as queries: query i sees the first i + 1 of them. Keys and no query: they are added to the sums.
struct Turn {
    int64_t token, queries;
    int64_t key, keys;  // the first in order
    int64_t segment;
    bool fresh;  // the sums begin anew
    int64_t place;  // of the first query: its rank in the segment, or in full attention its token
    int64_t block;  // queries, from its first on, that look at the keys near by at once; 0: done before
};

// How many keys from a on, at most n, follow each other in memory.
inline int64_t stretch(const Line& line, int64_t a, int64_t n) {
    if (line.key.empty()) return n;
    const int64_t first = line.at(a), step = first < 0 ? -1 : 1;
    int64_t i = 1;
    while (i < n && line.at(a + i) == first + step * i) ++i;
    return i;
}

// The first key of a segment that can be far: sinks never are.
inline int64_t far_from(const Problem& p, const Line::Segment& segment) {
    return std::max(segment.first, Line::sinks_end(p, segment));
}

// Turns whose queries follow each other look at the keys near by together, at most `rows` of them, in
// blocks that end at fixed places: where a block begins decides the order of its sums, and must not
// depend on how many tokens follow.
inline void join(std::vector<Turn>& all, int64_t rows) {
    for (std::size_t i = 0; i < all.size();) {
        Turn& first = all[i];
        for (++i; i < all.size(); ++i) {
            if (all[i].queries == 0) continue;
            if (all[i].segment != first.segment || all[i].token != first.token + first.block ||
                all[i].place / rows != first.place / rows || first.block + all[i].queries > rows)
                break;
            first.block += std::exchange(all[i].block, 0);
        }
    }
}

// All turns of a row, in blocks of at most C that end at fixed ranks.
inline std::vector<Turn> turns(const Problem& p, const Line& line, int64_t C) {
    std::vector<Turn> all;
    const bool far = p.features.count > 0;
    const int64_t late = p.window;
    for (std::size_t number = 0; number < line.segments.size(); ++number) {
        const Line::Segment& s = line.segments[number];
        // The next key that becomes far, and where they end: going backwards, before the sinks.
        int64_t next = p.reversed ? s.first : far_from(p, s);
        const int64_t end = p.reversed ? s.end - (far_from(p, s) - s.first) : s.end;
        bool fresh = !s.continues;
        auto push = [&](int64_t token, int64_t queries, int64_t key, int64_t keys, int64_t place) {
            all.push_back(
                {token, queries, key, keys, int64_t(number), std::exchange(fresh, false), place, queries});
        };
        // Queries that are keys a … of the line.
        auto queries_at = [&](int64_t a, int64_t n) {
            const int64_t behind = a - late, place = p.causal ? s.rank + a - s.first : line.at(a);
            if (far && behind >= next && behind < end) {
                n = stretch(line, behind, std::min(n, end - behind));
                push(line.at(a), n, behind, n, place);
                next += n;
                return n;
            }
            if (far && behind < next) n = std::min(n, next - behind);
            push(line.at(a), n, -1, 0, place);
            return n;
        };
        for (int64_t a = s.first; a < s.end && p.causal;) {
            const int64_t n = stretch(line, a, std::min(s.end - a, C - (s.rank + a - s.first) % C));
            a += line.at(a) < 0 ? n : queries_at(a, n);
        }
        if (!both_ways(p) && !p.causal) {  // every query sees all far keys: these come first
            for (int64_t a = next; a < end && far;) {
                const int64_t n = stretch(line, a, std::min(end - a, C - a % C));
                push(0, 0, a, n, 0);
                a += n;
            }
            for (int64_t t = 0; t < p.queries; t += C) push(t, std::min(C, p.queries - t), -1, 0, t);
        }
        for (int64_t t = 0; t < p.queries && both_ways(p);) {
            const int64_t a = line.before(t);
            if (a < s.end && line.at(a) == t) {
                t += queries_at(a, stretch(line, a, std::min({s.end - a, C - a % C, p.queries - t})));
                continue;
            }
            // Queries whose own key is hidden: of the rank that it would have.
            const int64_t rank = p.reversed ? a - 1 : a;
            if (far && rank - late >= next && next < end) push(0, 0, std::exchange(next, next + 1), 1, 0);
            const int64_t key = a < s.end && line.at(a) > t ? line.at(a) : p.queries;
            const int64_t n = std::min({C - t % C, key - t, p.queries - t});
            push(t, n, -1, 0, t);
            t += n;
        }
        if (fresh) push(0, 0, -1, 0, 0);
        // One more key has left the window of whatever follows the last token.
        const bool last = number + 1 == line.segments.size() && far && !p.reversed && p.window > 0;
        if (last && next <= s.end - p.window) push(0, 0, next, 1, 0);
    }
    return all;
}

template <class T, class Kernel> class Window {
  public:
    explicit Window(const Sizes<T>& s)
        : s(s), p(s.p), row(s, false), near(p, near_rows(s), p.groups), sums(s, row.arena) {}

    // Queries of a block of the near part: each block takes up the keys of a window anew.
    static int64_t near_rows(const Sizes<T>& s) { return s.m > 0 && s.p.groups == 1 ? 2 * s.C : s.C; }

    // Every turn of a row. In full attention with a far part, the sums so far are handed on.
    void run(int64_t r, const Line& line, bool stream, Control& control) {
        sums.begin(s, r);
        if (both_ways(p)) handed = std::make_unique<Handed>(p, s.Mp);
        std::vector<Turn> all = turns(p, line, s.C);
        join(all, near_rows(s));
        for (const Turn& turn : all) {
            if (control.stopped()) return;
            take(r, line, turn, stream);
        }
        sums.end(s, r);
        if (handed) {
            for (std::size_t c = 0; c < handed->bad.size(); ++c) handed->bad[c] |= sums.bad[c];
            ahead(r, line, stream, control);
        }
    }

    // The queries and keys of a turn.
    void take(int64_t r, const Line& line, const Turn& turn, bool stream) {
        if (turn.fresh) sums.forget(s);
        if (turn.block && !p.reversed)
            near.attend(r, line, line.segments[std::size_t(turn.segment)], turn.token, turn.block);
        const int64_t count = std::max(turn.queries, turn.keys);
        if (s.m > 0 && turn.queries && line.key.empty()) row.fetch_block(r, turn.token + near_rows(s), !p.causal);
        for (int64_t done = 0; done < count;) {  // factors out of range cut a block short
            int64_t n = count - done;
            if (turn.keys) {
                row.load_keys(r, line, turn.key + done, n, sums.ref);
                n = row.keys.count;
            } else {
                row.no_keys(sums.ref);
            }
            const int64_t t = turn.token + done;
            for (int64_t g = 0; g < p.groups && turn.queries; ++g)
                look(g, r, t, n, turn.keys > 0, stream);
            if (turn.keys) row.absorb(sums, r);
            done += n;
        }
    }

    // Outputs of hidden queries are 0.
    void blank(const Problem& whole, int64_t r) {
        const View& mask = p.causal ? whole.mask : whole.query_mask;
        for (int64_t g = 0; g < p.groups && mask.data; ++g)
            for (int64_t t = 0; t < p.queries; ++t) {
                const int64_t q = r * p.groups + g, at = q * p.queries + t;
                if (*mask.at(p.causal ? r : q, t)) continue;
                row.output.fill(q, t, T(0));
                if (p.zero) p.zero[at] = 0;
                if (p.near_normalizer) p.near_normalizer[at] = 0;
            }
    }

  private:
    // What the first way through a row hands on to the second: sums of near and far keys so far, in the
    // output where it has their type, else here.
    struct Handed {
        Handed(const Problem& p, int64_t Mp) : bad(std::size_t(p.width + 1)) {
            const int64_t n = p.groups * p.queries;
            bool straight = p.width == Mp;
            for (int64_t r = 0; r < p.rows * p.groups && straight; ++r)
                straight = direct<T>(p.output, p.output_type, r, p.width);
            if (!straight) mixed = own.take<T>(n * Mp);
            for (T** x : {&den, &level, &top}) *x = own.take<T>(n);
        }
        Arena own;
        T *mixed = nullptr, *den = nullptr, *level = nullptr, *top = nullptr;
        std::vector<uint8_t> bad;
    };

    void look(int64_t group, int64_t r, int64_t t, int64_t n, bool keys, bool stream) {
        const int64_t q = r * p.groups + group;
        if (p.reversed) {
            take_over(group, q, t, n);
        } else {
            const typename Near<T>::Head& head = near.heads[std::size_t(group)];
            const int64_t at = t - near.first;
            row.output.near = {head.mixed + at * s.Mp, s.Mp, head.den + at, head.top + at, head.top + at,
                        head.any_bad ? head.bad.data() + at * (s.M + 1) : nullptr,
                        head.q.any_bad ? head.q.bad.data() + at : nullptr};
            if (handed) hand_on(group, q, t, n);
        }
        row.load_queries(q, r, t, n, View{});
        row.output.write_block(sums, q, t, n, keys, stream);
        if (handed && row.output.near.bad)
            for (int64_t i = 0; i < n * (s.M + 1); ++i)
                handed->bad[std::size_t(i % (s.M + 1))] |= row.output.near.bad[i];
    }

    // Where the sums of query t of a group are handed on; p's views may run backwards.
    T* place(int64_t group, int64_t q, int64_t t) const {
        if (!handed->mixed) return reinterpret_cast<T*>(p.output.at(q, t));
        return handed->mixed + p.slot(group, t) * s.Mp;
    }
    int64_t step() const {
        if (!handed->mixed) return p.output.token / int64_t(sizeof(T));
        return p.reversed ? -s.Mp : s.Mp;
    }

    void hand_on(int64_t group, int64_t q, int64_t t, int64_t n) {
        const int64_t at = p.slot(group, t);
        row.output.unfinished = {place(group, q, t), step(), handed->den + at, handed->level + at};
        std::copy(row.output.near.top, row.output.near.top + n, handed->top + at);
    }

    void take_over(int64_t group, int64_t q, int64_t t, int64_t n) {
        typename Near<T>::Head& head = near.heads[0];
        for (int64_t i = 0; i < n; ++i) {
            const int64_t at = p.slot(group, t + i);
            head.den[i] = handed->den[at];
            head.top[i] = handed->level[at];
            tops[std::size_t(i)] = handed->top[at];
        }
        row.output.near = {place(group, q, t), step(), head.den, head.top, tops.data(), nullptr, nullptr};
    }

    // The second way: far keys ahead of each query.
    void ahead(int64_t r, const Line& line, bool stream, Control& control) {
        const Problem back = backwards(p);
        const Sizes<T> sizes(back);
        Window<T, Kernel> window(sizes);
        window.handed = std::move(handed);
        window.tops.resize(std::size_t(s.C));
        window.sums.begin(sizes, r);
        const Line mirrored = line.mirrored(p.keys);
        for (const Turn& turn : turns(back, mirrored, s.C)) {
            if (control.stopped()) return;
            window.take(r, mirrored, turn, stream);
        }
        const std::vector<uint8_t>& bad = window.handed->bad;
        if (std::none_of(bad.begin(), bad.end(), [](uint8_t b) { return b; })) return;
        for (int64_t g = 0; g < p.groups; ++g)  // every query sees every key
            for (int64_t t = 0; t < p.queries; ++t) row.output.spoil_columns(r * p.groups + g, t, bad);
    }

    const Sizes<T>& s;
    const Problem& p;
    Row<T, Kernel> row;
    Near<T> near;
    Sums<T> sums;
    std::unique_ptr<Handed> handed;
    std::vector<T> tops;
};

}  // namespace KT_ISA
}  // namespace kt
