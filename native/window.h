// A row in which some keys are near. The far part is that of row.h with keys that come `window` tokens
// late: query a sees by the map the keys up to a − window, and exactly those from there on. So both
// parts go through the row in step, stretch by stretch of tokens that follow each other in memory.
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

// What is done at once from key a of the line on: `count` queries that follow each other and, where
// there are any, as many keys that have just become far.
struct Step {
    int64_t count;
    bool keys;
};

inline Step next_step(const Problem& p, const Line& line, const Line::Segment& segment, int64_t a,
                      int64_t C) {
    const int64_t rank = segment.rank + a - segment.first;
    int64_t n = stretch(line, a, std::min(segment.end - a, C - rank % C));
    if (p.features.count == 0) return {n, false};
    const int64_t far = far_from(p, segment), behind = a - p.window;
    if (behind < far) return {std::min(n, far - behind), false};
    return {stretch(line, behind, n), true};
}

// The key that has left the window of whatever follows the last token, or −1.
inline int64_t left_behind(const Problem& p, const Line& line) {
    const Line::Segment& last = line.segments.back();
    const bool some = p.features.count > 0 && p.window > 0 && far_from(p, last) <= last.end - p.window;
    return some ? last.end - p.window : -1;
}

template <class T> class Window {
  public:
    explicit Window(const Sizes<T>& s)
        : s(s), p(s.p), row(s, false), near(p, s.C), sums(s, row.arena), token(std::size_t(s.C)) {
        row.near = &near;
    }

    void run(int64_t r, const Line& line, bool stream, Control& control) {
        sums.read(s, p.sums + r * s.m * (s.M + 1));
        sums.narrow(s);
        if (s.has_scale) sums.ref = p.log_scale[r];
        sums.set_bad(p.bad ? p.bad + r * (s.M + 1) : nullptr);
        for (const Line::Segment& segment : line.segments) {
            if (!segment.continues) sums.forget(s);
            for (int64_t a = segment.first; a < segment.end;) {
                if (control.stopped()) return;
                a += causal(r, line, segment, a, stream);
            }
        }
        const int64_t last = left_behind(p, line);
        if (last >= 0) {
            load_keys(r, line, last, 1);
            row.absorb(sums, r);
        }
        sums.write(s, p.sums + r * s.m * (s.M + 1));
        if (s.has_scale) p.log_scale[r] = sums.ref;
        if (p.bad) std::copy(sums.bad.begin(), sums.bad.end(), p.bad + r * (s.M + 1));
    }

    // Full attention without a far part: the queries t … t + n − 1.
    void full(int64_t r, const Line& line, int64_t t, int64_t n, bool stream) {
        const Line::Segment& all = line.segments[0];
        for (int64_t i = 0; i < n; ++i) {
            const int64_t rank = line.before(t + i);
            token[std::size_t(i)] = t + i;
            near.lo[std::size_t(i)] = std::max<int64_t>(0, rank - p.window + 1);
            near.hi[std::size_t(i)] = std::min(all.end, rank + p.window);
        }
        row.no_keys(sums);
        for (int64_t g = 0; g < p.groups; ++g) look(r, r * p.groups + g, line, all, t, n, false, stream);
    }

    // The queries from key a of the line on: returns how many it has done.
    int64_t causal(int64_t r, const Line& line, const Line::Segment& segment, int64_t a, bool stream) {
        if (line.at(a) < 0) return 1;  // a token of the state's: it has had its turn
        auto [n, keys] = next_step(p, line, segment, a, s.C);
        if (keys) {
            load_keys(r, line, a - p.window, n);
            n = row.count;
        } else {
            row.no_keys(sums);
        }
        const int64_t t = line.at(a);
        for (int64_t i = 0; i < n; ++i) {
            token[std::size_t(i)] = t + i;
            near.lo[std::size_t(i)] = std::max(segment.first, a + i - p.window + 1);
            near.hi[std::size_t(i)] = a + i + 1;
        }
        for (int64_t g = 0; g < p.groups; ++g) look(r, r * p.groups + g, line, segment, t, n, keys, stream);
        if (keys) row.absorb(sums, r);
        return n;
    }

    // Outputs of hidden queries are 0.
    void blank(const Problem& whole, int64_t r) {
        const View& mask = p.causal ? whole.mask : whole.query_mask;
        for (int64_t g = 0; g < p.groups && mask.data; ++g)
            for (int64_t t = 0; t < p.queries; ++t) {
                const int64_t q = r * p.groups + g;
                if (*mask.at(p.causal ? r : q, t)) continue;
                row.fill_out(q, t, T(0));
                if (p.zero) p.zero[q * p.queries + t] = 0;
                if (p.normalizer) p.normalizer[q * p.queries + t] = p.near_normalizer[q * p.queries + t] = 0;
            }
    }

  private:
    void look(int64_t r, int64_t q, const Line& line, const Line::Segment& segment, int64_t t, int64_t n,
              bool keys, bool stream) {
        near.load_queries(q, token.data(), n);
        near.attend(r, line, segment, n);
        row.load_queries(q, r, t, n, View{});
        row.read_out(sums, q, t, n, keys, stream);
    }

    void load_keys(int64_t r, const Line& line, int64_t a, int64_t n) {
        const int64_t key = line.at(a);
        if (key >= 0)
            row.load_keys(r, key, n, sums.ref);
        else
            row.load_keys(r, -1 - key, n, sums.ref, p.near_k, p.near_v, p.near_positions);
    }

    const Sizes<T>& s;
    const Problem& p;
    Row<T> row;
    Near<T> near;
    Sums<T> sums;
    std::vector<int64_t> token;
};

}  // namespace KT_ISA
}  // namespace kt
