#include "calls.h"

#include <cmath>

namespace fuzz {

namespace {

// A result before the call, and p with its addresses.
Result prepare(const Case& c, Problem& p, Random& random, bool plain) {
    Result made;
    const int64_t rows = p.rows * p.groups;
    made.output = make_grid(random, rows, p.queries, p.width, kind_of(p.output_type), For::writing,
                            plain);
    if (p.normalize) made.zero = Array<uint8_t>(rows * p.queries, 7);
    if (c.keep_normalizer && !c.near()) made.normalizer = Array<double>(rows * p.queries, 0xFF);
    if (c.keep_normalizer && c.near())
        for (Array<double>* x : {&made.near_reference, &made.near_normalizer, &made.near_top})
            *x = Array<double>(rows * p.queries, 0xFF);
    if (!c.seen.empty()) {
        const int64_t most = std::max<int64_t>(p.window - 1, 0);
        p.near_slots_after = p.sinks + std::min(most, p.near_slots - p.sinks + p.keys);
        made.near_after = Array<int64_t>(p.rows * p.near_slots_after, 0xFF);
        made.seen_after = Array<int64_t>(p.rows, 0xFF);
    }
    made.sums = Array<double>(c.sums);
    if (!c.log_scale.empty()) made.log_scale = Array<double>(c.log_scale);
    if (p.decay_width) made.decay_total = Array<double>(c.decay_total);
    made.bad = Array<uint8_t>(c.bad);
    p.output = made.output.view();
    p.zero = made.zero.data();
    p.normalizer = made.normalizer.data();
    p.near_reference = made.near_reference.data();
    p.near_normalizer = made.near_normalizer.data();
    p.near_top = made.near_top.data();
    p.near_after = made.near_after.data();
    p.seen_after = made.seen_after.data();
    p.sums = made.sums.data();
    p.log_scale = made.log_scale.data();
    p.decay_total = made.decay_total.data();
    p.bad = made.bad.data();
    for (int64_t q = 0; q < rows; ++q)
        for (int64_t t = 0; t < p.queries; ++t) made.hidden.push_back(c.hides(q, t));
    return made;
}

void check_guards(const Result& made) {
    check_gaps(made.output, "output");
    made.zero.check("zero");
    made.normalizer.check("normalizer");
    made.sums.check("sums");
    made.log_scale.check("log_scale");
    made.decay_total.check("decay_total");
    made.bad.check("bad");
    made.near_reference.check("near_reference");
    made.near_normalizer.check("near_normalizer");
    made.near_top.check("near_top");
    made.near_after.check("near_after");
    made.seen_after.check("seen_after");
}

}  // namespace

Result forward(const Case& c, const kt::Kernels& kernels, int threads, Random& random, bool state) {
    Problem p = bind(c);
    const Result made = prepare(c, p, random, c.plain_output && threads == 1);
    if (!state) {
        p.sums = p.log_scale = p.decay_total = nullptr;
        p.bad = nullptr;
    }
    kt::Control control;
    control.threads = threads;
    kernels.forward(p, control);
    check_guards(made);
    return made;
}

bool steps(const Case& c) {  // what a decoder can be asked for
    return c.p.causal && c.p.rows && (!c.near() || !c.seen.empty()) && !c.mask.exists() && !c.restart.exists() &&
           !c.q_scale.exists() && !c.q_positions.exists();
}

// The near tokens of a case in a ring that has room for all that come, and p with its addresses.
void make_ring(const Case& c, Problem& p, Result& made, Random& random) {
    int64_t most = 0;
    for (int64_t seen : c.seen) most = std::max(most, seen);
    const int64_t size = std::min(p.window, most + p.keys + random.between(0, 3));
    const int64_t slots = p.sinks + size;
    auto grid = [&](int64_t width, Kind kind) {
        return make_grid(random, p.rows, slots, width, kind, For::writing, true);
    };
    made.ring_k = grid(p.features.inputs, arithmetic(p.type));
    made.ring_v = grid(p.width, arithmetic(p.type));
    made.ring_keep = grid(1, Kind::byte);
    made.ring_positions = grid(1, Kind::f64);
    made.seen_after = Array<int64_t>(c.seen);
    for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t i = 0; i < p.near_slots; ++i) {
            if (c.near_keep.get(r, i) == 0) continue;
            const int64_t rank = c.seen[std::size_t(r)] - (p.near_slots - i);
            const int64_t to = i < p.sinks ? i : p.sinks + rank % size;
            bool fine = true;
            auto copy = [&](const Grid& from, const Grid& ring) {
                for (int64_t e = 0; e < ring.width; ++e) {
                    ring.set(r, to, e, from.get(r, i, e));
                    fine = fine && std::isfinite(from.get(r, i, e));
                }
            };
            copy(c.near_k, made.ring_k);
            copy(c.near_v, made.ring_v);
            copy(c.near_positions, made.ring_positions);
            made.ring_keep.set(r, to, 0, fine ? 1 : 2);
        }
    p.near_slots = slots;
    p.near_k = made.ring_k.view();
    p.near_v = made.ring_v.view();
    p.near_keep = made.ring_keep.view();
    p.near_positions = made.ring_positions.view();
    p.seen = p.seen_after = made.seen_after.data();
}

// The same tokens one call at a time.
Result step_through(const Case& c, const kt::Kernels& kernels, int threads, Random& random) {
    Problem p = bind(c);
    Result made = prepare(c, p, random, false);
    for (Array<double>* x : {&made.normalizer, &made.near_reference, &made.near_normalizer, &made.near_top})
        x->exists = false;
    made.near_after.exists = false;
    if (c.near()) make_ring(c, p, made, random);
    const Array<uint8_t> zero(p.rows * p.groups, 7);
    p.keys = p.queries = 1;
    p.zero = zero.data();
    p.normalizer = p.near_reference = p.near_normalizer = p.near_top = nullptr;
    p.near_after = nullptr;
    std::vector<double> wide;
    const float* weight = static_cast<const float*>(p.features.weight);
    if (weight && p.log_scale && c.single()) {
        const Features& f = p.features;
        wide.assign(weight, weight + (f.weight_heads + f.key_weight_heads) * f.inputs * f.columns);
        p.features.weight = wide.data();
    }
    for (int64_t t = 0; t < c.p.keys; ++t) {
        kernels.step(p, threads);
        for (int64_t q = 0; q < p.rows * p.groups && made.zero.exists; ++q)
            made.zero[q * c.p.queries + t] = zero[q];
        for (kt::View* view : {&p.q, &p.k, &p.v, &p.output, &p.log_decay})
            if (view->data) view->data += view->token;
        ++p.start;
    }
    zero.check("zero of a step");
    for (const Grid* ring : {&made.ring_k, &made.ring_v, &made.ring_keep, &made.ring_positions})
        check_gaps(*ring, "the ring");
    check_guards(made);
    return made;
}

Slopes backward(const Case& c, const kt::Kernels& kernels, const Result& made, const Grid& d_output,
                const std::vector<double>& d_final, int threads, Random& random, bool state) {
    Problem p = bind(c);
    const kt::Features& f = p.features;
    Slopes s;
    s.d_output = d_output;
    s.d_final = d_final;
    const Kind kind = kind_of(p.type);
    s.d_q = make_grid(random, p.rows * p.groups, p.queries, f.inputs, kind, For::writing);
    s.d_k = make_grid(random, p.rows, p.keys, f.inputs, kind, For::writing);
    s.d_v = make_grid(random, p.rows, p.keys, p.width, kind, For::writing);
    s.d_sums = Array<double>(d_final);
    if (c.log_decay.exists())
        s.d_log_decay = Array<double>(p.rows * p.keys * p.decay_width, 0xFF);
    if (f.weight && !favor(f.map)) {
        s.d_weight = Array<double>((f.weight_heads + f.key_weight_heads) * f.inputs * f.columns, 0);
        if (f.bias) s.d_bias = Array<double>(f.weight_heads * f.columns, 0);
    }
    if (c.near()) {
        s.d_near_k = make_grid(random, p.rows, p.near_slots, f.inputs, kind, For::writing);
        s.d_near_v = make_grid(random, p.rows, p.near_slots, p.width, kind, For::writing);
        if (p.gain) s.d_gain = Array<double>(p.rows * p.groups, 0xFF);
    }
    const Array<double> sums(c.sums), log_scale(c.log_scale);
    p.output = made.output.view();
    p.normalizer = made.normalizer.data();
    p.near_reference = made.near_reference.data();
    p.near_normalizer = made.near_normalizer.data();
    p.near_top = made.near_top.data();
    p.sums = sums.data();
    if (!c.log_scale.empty()) p.log_scale = log_scale.data();
    kt::Gradient g;
    g.d_output = s.d_output.view();
    g.d_q = s.d_q.view();
    g.d_k = s.d_k.view();
    g.d_v = s.d_v.view();
    g.d_sums = s.d_sums.data();
    g.d_log_decay = s.d_log_decay.data();
    g.d_weight = s.d_weight.data();
    g.d_bias = s.d_bias.data();
    g.d_near_k = s.d_near_k.view();
    g.d_near_v = s.d_near_v.view();
    g.d_gain = s.d_gain.data();
    if (!state) {
        p.sums = p.log_scale = nullptr;
        g.d_sums = nullptr;
    }
    kt::Control control;
    control.threads = threads;
    kernels.backward(p, g, control);
    check_gaps(s.d_q, "d_q");
    check_gaps(s.d_k, "d_k");
    check_gaps(s.d_v, "d_v");
    check_gaps(s.d_near_k, "d_near_k");
    check_gaps(s.d_near_v, "d_near_v");
    s.d_sums.check("d_sums");
    s.d_log_decay.check("d_log_decay");
    s.d_weight.check("d_weight");
    s.d_bias.check("d_bias");
    s.d_gain.check("d_gain");
    if (!c.sums.empty() && std::memcmp(sums.data(), c.sums.data(), c.sums.size() * sizeof(double)))
        fail("backward: sums were written");
    return s;
}

}  // namespace fuzz
