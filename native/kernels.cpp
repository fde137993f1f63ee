// The kernels of one instruction set. This file is compiled twice for each: for arithmetic in float32
// and, with KT_WIDE, in float64.
#include <optional>

#include "core.h"
#include "flush.h"
#include "grad.h"
#include "near_grad.h"
#include "pool.h"
#include "spares.h"
#include "step.h"
#include "sweep.h"
#include "window.h"

namespace kt {
namespace KT_ISA {
namespace {

// Rows long enough that their outputs leave the cache anyway are written around it.
template <class T> bool streams(const Problem& p) {
    const int64_t bytes = p.rows * p.groups * p.queries * p.width * int64_t(sizeof(T));
    if (bytes < (int64_t(8) << 20) || p.output.token % KT_VECTOR_BYTES) return false;
    for (int64_t row = 0; row < p.rows * p.groups; ++row)
        if (reinterpret_cast<uintptr_t>(p.output.at(row, 0)) % KT_VECTOR_BYTES) return false;
    return true;
}

// Full attention: queries from … to of all heads that share row r, which see the whole state.
template <class T, class Kernel>
void read_all(Row<T, Kernel>& row, Sums<T>& sums, int64_t r, int64_t from, int64_t to, bool stream,
              Control& control) {
    const Problem& p = row.p;
    row.no_keys(sums.ref);
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t t = from; t < to; t += row.s.C) {
            if (control.stopped()) return;
            const int64_t n = std::min(row.s.C, to - t), q = r * p.groups + g;
            row.load_queries(q, q, t, n, p.query_mask);
            row.prefetch = Prefetch{};
            row.fetch_queries(q, t + n, std::min(row.s.C, p.queries - t - n));
            row.output.write_block(sums, q, t, n, false, stream);
        }
}

// What a thread needs for its rows, or for blocks of one that several threads share.
template <class T, class Kernel> struct Worker {
    Row<T, Kernel> row;
    Sums<T> sums;
    explicit Worker(const Sizes<T>& s) : row(s, false), sums(s, row.arena) {}
};

// The block of a row from token t on: with `looks` the outputs of its tokens, and the sums after it.
// Returns how many tokens it has.
template <class T, class Kernel>
int64_t run_block(Worker<T, Kernel>& worker, int64_t r, int64_t t, bool looks, bool stream) {
    auto& [row, sums] = worker;
    const Sizes<T>& s = row.s;
    const Problem& p = s.p;
    row.load_keys(r, t, row.extent(r, t), sums.ref);
    const int64_t n = row.keys.count;
    row.fetch_block(r, t + n, !looks);
    if (looks) {
        if (s.by_feature) sums.narrow(s, row.scaling.enter, true);
        for (int64_t g = 0; g < p.groups; ++g) {
            row.load_queries(r * p.groups + g, r, t, n, p.mask);
            row.output.write_block(sums, r * p.groups + g, t, n, true, stream);
        }
    }
    // Without a state to be returned, nobody looks at what the last keys add.
    if (p.sums || !p.causal || t + n < p.keys) row.absorb(sums, r);
    return n;
}

// A whole row, block after block.
template <class T, class Kernel> void run_row(Worker<T, Kernel>& worker, int64_t r, bool stream, Control& control) {
    auto& [row, sums] = worker;
    const Sizes<T>& s = row.s;
    const Problem& p = s.p;
    sums.begin(s, r);
    for (int64_t t = 0; t < p.keys;) {
        if (control.stopped()) return;
        t += run_block(worker, r, t, p.causal, stream);
    }
    if (!p.causal) read_all(row, sums, r, 0, p.queries, stream, control);
    sums.end(s, r);
    fence();
}

// One row by all threads.
template <class T, class Kernel> void run_wide(const Sizes<T>& s, int64_t r, bool stream, Control& control) {
    const Problem& p = s.p;
    const int64_t tasks = control.threads;
    std::vector<std::unique_ptr<Worker<T, Kernel>>> workers;
    for (int64_t i = 0; i < tasks; ++i) workers.push_back(std::make_unique<Worker<T, Kernel>>(s));
    const auto blocks = blocks_of(s);
    if (tasks == 2 && p.causal) {
        for (auto& worker : workers) worker->sums.begin(s, r);
        auto work = [&](int64_t w, int64_t c, bool looks) {
            run_block(*workers[std::size_t(w)], r, blocks[std::size_t(c)].first, looks, stream);
        };
        const int64_t last = in_two(
            int64_t(blocks.size()), control, [&](int64_t c) { work(1, c, false); },
            [&](int64_t w, int64_t c) { work(w, c, true); });
        if (!control.stopped()) workers[std::size_t(last)]->sums.end(s, r);
        return;
    }
    Arena arena;
    Sums<T> total(s, arena);
    total.begin(s, r);
    auto add = [&](int64_t w, int64_t c, Stop<T>& stop) {
        auto& [row, sums] = *workers[std::size_t(w)];
        row.load_keys(r, blocks[std::size_t(c)].first, blocks[std::size_t(c)].second, -INF);
        row.absorb(sums, r, stop);
    };
    auto use = [&](int64_t w, int64_t c, Stop<T>& stop) {
        Worker<T, Kernel>& worker = *workers[std::size_t(w)];
        const auto [t, n] = blocks[std::size_t(c)];
        worker.row.load_keys(r, t, n, -INF);
        worker.sums.with(stop, [&, t = t, n = n] {
            for (int64_t g = 0; g < p.groups; ++g) {
                worker.row.load_queries(r * p.groups + g, r, t, n, p.mask);
                worker.row.output.write_block(worker.sums, r * p.groups + g, t, n, true, stream);
            }
        });
    };
    sweep(s, total, int64_t(blocks.size()), control, add, p.causal, use);
    if (control.stopped()) return;
    if (!p.causal) {
        total.any_bad = std::any_of(total.bad.begin(), total.bad.end(), [](uint8_t b) { return b; });
        const int64_t part = round_up((p.queries + tasks - 1) / tasks, s.C);
        parallel(tasks, control.threads, [&](int64_t w) {
            read_all(workers[std::size_t(w)]->row, total, r, std::min(w * part, p.queries),
                     std::min((w + 1) * part, p.queries), stream, control);
            fence();
        });
    }
    total.end(s, r);
}

// The gradient of one causal row by all threads: two sweeps, forward and backward, as `RowGradient` has them.
template <class T, class Kernel>
void run_wide_backward(const Sizes<T>& s, const Gradient& g, int64_t r, Control& control) {
    std::vector<std::unique_ptr<RowGradient<T, Kernel>>> workers;
    for (int64_t i = 0; i < control.threads; ++i)
        workers.push_back(std::make_unique<RowGradient<T, Kernel>>(s, g));
    const auto blocks = blocks_of(s);
    const int64_t count = int64_t(blocks.size());
    if (control.threads == 2) {
        for (auto& worker : workers) worker->begin(r, nullptr, nullptr);
        auto from_end = [&](int64_t c) { return blocks[std::size_t(count - 1 - c)]; };
        in_two(
            count, control, [&](int64_t c) { workers[1]->sum_keys(r, blocks[std::size_t(c)].first); },
            [&](int64_t w, int64_t c) {
                workers[std::size_t(w)]->queries(r, blocks[std::size_t(c)].first, nullptr, false);
            });
        const int64_t last = in_two(
            count, control, [&](int64_t c) { workers[1]->sum_queries(r, from_end(c).first, from_end(c).second); },
            [&](int64_t w, int64_t c) {
                workers[std::size_t(w)]->keys(r, from_end(c).first, from_end(c).second, -INF, nullptr);
            });
        if (!control.stopped()) workers[std::size_t(last)]->end(r);
        return;
    }
    Arena arena;
    Sums<T> sums(s, arena), G(s, arena);
    sums.begin(s, r);
    double* d_state = g.d_sums ? g.d_sums + r * s.m * (s.M + 1) : nullptr;
    G.read(s, d_state);
    sweep(
        s, sums, count, control,
        [&](int64_t w, int64_t c, Stop<T>& stop) {
            workers[std::size_t(w)]->add_keys(r, blocks[std::size_t(c)].first, blocks[std::size_t(c)].second, stop);
        },
        true,
        [&](int64_t w, int64_t c, Stop<T>& stop) {
            workers[std::size_t(w)]->queries(r, blocks[std::size_t(c)].first, blocks[std::size_t(c)].second, stop);
        });
    if (control.stopped()) return;
    sweep(
        s, G, count, control,
        [&](int64_t w, int64_t c, Stop<T>& stop) {
            const auto [t, n] = blocks[std::size_t(count - 1 - c)];
            workers[std::size_t(w)]->add_queries(r, t, n, stop);
        },
        true,
        [&](int64_t w, int64_t c, Stop<T>& stop) {
            const auto [t, n] = blocks[std::size_t(count - 1 - c)];
            workers[std::size_t(w)]->keys(r, t, n, stop);
        });
    if (!control.stopped()) G.write(s, d_state);
}

// What a state has of a row besides its sums: the tokens that are near, and that nothing is left of
// what was before a restart.
inline void finish_row(const Problem& p, const Line& line, int64_t r) {
    line.keep(p, r);
    for (int64_t f = 0; f < p.decay_width && p.decay_total && line.segments.size() > 1; ++f)
        p.decay_total[r * p.decay_width + f] = -INF;
}

// Rows in which some keys are near. Without a far part their blocks do not wait for each other.
template <class T, class Kernel> void run_near(const Problem& whole, Control& control) {
    const Problem p = far_part(whole);
    const Sizes<T> s(p);
    const bool stream = streams<T>(p);
    Spares<Window<T, Kernel>> windows;
    auto row = [&](int64_t r) {
        if (control.stopped()) return;
        const Line line(whole, r);
        windows.with([&] { return std::make_unique<Window<T, Kernel>>(s); }, [&](Window<T, Kernel>& window) {
            window.run(r, line, stream, control);
            window.blank(whole, r);
        });
        finish_row(whole, line, r);
        fence();
    };
    if (s.m > 0) return parallel(p.rows, control.threads, row, [&] { control.stopped(); });
    std::vector<std::unique_ptr<Line>> lines(std::size_t(p.rows));
    std::vector<std::pair<int64_t, Turn>> all;  // with their row
    for (int64_t r = 0; r < p.rows; ++r) {
        lines[std::size_t(r)] = std::make_unique<Line>(whole, r);
        for (const Turn& turn : turns(p, *lines[std::size_t(r)], s.C)) all.emplace_back(r, turn);
    }
    // The last turns of a causal row take longest: they come first.
    if (p.causal)
        std::stable_sort(all.begin(), all.end(),
                         [](const auto& a, const auto& b) { return a.second.token > b.second.token; });
    std::atomic<int64_t> next{0};
    const int64_t count = int64_t(all.size()), tasks = std::min<int64_t>(control.threads, count);
    auto work = [&](int64_t) {
        Window<T, Kernel> window(s);
        for (int64_t i; (i = next.fetch_add(1)) < count && !control.stopped();) {
            const auto& [r, turn] = all[std::size_t(i)];
            window.take(r, *lines[std::size_t(r)], turn, stream);
        }
        fence();
    };
    parallel(tasks, control.threads, work, [&] { control.stopped(); });
    Window<T, Kernel> window(s);
    for (int64_t r = 0; r < p.rows; ++r) {
        window.blank(whole, r);
        finish_row(whole, *lines[std::size_t(r)], r);
    }
}

template <class T, class Kernel> void run(const Problem& p, Control& control) {
    if (p.window > 0 || p.sinks > 0) return run_near<T, Kernel>(p, control);
    const Sizes<T> s(p);
    const bool stream = streams<T>(p);
    const int64_t alone = rows_alone(s, control.threads);  // the rest is done by all
    Spares<Worker<T, Kernel>> workers;
    parallel(
        alone, control.threads,
        [&](int64_t r) {
            if (control.stopped()) return;
            const Flush flush(s.by_pair);
            workers.with([&] { return std::make_unique<Worker<T, Kernel>>(s); },
                         [&](Worker<T, Kernel>& worker) { run_row(worker, r, stream, control); });
        },
        [&] { control.stopped(); });
    for (int64_t r = alone; r < p.rows && !control.stopped(); ++r) run_wide<T, Kernel>(s, r, stream, control);
}

// A row in which some keys are near: the far part writes its gradients, the near part adds its own.
template <class T, class Kernel>
void near_backward(const Problem& whole, const Sizes<T>& s, const Gradient& g, double* d_weight,
                   double* d_bias, int64_t r, Control& control) {
    const Problem& p = s.p;
    const Line line(whole, r);
    std::vector<T> zeros(std::size_t(std::max(p.features.inputs, p.width)), T(0));
    for (int64_t t = 0; t < p.keys; ++t) {
        write_token(g.d_k, p.type, r, t, p.features.inputs, zeros.data());
        write_token(g.d_v, p.type, r, t, p.width, zeros.data());
    }
    for (int64_t h = 0; h < p.groups; ++h)
        for (int64_t t = 0; t < p.queries; ++t)
            write_token(g.d_q, p.type, r * p.groups + h, t, p.features.inputs, zeros.data());
    for (int64_t t = 0; t < p.near_slots; ++t) {
        write_token(g.d_near_k, p.type, r, t, p.features.inputs, zeros.data());
        write_token(g.d_near_v, p.type, r, t, p.width, zeros.data());
    }
    if (s.m > 0) RowGradient<T, Kernel>(s, g).run(r, line, d_weight, d_bias, control);
    if (both_ways(p)) {  // and what lies ahead
        const Problem back = backwards(p);
        Gradient mirrored = g;
        for (View* view : {&mirrored.d_output, &mirrored.d_q}) *view = backwards(*view, p.queries);
        for (View* view : {&mirrored.d_k, &mirrored.d_v}) *view = backwards(*view, p.keys);
        const Sizes<T> sizes(back);
        RowGradient<T, Kernel>(sizes, mirrored).run(r, line.mirrored(p.keys), d_weight, d_bias, control);
    }
    Problem exact = p;
    exact.features.count = 0;
    NearGradient<T>(exact, g, s.m > 0).run(r, line, control);
}

template <class T, class Kernel> void run_backward(const Problem& whole, const Gradient& g, Control& control) {
    const bool some_near = whole.window > 0 || whole.sinks > 0;
    Problem p = some_near ? far_part(whole) : whole;
    const bool state_alone = !g.d_q.data && !g.d_k.data;
    if (state_alone && p.features.map != Map::quadratic) p.chunk = SPAN;  // no query sees keys of its block
    const Sizes<T> s(p);
    const int64_t matrix = p.features.inputs * p.features.columns, bias = p.features.columns;
    const int64_t sides = p.groups + 1;  // query heads, then keys
    // The gradients of weights, row by row, so that their sum does not depend on the threads.
    std::vector<double> d_weight(std::size_t(g.d_weight ? p.rows * sides * matrix : 0), 0.0);
    std::vector<double> d_bias(std::size_t(g.d_bias ? p.rows * sides * bias : 0), 0.0);
    // With several query heads to a key head, or weights to be learned, the order of additions would
    // depend on the threads.
    const bool shared =
        !some_near && !state_alone && p.causal && p.groups == 1 && !s.quadratic && !g.d_weight && !g.d_bias;
    const int64_t alone = shared ? rows_alone(s, control.threads) : p.rows;
    Spares<RowGradient<T, Kernel>> gradients;
    parallel(
        alone, control.threads,
        [&](int64_t r) {
            if (control.stopped()) return;
            const Flush flush(s.by_pair);
            double* w = g.d_weight ? d_weight.data() + r * sides * matrix : nullptr;
            double* b = g.d_bias ? d_bias.data() + r * sides * bias : nullptr;
            if (some_near)
                near_backward<T, Kernel>(whole, s, g, w, b, r, control);
            else
                gradients.with([&] { return std::make_unique<RowGradient<T, Kernel>>(s, g); },
                               [&](RowGradient<T, Kernel>& row) { row.run(r, w, b, control); });
        },
        [&] { control.stopped(); });
    for (int64_t r = alone; r < p.rows && !control.stopped(); ++r) run_wide_backward<T, Kernel>(s, g, r, control);
    const int64_t heads = p.heads * p.groups;
    for (int64_t r = 0; r < p.rows && (g.d_weight || g.d_bias); ++r)
        for (int64_t side = 0; side < sides; ++side) {
            const int64_t which = side < p.groups
                                      ? p.features.query_weight((r * p.groups + side) % heads, heads)
                                      : p.features.key_weight(r % p.heads, p.heads);
            for (int64_t i = 0; i < matrix && g.d_weight; ++i)
                g.d_weight[which * matrix + i] += d_weight[std::size_t((r * sides + side) * matrix + i)];
            for (int64_t i = 0; i < bias && g.d_bias; ++i)
                g.d_bias[which * bias + i] += d_bias[std::size_t((r * sides + side) * bias + i)];
        }
}

// Every call by its kind of kernel (featured.h).
template <class T> void forward_in(const Problem& p, Control& control) {
    p.features.map == Map::quadratic ? run<T, Polynomial<T>>(p, control) : run<T, Featured<T>>(p, control);
}

template <class T> void backward_in(const Problem& p, const Gradient& g, Control& control) {
    p.features.map == Map::quadratic ? run_backward<T, Polynomial<T>>(p, g, control)
                                     : run_backward<T, Featured<T>>(p, g, control);
}

// The sums over the tokens near by, in spans of all rows: for a few rows with many tokens.
template <class T> class NearSums {
  public:
    NearSums(const Problem& p, int threads) {
        const int64_t spans = Ring<T>::spans(p), groups = p.groups, M = p.width;
        mixed.resize(std::size_t(p.rows * spans * groups * M));
        den.resize(std::size_t(p.rows * spans * groups));
        top.resize(den.size());
        for (int64_t i = 0; i < p.rows * spans; ++i)
            sums.push_back({mixed.data() + i * groups * M, den.data() + i * groups, top.data() + i * groups});
        Arena own;
        Ring<T> ring(p, own);
        for (int64_t r = 0; r < p.rows; ++r) ring.enter(r);
        parallel(p.rows * spans, threads, [&](int64_t i) {
            Arena arena;
            Ring<T>(p, arena).attend_span(i / spans, i % spans, sums[std::size_t(i)]);
        });
    }

    std::vector<typename Ring<T>::Sums> sums;

  private:
    std::vector<T> mixed;
    std::vector<double> den, top;
};

template <class T> void run_step(const Problem& p, int threads) {
    if (p.rows == 0) return;
    // Where a thread would have a few rows alone, threads share the tokens of rows first.
    std::optional<NearSums<T>> near;
    if (threads > 1 && p.rows < 4 * threads && Ring<T>::spans(p) > 1) near.emplace(p, threads);
    const int64_t parts = threads > 1 ? 4 * threads : 1;  // more than threads: one of them may come late
    // φ fills its lanes with rows; where there is none, every row is work that another thread can take.
    const int64_t least = p.features.count ? TILE_VECS * LANES<T> : 1;
    const int64_t part = round_up((p.rows + parts - 1) / parts, least);
    parallel((p.rows + part - 1) / part, threads, [&](int64_t i) {
        Steps<T>(p).run(i * part, std::min(p.rows, (i + 1) * part), near ? near->sums.data() : nullptr);
    });
}

}  // namespace

void forward_wide(const Problem& p, Control& control);
void backward_wide(const Problem& p, const Gradient& g, Control& control);
void step_wide(const Problem& p, int threads);

#if defined(KT_WIDE)

void forward_wide(const Problem& p, Control& control) { forward_in<double>(p, control); }

void backward_wide(const Problem& p, const Gradient& g, Control& control) {
    backward_in<double>(p, g, control);
}

void step_wide(const Problem& p, int threads) { run_step<double>(p, threads); }

#else

void attention(const Problem& p, Control& control) {
    p.type == Type::f64 ? forward_wide(p, control) : forward_in<float>(p, control);
}

void attention_backward(const Problem& p, const Gradient& g, Control& control) {
    p.type == Type::f64 ? backward_wide(p, g, control) : backward_in<float>(p, g, control);
}

void attention_step(const Problem& p, int threads) {
    p.type == Type::f64 || p.log_scale ? step_wide(p, threads) : run_step<float>(p, threads);
}

#endif

}  // namespace KT_ISA
}  // namespace kt
