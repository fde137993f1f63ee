#include "delta.h"

#include <cmath>

#include "cases.h"
#include "delta_oracle.h"

namespace fuzz {
namespace {

// A contiguous array of numbers of one kind.
struct Numbers {
    Array<uint8_t> bytes;
    Kind kind = Kind::f32;

    Numbers() = default;
    Numbers(int64_t count, Kind kind) : bytes(count * size_of(kind), 0xFF), kind(kind) {}
    Numbers(const std::vector<double>& from, Kind kind) : Numbers(int64_t(from.size()), kind) {
        for (std::size_t i = 0; i < from.size(); ++i) encode(at(int64_t(i)), kind, from[i]);
    }
    char* at(int64_t i) const { return reinterpret_cast<char*>(bytes.data()) + i * size_of(kind); }
    double operator[](int64_t i) const { return decode(at(i), kind); }
};

struct Made {
    Grid output;
    Numbers state, states;
};

DeltaCase make_delta(Random& random) {
    DeltaCase c;
    kt::DeltaRule& p = c.p;
    p.type = random.pick<Type>({Type::f64, Type::f64, Type::f32, Type::f32, Type::f16, Type::bf16});
    p.output_type = p.type;
    if (p.type != Type::f64 && random.chance(0.2)) p.output_type = Type::f32;
    const int64_t keys = random.between(1, 2);
    p.groups = random.chance(0.6) ? 1 : random.between(2, 3);
    p.rows = keys * p.groups;
    p.inputs = random.pick<int64_t>({1, 2, 3, 5, 8, 15, 16, 17, 33});
    p.width = random.pick<int64_t>({1, 2, 4, 7, 8, 16, 17, 33});
    p.tokens = random.chance(0.5) ? random.between(0, 20) : random.between(20, 140);
    if (random.chance(0.05)) p.tokens = random.between(250, 330);
    if (p.tokens > 200) p.inputs = std::min<int64_t>(p.inputs, 8), p.width = std::min<int64_t>(p.width, 8);
    p.scale = random.pick<double>({1, 0.25, -2});
    p.normalize = random.chance(0.4);
    p.start = random.chance(0.5) ? 0 : random.between(0, 100);
    p.decay_width = random.pick<int64_t>({0, 1, p.inputs});
    const Kind kind = kind_of(p.type), wide = c.wide();
    const int64_t n = p.tokens, d = p.inputs;
    const double size = 0.7 / std::sqrt(double(d)), kinds = random.uniform();
    c.wild = kinds > 0.9;
    const double odd = c.wild ? 0.05 : 0, poison = kinds > 0.65 && !c.wild ? 0.3 / double(d * (n + 1)) : 0;
    auto numbers = [&](int64_t rows, int64_t width, Kind of, double large) {
        Grid g = make_grid(random, rows, n, width, of, For::reading);
        fill(random, g, large, odd);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t t = 0; t < n; ++t)
                for (int64_t e = 0; e < width; ++e)
                    if (random.chance(poison)) g.set(r, t, e, random.pick<double>({NOT, INF, -INF}));
        return g;
    };
    c.q = numbers(keys, d, kind, 1);
    c.k = numbers(keys, d, kind, size);
    c.v = numbers(p.rows, p.width, kind, 1);
    if (random.chance(0.3)) c.read = numbers(keys, d, kind, size);
    if (random.chance(0.3)) c.erase = numbers(keys, d, kind, size);
    auto made = [&](double share, int64_t width, Kind of, auto&& value) {
        Grid g;
        if (!random.chance(share)) return g;
        g = make_grid(random, p.rows, n, width, of, For::reading);
        set_all(g, [&](auto...) { return value(); });
        return g;
    };
    const double most = random.pick<double>({1, 2}), strong = random.pick<double>({0.01, 0.5, 4, 50});
    const double any = random.chance(0.5) ? 0 : random.pick<double>({0.02, 0.3});
    c.beta = made(0.9, 1, wide, [&] {
        return random.chance(poison) ? NOT : random.chance(0.1) ? random.pick<double>({0, 1, 2}) : most * random.uniform();
    });
    if (p.decay_width)
        c.log_decay = made(1, p.decay_width, wide, [&] {
            if (random.chance(any)) return any_decay(random, wide);
            return random.chance(poison / 4) ? NOT : random.chance(0.3) ? 0 : -strong * random.uniform();
        });
    c.mask = made(0.4, 1, Kind::byte, [&] { return double(random.chance(0.8)); });
    c.restart = made(0.3, 1, Kind::byte, [&] { return double(random.chance(0.08)); });
    c.state.assign(std::size_t(p.rows * d * p.width), 0);
    if (random.chance(0.6))
        for (double& x : c.state) x = rounded(random.normal(), wide);
    for (int64_t column = 0; column < p.rows * p.width; ++column)
        if (poison > 0 && random.chance(0.02))
            for (int64_t i = 0; i < d; ++i)
                c.state[std::size_t((column / p.width * d + i) * p.width + column % p.width)] = NOT;
    return c;
}

std::string delta_story(const DeltaCase& c) {
    const kt::DeltaRule& p = c.p;
    char text[300];
    std::snprintf(text, sizeof text,
                  "delta rule type=%d to=%d rows=%lld groups=%lld n=%lld d=%lld M=%lld decay=%lld start=%lld%s%s%s%s%s%s",
                  int(p.type), int(p.output_type), (long long)p.rows, (long long)p.groups, (long long)p.tokens,
                  (long long)p.inputs, (long long)p.width, (long long)p.decay_width, (long long)p.start,
                  p.normalize ? " normalize" : "", c.erase.exists() ? " erase" : "", c.read.exists() ? " read" : "",
                  c.mask.exists() ? " mask" : "", c.restart.exists() ? " restart" : "", c.wild ? " wild" : "");
    return text;
}

Made delta_forward(const DeltaCase& c, const kt::Kernels& kernels, int threads, Random& random, bool state = true) {
    Made made;
    kt::DeltaRule p = c.bind();
    made.output = make_grid(random, p.rows, p.tokens, p.width, kind_of(p.output_type), For::writing);
    made.state = Numbers(c.state, c.wide());
    made.states = Numbers(p.rows * ((p.tokens + 255) / 256) * p.inputs * p.width, c.wide());
    p.output = made.output.view();
    if (state) p.state = made.state.bytes.data(), p.states = made.states.bytes.data();
    kt::Control control;
    control.threads = threads;
    kernels.delta_rule(p, control);
    check_gaps(made.output, "output");
    made.state.bytes.check("state");
    made.states.bytes.check("states");
    return made;
}

// The same tokens one at a time: the state is changed in place, written elsewhere, or, by a decoder, changed
// when the next token comes.
Made delta_steps(const DeltaCase& c, const kt::Kernels& kernels, int threads, Random& random) {
    enum class Way { in_place, elsewhere, decoder };
    const Way way = random.pick({Way::in_place, Way::elsewhere, Way::decoder});
    Made made;
    made.output = make_grid(random, c.p.rows, c.p.tokens, c.p.width, kind_of(c.p.output_type), For::writing);
    made.state = Numbers(c.state, c.wide());
    const int64_t size = 3 * c.p.inputs + 2 * c.p.width;
    std::vector<double> nothing(std::size_t(c.p.rows * size), 0);
    for (int64_t r = 0; r < c.p.rows; ++r) std::fill_n(nothing.begin() + r * size, c.p.inputs, 1.0);
    const Numbers pending(nothing, c.wide());
    for (int64_t t = 0; t < c.p.tokens; ++t) {
        kt::DeltaRule p = c.bind();
        const Numbers before = made.state;
        if (way == Way::elsewhere) {
            made.state = Numbers(int64_t(c.state.size()), c.wide());
            p.state_before = before.bytes.data();
        }
        if (way == Way::decoder) {
            p.pending = pending.bytes.data();
            p.state = made.state.bytes.data();
            kt::DeltaRule only = p;  // what is pending
            only.restart = {};
            if (random.chance(0.2)) kernels.delta_rule_step(only, threads);
        }
        p.output = made.output.view();
        p.state = made.state.bytes.data();
        p.tokens = 1;
        for (kt::View* view : {&p.q, &p.k, &p.v, &p.beta, &p.log_decay, &p.erase, &p.read, &p.mask, &p.restart, &p.output})
            if (view->data) view->data += t * view->token;
        kernels.delta_rule_step(p, threads);
    }
    if (way == Way::decoder) {
        kt::DeltaRule p = c.bind();
        p.state = made.state.bytes.data();
        p.pending = pending.bytes.data();
        p.restart = {};
        kernels.delta_rule_step(p, threads);
        pending.bytes.check("what is pending");
    }
    check_gaps(made.output, "output of steps");
    made.state.bytes.check("state of steps");
    return made;
}

double precision(const DeltaCase& c) { return c.wide() == Kind::f64 ? 1e-12 : 3e-4; }

double allowed(const DeltaCase& c, Kind kind, Long x, Long size) {
    const double half = kind == Kind::f16 ? 0x1p-10 : kind == Kind::bf16 ? 0x1p-7 : 0;
    return double(std::fabs(x)) * half + (kind == Kind::f16 ? 0x1p-24 : 0) + precision(c) * (1 + double(size));
}

void compare(const DeltaCase& c, const Made& made, const DeltaTold& told, int64_t row, const char* how) {
    const kt::DeltaRule& p = c.p;
    for (int64_t t = 0; t < p.tokens; ++t)
        for (int64_t e = 0; e < p.width; ++e) {
            const std::size_t at = std::size_t(t * p.width + e);
            const double got = made.output.get(row, t, e);
            const Long expected = told.output[at];
            if (told.bad[at] && !std::isnan(got))
                fail("%s: output%s is %g, not NaN", how, at_index({row, t, e}).c_str(), got);
            const bool beyond = made.output.kind == Kind::f16 && std::fabs(expected) > 6e4L;
            if (told.bad[at] || c.wild || beyond) continue;
            if (!(std::fabs(got - expected) <= allowed(c, made.output.kind, expected, told.size[std::size_t(t)])))
                fail("%s: output%s is %.9g, not %.9Lg (numbers up to %Lg)", how, at_index({row, t, e}).c_str(), got,
                     expected, told.size[std::size_t(t)]);
        }
    const Long size = told.size.empty() ? 1 : told.size.back();
    for (int64_t i = 0; i < p.inputs * p.width; ++i) {
        const double got = made.state[row * p.inputs * p.width + i];
        const std::size_t at = std::size_t(i);
        const bool bad = told.spoilt[std::size_t(i % p.width)];
        if (bad && !std::isnan(got)) fail("%s: state%s is %g, not NaN", how, at_index({row, i}).c_str(), got);
        if (!bad && !c.wild && !(std::fabs(got - told.state[at]) <= allowed(c, c.wide(), told.state[at], size)))
            fail("%s: state%s is %.9g, not %.9Lg", how, at_index({row, i}).c_str(), got, told.state[at]);
    }
}

void same_outputs(const Made& one, const Made& other, int64_t tokens, const char* why) {
    for (int64_t r = 0; r < one.output.rows; ++r)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t e = 0; e < one.output.width; ++e)
                if (!same(one.output.get(r, t, e), other.output.get(r, t, e)))
                    fail("%s: output%s is %.17g or %.17g", why, at_index({r, t, e}).c_str(), one.output.get(r, t, e),
                         other.output.get(r, t, e));
}

void same_numbers(const Numbers& one, const Numbers& other, const char* why) {
    for (int64_t i = 0; i < one.bytes.count / size_of(one.kind); ++i)
        if (!same(one[i], other[i])) fail("%s: number %lld is %.17g or %.17g", why, (long long)i, one[i], other[i]);
}

// The past keeps every bit, whatever the future holds and however long it is.
void check_delta_future(const DeltaCase& c, const kt::Kernels& kernels, const Made& made, Random& random) {
    if (c.p.tokens < 2) return;
    DeltaCase other = c;
    const int64_t from = random.between(1, c.p.tokens - 1);
    for (Grid* g : {&other.q, &other.k, &other.v, &other.beta, &other.erase, &other.read, &other.log_decay}) {
        if (!g->exists() || g->token == 0) continue;
        for (int64_t r = 0; r < g->rows; ++r)
            for (int64_t t = from; t < g->tokens; ++t)
                for (int64_t e = 0; e < g->width; ++e)
                    if (random.chance(0.5)) g->set(r, t, e, g == &other.log_decay ? -60.0 : strange(random));
    }
    same_outputs(made, delta_forward(other, kernels, 1, random), from, "another future");
    other = c;
    other.p.tokens = from;
    same_outputs(made, delta_forward(other, kernels, 1, random), from, "a shorter text");
}

// A row by itself: results do not depend on the batch.
void check_delta_alone(const DeltaCase& c, const kt::Kernels& kernels, const Made& made, Random& random) {
    kt::DeltaRule p = c.bind();
    const int64_t row = random.between(0, p.rows - 1), key = row / p.groups;
    Grid output = make_grid(random, 1, p.tokens, p.width, kind_of(p.output_type), For::writing);
    p.output = output.view();
    p.rows = p.groups = 1;
    for (kt::View* view : {&p.q, &p.k, &p.erase, &p.read})
        if (view->data) view->offset += key;
    for (kt::View* view : {&p.v, &p.beta, &p.log_decay, &p.mask, &p.restart})
        if (view->data) view->offset += row;
    const std::size_t size = std::size_t(p.inputs * p.width);
    const auto first = c.state.begin() + std::ptrdiff_t(std::size_t(row) * size);
    Numbers state(std::vector<double>(first, first + std::ptrdiff_t(size)), c.wide());
    p.state = state.bytes.data();
    kt::Control control;
    kernels.delta_rule(p, control);
    for (int64_t t = 0; t < p.tokens; ++t)
        for (int64_t e = 0; e < p.width; ++e)
            if (!same(output.get(0, t, e), made.output.get(row, t, e))) fail("row %lld alone differs", (long long)row);
}

struct DeltaSlopes {
    Grid q, k, v, erase, read, beta, log_decay;
    Numbers state;
    template <class F> void each(F&& f) const {
        f(q, "d_q"), f(k, "d_k"), f(v, "d_v"), f(erase, "d_erase"), f(read, "d_read"), f(beta, "d_beta"),
            f(log_decay, "d_log_decay");
    }
};

DeltaSlopes delta_backward(const DeltaCase& c, const kt::Kernels& kernels, const Grid& d_output,
                           const std::vector<double>& d_state, const Numbers* states, int threads, Random& random) {
    DeltaSlopes made;
    kt::DeltaRule p = c.bind();
    kt::DeltaRuleGradient g;
    const Numbers first(c.state, c.wide());
    p.state = first.bytes.data();
    if (states) p.states = states->bytes.data();
    auto grid = [&](bool wanted, int64_t width, Kind kind, Grid& to, kt::View& view) {
        if (!wanted) return;
        to = make_grid(random, p.rows, p.tokens, width, kind, For::writing);
        view = to.view();
    };
    const Kind kind = kind_of(p.type), wide = c.wide();
    g.d_output = d_output.view();
    grid(true, p.inputs, kind, made.q, g.d_q);
    grid(true, p.inputs, kind, made.k, g.d_k);
    grid(true, p.width, kind, made.v, g.d_v);
    grid(c.erase.exists(), p.inputs, kind, made.erase, g.d_erase);
    grid(c.read.exists(), p.inputs, kind, made.read, g.d_read);
    grid(c.beta.exists(), 1, wide, made.beta, g.d_beta);
    grid(p.decay_width > 0, p.decay_width, wide, made.log_decay, g.d_log_decay);
    made.state = Numbers(d_state, wide);
    g.d_state = made.state.bytes.data();
    kt::Control control;
    control.threads = threads;
    kernels.delta_rule_backward(p, g, control);
    made.each([&](const Grid& one, const char* name) {
        if (one.exists()) check_gaps(one, name);
    });
    made.state.bytes.check("d_state");
    return made;
}

void check_delta_backward(const DeltaCase& c, const kt::Kernels& kernels, const Made& made, std::vector<DeltaLoop>& loops,
                          const std::vector<DeltaTold>& told, int threads, Random& random) {
    const kt::DeltaRule& p = c.p;
    Grid d_output = make_grid(random, p.rows, p.tokens, p.width, kind_of(p.output_type), For::reading);
    fill(random, d_output, 1, 0);
    std::vector<double> d_state(c.state.size());
    for (double& x : d_state) x = rounded(random.normal(), c.wide());
    const bool kept = random.chance(0.5);
    const DeltaSlopes got = delta_backward(c, kernels, d_output, d_state, kept ? &made.states : nullptr, 1, random);
    const DeltaSlopes again =
        delta_backward(c, kernels, d_output, d_state, kept ? &made.states : nullptr, threads, random);
    same_numbers(got.state, again.state, "d_state by threads");
    for (int64_t r = 0; r < p.rows; ++r) {
        const DeltaGradients g = loops[std::size_t(r)].back(d_output, d_state);
        Long size = told[std::size_t(r)].size.empty() ? 0 : told[std::size_t(r)].size.back(), largest = 0;
        for (const Longs* all : {&g.q, &g.k, &g.v, &g.erase, &g.read, &g.beta, &g.log_decay, &g.state})
            for (Long x : *all) largest = std::max(largest, std::fabs(x));
        if (!(size < 1e4L && largest < 1e4L)) continue;  // unstable: errors grow as the state does
        size = (1 + size) * (1 + largest);
        const Longs* expected[] = {&g.q, &g.k, &g.v, &g.erase, &g.read, &g.beta, &g.log_decay};
        int which = 0;
        got.each([&](const Grid& one, const char* name) {
            const Longs& right = *expected[which++];
            for (int64_t t = 0; t < one.tokens && one.exists(); ++t)
                for (int64_t e = 0; e < one.width; ++e) {
                    const Long x = right[std::size_t(t * one.width + e)];
                    if (!(std::fabs(one.get(r, t, e) - x) <= allowed(c, one.kind, x, size)))
                        fail("%s%s is %.9g, not %.9Lg (gradients up to %Lg)", name, at_index({r, t, e}).c_str(),
                             one.get(r, t, e), x, largest);
                }
        });
        for (int64_t i = 0; i < p.inputs * p.width; ++i) {
            const double x = got.state[r * p.inputs * p.width + i];
            if (!(std::fabs(x - g.state[std::size_t(i)]) <= allowed(c, c.wide(), x, size)))
                fail("d_state%s is %.9g, not %.9Lg", at_index({r, i}).c_str(), x, g.state[std::size_t(i)]);
        }
    }
}

}  // namespace

void run_delta_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& story) {
    const DeltaCase c = make_delta(random);
    story = std::string(kernels.name) + " " + delta_story(c);
    if (tell) std::printf("%s\n", story.c_str()), std::fflush(stdout);
    const Made made = delta_forward(c, kernels, 1, random);
    std::vector<DeltaLoop> loops;
    std::vector<DeltaTold> told;
    bool clean = !c.wild, empty = true;
    for (double x : c.state) empty = empty && x == 0;
    for (int64_t r = 0; r < c.p.rows; ++r) {
        loops.emplace_back(c, r);
        told.push_back(loops.back().run());
        compare(c, made, told.back(), r, "chunks");
        for (uint8_t bad : told.back().bad) clean = clean && !bad;
        for (uint8_t bad : told.back().spoilt) clean = clean && !bad;
    }
    if (random.chance(0.3)) {
        const Made stepped = delta_steps(c, kernels, random.chance(0.5) ? 1 : threads, random);
        for (int64_t r = 0; r < c.p.rows; ++r) compare(c, stepped, told[std::size_t(r)], r, "steps");
    }
    if (random.chance(0.3)) {
        const Made by_threads = delta_forward(c, kernels, threads, random);
        same_outputs(made, by_threads, c.p.tokens, "threads");
        same_numbers(made.state, by_threads.state, "state by threads");
    }
    if (empty && random.chance(0.5))
        same_outputs(made, delta_forward(c, kernels, 1, random, false), c.p.tokens, "without a state");
    if (random.chance(0.3)) check_delta_alone(c, kernels, made, random);
    if (random.chance(0.4)) check_delta_future(c, kernels, made, random);
    if (clean && random.chance(0.6)) check_delta_backward(c, kernels, made, loops, told, threads, random);
}

}  // namespace fuzz
