// One row by several threads, with the bits of one thread.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "pool.h"
#include "sums.h"

namespace kt {
namespace KT_ISA {

// Stores around the cache are seen by others.
inline void fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Blocks of a row: first token, count. Where nothing but the position ends a block.
template <class T> std::vector<std::pair<int64_t, int64_t>> blocks_of(const Sizes<T>& s) {
    const Problem& p = s.p;
    std::vector<std::pair<int64_t, int64_t>> blocks;
    for (int64_t t = 0; t < p.keys;) {
        const int64_t n = std::min(p.keys - t, s.C - (p.start + t) % s.C);
        blocks.emplace_back(t, n);
        t += n;
    }
    return blocks;
}

// Whether rows can be shared by threads, and how many of them one thread does by itself.
template <class T> int64_t rows_alone(const Sizes<T>& s, int threads) {
    const Problem& p = s.p;
    const bool plain = !s.has_scale && !s.decays && !p.restart.data;
    const bool shared = plain && threads > 1 && (p.keys + s.C - 1) / s.C >= 4 * threads;
    return shared ? p.rows / threads * threads : p.rows;
}

// The share of work that one thread alone would not have.
constexpr double WIDE_EXTRA = 0.25;

// A sweep over `count` blocks of one row by two threads. The first does block after block, `work(0, block)`.
// The second only sums them up, `sum(block)`, until as many lie between the two as are left; these it
// does itself, `work(1, block)`, and the first stops where the second began. Each has sums of its own,
// added up in order, so the results are the same bits. If one of them comes late, the other does more.
// Returns who did the last block.
template <class Sum, class Work> int64_t in_two(int64_t count, Control& control, Sum sum, Work work) {
    std::mutex mutex;
    int64_t begun = 0, end = count;  // of the first
    auto first = [&] {
        for (;;) {
            int64_t block;
            {
                const std::lock_guard<std::mutex> lock(mutex);
                if (begun == end) return;
                block = begun++;
            }
            if (control.stopped()) return;
            work(0, block);
        }
    };
    auto second = [&] {
        int64_t block = 0;
        for (;; ++block) {
            {
                const std::lock_guard<std::mutex> lock(mutex);
                if (begun == count || block == count) return;
                if (block - begun >= count - block) {
                    end = block;
                    break;
                }
            }
            if (control.stopped()) return;
            sum(block);
        }
        for (; block < count && !control.stopped(); ++block) work(1, block);
    };
    parallel(2, 2, [&](int64_t w) {
        w == 0 ? first() : second();
        fence();
    }, [&] { control.stopped(); }, WIDE_EXTRA);
    return end < count;
}

// The same by any number of threads: what a group of blocks adds to the sums at
// once, `add(thread, block, stop)`; their running total in order; then what needs the sums before each
// block at once, `use(thread, block, stop)`. The additions are those of one thread after another, so the
// results are the same bits; but sums are stored, and tokens are mapped twice.
template <class T, class Add, class Use>
void sweep(const Sizes<T>& s, Sums<T>& total, int64_t count, Control& control, Add add, bool uses, Use use) {
    const int64_t state = s.m * s.Mp;
    const bool begins = total.empty;
    total.fill(s);
    const int64_t room = std::max<int64_t>(1, (int64_t(4) << 20) / int64_t(sizeof(T)) / (state + s.m));
    const int64_t group = std::min<int64_t>(room, 64);
    const int64_t tasks = control.threads;
    std::vector<Stop<T>> stops[2];
    for (auto& half : stops) half.resize(std::size_t(std::min(group, count)));
    for (auto& half : stops)
        for (auto& stop : half) {
            stop.u.resize(std::size_t(state));
            stop.z.resize(std::size_t(s.m));
            stop.bad.assign(std::size_t(s.M + 1), 0);
        }
    const int64_t groups = (count + group - 1) / group;
    auto span = [&](int64_t g) { return std::make_pair(g * group, std::min((g + 1) * group, count)); };
    // total += block, and the block's place keeps what the total was before; by columns of memory.
    auto prefix = [&](int64_t g, int64_t from, int64_t to) {
        const auto [low, high] = span(g);
        for (int64_t c = low; c < high; ++c) {
            T* u = stops[g % 2][std::size_t(c - low)].u.data();
            for (int64_t i = from; i < to; i += LANES<T>) {
                const Vec<T> own = load(u + i), before = load(total.u + i);
                if (s.pairs)
                    accumulate_pair<T>(total.u + i, total.rest + i, own);
                else
                    accumulate<T>(total.U + i, total.u + i, own, false, 1, 1);
                store(u + i, before);
            }
        }
    };
    for (int64_t g = 0; g <= groups; ++g) {
        // The uses of the group before, and the sums of this one.
        std::atomic<int64_t> next{0};
        const auto [low, high] = span(g);
        const auto [low_before, high_before] = span(g - 1);
        const int64_t reads = uses && g > 0 ? high_before - low_before : 0;
        const int64_t sums = g < groups ? high - low : 0;
        parallel(tasks, control.threads, [&, low = low, low_before = low_before](int64_t w) {
            for (int64_t i = next.fetch_add(1); i < reads + sums && !control.stopped();
                 i = next.fetch_add(1)) {
                if (i < reads)
                    use(w, low_before + i, stops[(g + 1) % 2][std::size_t(i)]);
                else
                    add(w, low + i - reads, stops[g % 2][std::size_t(i - reads)]);
            }
            fence();
        }, {}, WIDE_EXTRA);
        if (control.stopped()) return;
        if (g == groups) break;
        const int64_t part = round_up((state + tasks - 1) / tasks, 64);
        parallel(tasks, control.threads, [&](int64_t w) {
            prefix(g, std::min(w * part, state), std::min((w + 1) * part, state));
        }, {}, WIDE_EXTRA);
        for (int64_t c = low; c < high; ++c) {
            Stop<T>& stop = stops[g % 2][std::size_t(c - low)];
            stop.empty = begins && c == 0;
            for (int64_t i = 0; i < s.m; ++i) {
                const T own = stop.z[std::size_t(i)];
                stop.z[std::size_t(i)] = total.z[i];
                total.Z[i] += double(own);
                total.z[i] = T(total.Z[i]);
            }
            for (std::size_t i = 0; i < total.bad.size(); ++i) {
                const uint8_t own = stop.bad[i];
                stop.bad[i] = total.bad[i];
                total.bad[i] |= own;
            }
        }
    }
}

}  // namespace KT_ISA
}  // namespace kt
