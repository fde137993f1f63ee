#include "sequence.h"
#include "sequence_cases.h"

namespace fuzz {
namespace {

struct ScanCase {
    kt::SelectiveScan p;
    Grid x, dt, A, B, C, D, z, dt_bias, mask, restart, state;

    kt::SelectiveScan bind() const {
        kt::SelectiveScan made = p;
        made.x = x.view(), made.dt = dt.view(), made.A = A.view(), made.B = B.view(), made.C = C.view();
        made.D = D.view(), made.z = z.view(), made.dt_bias = dt_bias.view(), made.mask = mask.view();
        made.restart = restart.view(), made.state = state.view();
        return made;
    }
    Kind wide() const { return arithmetic(p.type); }
    Long delta(int64_t r, int64_t t, int64_t e) const {
        const Long y = dt.get(r, t, e) + (dt_bias.exists() ? dt_bias.get(0, 0, e) : 0);
        return p.softplus ? std::log1p(std::exp(-std::fabs(y))) + std::max(y, Long(0)) : y;
    }
};

struct Scanned {
    Grid output, after;
    Bytes kept;
};

ScanCase make_scan(Random& random) {
    ScanCase c;
    kt::SelectiveScan& p = c.p;
    p.type = random.pick<kt::Type>({kt::Type::f64, kt::Type::f32, kt::Type::f32, kt::Type::f16, kt::Type::bf16});
    p.rows = random.between(1, 2);
    p.tokens = random.chance(0.5) ? random.between(0, 4) : random.between(4, 90);
    p.channels = random.pick<int64_t>({1, 3, 16, 17, 63, 64, 65, 130});
    p.states = random.pick<int64_t>({1, 2, 7, 8, 16, 17});
    p.softplus = random.chance(0.6);
    const Kind kind = kind_of(p.type), wide = c.wide();
    const double poison = random.chance(0.15) ? 0.003 : 0;
    c.x = numbers(random, p.rows, p.tokens, p.channels, kind, 1, poison);
    c.dt = numbers(random, p.rows, p.tokens, p.channels, kind, 1);
    if (!p.softplus)  // below 0 the state would grow
        set_all(c.dt, [&](auto...) { return random.uniform(); });
    c.A = make_grid(random, 1, p.channels, p.states, wide, For::reading);
    const double rate = random.pick<double>({0.01, 1, 60});
    set_all(c.A, [&](auto...) { return -rate * random.uniform(); });
    c.B = numbers(random, p.rows, p.tokens, p.states, kind, 1);
    c.C = numbers(random, p.rows, p.tokens, p.states, kind, 1);
    if (random.chance(0.7)) c.D = numbers(random, 1, 1, p.channels, wide, 1);
    if (random.chance(0.5)) c.z = numbers(random, p.rows, p.tokens, p.channels, kind, 1);
    if (p.softplus && random.chance(0.6)) c.dt_bias = numbers(random, 1, 1, p.channels, wide, 1);
    c.mask = flags(random, 0.3, p.rows, p.tokens, 0.7);
    c.restart = flags(random, 0.3, p.rows, p.tokens, 0.1);
    if (random.chance(0.6)) c.state = numbers(random, p.rows, p.channels, p.states, wide, 1);
    return c;
}

Scanned scan(const ScanCase& c, const kt::Kernels& kernels, int threads, Random& random, bool overwrite) {
    kt::SelectiveScan p = c.bind();
    Scanned made;
    made.output = make_grid(random, p.rows, p.tokens, p.channels, kind_of(p.type), For::writing);
    made.after = make_grid(random, p.rows, p.channels, p.states, c.wide(), For::writing);
    p.output = made.output.view();
    p.state_after = made.after.view();
    if (overwrite && c.state.exists()) {
        set_all(made.after, [&](int64_t r, int64_t t, int64_t e) { return c.state.get(r, t, e); });
        p.state = made.after.view();
    }
    const int64_t tiles = (p.tokens + p.keep - 1) / p.keep;
    made.kept = Bytes(p.rows * tiles * p.states * p.channels * size_of(c.wide()), 0xFF);
    p.kept = made.kept.data();
    kt::Control control;
    control.threads = threads;
    kernels.selective_scan(p, control);
    check_gaps(made.output, "output");
    check_gaps(made.after, "state after");
    return made;
}

// The states of a channel before every token, emptied where a text begins, and after it; the last is the state
// after all.
struct States {
    std::vector<Longs> before, after;
    Longs last;
};

States states_of(const ScanCase& c, int64_t r, int64_t e) {
    const int64_t N = c.p.states;
    Longs h(std::size_t(N), 0);
    for (int64_t i = 0; i < N && c.state.exists(); ++i) h[std::size_t(i)] = c.state.get(r, e, i);
    States made;
    for (int64_t t = 0; t < c.p.tokens; ++t) {
        if (begins(c.restart, r, t)) std::fill(h.begin(), h.end(), Long(0));
        made.before.push_back(h);
        if (!hidden(c.mask, r, t)) {
            const Long step = c.delta(r, t, e), input = step * c.x.get(r, t, e);
            for (int64_t i = 0; i < N; ++i)
                h[std::size_t(i)] = std::exp(step * c.A.get(0, e, i)) * h[std::size_t(i)] + input * c.B.get(r, t, i);
        }
        made.after.push_back(h);
    }
    made.last = h;
    return made;
}

// Σ h C + D x after token t, and the sum of what was added.
std::pair<Long, Long> read_of(const ScanCase& c, int64_t r, int64_t t, int64_t e, const Longs& h) {
    Long sum = c.D.exists() ? Long(c.D.get(0, 0, e)) * c.x.get(r, t, e) : 0, size = std::fabs(sum);
    for (int64_t i = 0; i < c.p.states; ++i) {
        const Long one = h[std::size_t(i)] * c.C.get(r, t, i);
        sum += one;
        size += std::fabs(one);
    }
    return {sum, size};
}

void compare(const ScanCase& c, const Scanned& made) {
    for (int64_t r = 0; r < c.p.rows; ++r)
        for (int64_t e = 0; e < c.p.channels; ++e) {
            const States h = states_of(c, r, e);
            Long largest = 0;
            for (const Longs& one : h.after)
                for (Long y : one) largest = std::max(largest, std::fabs(y));
            for (int64_t t = 0; t < c.p.tokens; ++t) {
                Long right = 0, size = 0;
                if (!hidden(c.mask, r, t)) {
                    std::tie(right, size) = read_of(c, r, t, e, h.after[std::size_t(t)]);
                    size += largest;
                    if (c.z.exists()) right *= silu(c.z.get(r, t, e)), size *= 1 + std::fabs(c.z.get(r, t, e));
                }
                expect("output", made.output.get(r, t, e), right, made.output.kind, size, {r, t, e});
            }
            for (int64_t i = 0; i < c.p.states; ++i)
                expect("state after", made.after.get(r, e, i), h.last[std::size_t(i)], c.wide(), largest, {r, e, i});
        }
}

struct ScanSlopes {
    Grid x, dt, B, C, z, state;
    Array<double> A, D, bias;
};

ScanSlopes backward(const ScanCase& c, const kt::Kernels& kernels, const Scanned& made, const Grid& d_output,
                    const Grid& d_after, int threads, Random& random) {
    kt::SelectiveScan p = c.bind();
    kt::SelectiveScanGradient g;
    p.kept = made.kept.data();
    ScanSlopes got;
    auto grid = [&](const Grid& like, Grid& to, kt::View& view) {
        if (!like.exists()) return;
        to = make_grid(random, like.rows, like.tokens, like.width, like.kind, For::writing);
        view = to.view();
    };
    grid(c.x, got.x, g.d_x), grid(c.dt, got.dt, g.d_dt), grid(c.B, got.B, g.d_B), grid(c.C, got.C, g.d_C);
    grid(c.z, got.z, g.d_z), grid(c.state, got.state, g.d_state);
    got.A = Array<double>(p.channels * p.states, 0xFF);
    got.D = Array<double>(p.channels, 0xFF);
    got.bias = Array<double>(p.channels, 0xFF);
    g.d_output = d_output.view(), g.d_state_after = d_after.view();
    g.d_A = got.A.data(), g.d_D = got.D.data(), g.d_dt_bias = got.bias.data();
    kt::Control control;
    control.threads = threads;
    kernels.selective_scan_backward(p, g, control);
    for (const Grid* one : {&got.x, &got.dt, &got.B, &got.C, &got.z, &got.state})
        if (one->exists()) check_gaps(*one, "a gradient");
    got.A.check("d_A"), got.D.check("d_D"), got.bias.check("d_dt_bias");
    return got;
}

void check_slopes(const ScanCase& c, const kt::Kernels& kernels, const Scanned& made, int threads, Random& random) {
    const kt::SelectiveScan& p = c.p;
    const int64_t n = p.tokens, N = p.states;
    const Kind kind = kind_of(p.type), wide = c.wide();
    const Grid d_output = numbers(random, p.rows, n, p.channels, kind, 1);
    Grid d_after;
    if (random.chance(0.5)) d_after = numbers(random, p.rows, p.channels, N, wide, 1);
    const ScanSlopes got = backward(c, kernels, made, d_output, d_after, 1, random);
    const ScanSlopes again = backward(c, kernels, made, d_output, d_after, threads, random);
    for (auto [one, other] : {std::pair{&got.x, &again.x}, {&got.dt, &again.dt}, {&got.B, &again.B}})
        same_grids(*one, *other, n, "a gradient by threads");
    Longs d_A(std::size_t(p.channels * N), 0), d_D(std::size_t(p.channels), 0), d_bias(std::size_t(p.channels), 0);
    std::vector<Longs> d_x, d_dt, d_z, d_B(std::size_t(p.rows), Longs(std::size_t(n * N), 0)), d_C = d_B, d_state;
    Long largest = 1;
    for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t e = 0; e < p.channels; ++e) {
            const States h = states_of(c, r, e);
            Longs slope(std::size_t(N), 0), dx(std::size_t(n), 0), ddt = dx, dz = dx;
            for (int64_t i = 0; i < N && d_after.exists(); ++i) slope[std::size_t(i)] = d_after.get(r, e, i);
            for (int64_t t = n - 1; t >= 0; --t) {
                if (!hidden(c.mask, r, t)) {
                    const Longs &now = h.after[std::size_t(t)], &past = h.before[std::size_t(t)];
                    const Long x = c.x.get(r, t, e), step = c.delta(r, t, e);
                    Long d = d_output.get(r, t, e), d_step = 0, d_input = 0;
                    if (c.z.exists()) {
                        const Long z = c.z.get(r, t, e);
                        dz[std::size_t(t)] = d * read_of(c, r, t, e, now).first * silu_slope(z);
                        d *= silu(z);
                    }
                    d_D[std::size_t(e)] += d * x;
                    if (c.D.exists()) dx[std::size_t(t)] += d * c.D.get(0, 0, e);
                    for (int64_t i = 0; i < N; ++i) {
                        const Long A = c.A.get(0, e, i), decay = std::exp(step * A);
                        Long& s = slope[std::size_t(i)];
                        d_C[std::size_t(r)][std::size_t(t * N + i)] += d * now[std::size_t(i)];
                        s += d * c.C.get(r, t, i);
                        d_B[std::size_t(r)][std::size_t(t * N + i)] += s * step * x;
                        d_input += s * c.B.get(r, t, i);
                        const Long by_decay = s * decay * past[std::size_t(i)];
                        d_step += by_decay * A;
                        d_A[std::size_t(e * N + i)] += by_decay * step;
                        s *= decay;
                        largest = std::max({largest, std::fabs(s), std::fabs(now[std::size_t(i)])});
                    }
                    dx[std::size_t(t)] += d_input * step;
                    d_step += d_input * x;
                    if (p.softplus) {
                        const Long y = c.dt.get(r, t, e) + (c.dt_bias.exists() ? c.dt_bias.get(0, 0, e) : 0);
                        d_step /= 1 + std::exp(-y);
                    }
                    ddt[std::size_t(t)] = d_step;
                    d_bias[std::size_t(e)] += d_step;
                }
                if (begins(c.restart, r, t)) std::fill(slope.begin(), slope.end(), Long(0));
            }
            d_x.push_back(dx), d_dt.push_back(ddt), d_z.push_back(dz), d_state.push_back(slope);
        }
    const Long sum = Long(n + 1) * largest * largest * Long(std::max(p.channels * p.rows, N));
    for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t e = 0; e < p.channels; ++e) {
                const std::size_t at = std::size_t(r * p.channels + e);
                expect("d_x", got.x.get(r, t, e), d_x[at][std::size_t(t)], kind, largest * Long(N), {r, t, e});
                expect("d_dt", got.dt.get(r, t, e), d_dt[at][std::size_t(t)], kind, largest * largest * 60 * Long(N), {r, t, e});
                if (c.z.exists())
                    expect("d_z", got.z.get(r, t, e), d_z[at][std::size_t(t)], kind, largest * Long(N), {r, t, e});
            }
            for (int64_t i = 0; i < N; ++i) {
                const std::size_t at = std::size_t(t * N + i);
                const Long size = largest * largest * Long(p.channels);
                expect("d_B", got.B.get(r, t, i), d_B[std::size_t(r)][at], kind, size, {r, t, i});
                expect("d_C", got.C.get(r, t, i), d_C[std::size_t(r)][at], kind, size, {r, t, i});
            }
        }
    for (int64_t e = 0; e < p.channels; ++e) {
        for (int64_t i = 0; i < N; ++i) {
            expect("d_A", got.A[e * N + i], d_A[std::size_t(e * N + i)], wide, sum, {e, i});
            for (int64_t r = 0; r < p.rows && c.state.exists(); ++r)
                expect("d_state", got.state.get(r, e, i), d_state[std::size_t(r * p.channels + e)][std::size_t(i)], wide,
                       largest, {r, e, i});
        }
        expect("d_D", got.D[e], d_D[std::size_t(e)], wide, Long(n * p.rows), {e});
        expect("d_dt_bias", got.bias[e], d_bias[std::size_t(e)], wide, sum * 60, {e});
    }
}

}  // namespace

void run_scan_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& told) {
    const ScanCase c = make_scan(random);
    char text[200];
    std::snprintf(text, sizeof text, "%s selective scan type=%d rows=%lld n=%lld channels=%lld N=%lld%s%s%s%s%s",
                  kernels.name, int(c.p.type), (long long)c.p.rows, (long long)c.p.tokens, (long long)c.p.channels,
                  (long long)c.p.states, c.p.softplus ? " softplus" : "", c.z.exists() ? " z" : "",
                  c.mask.exists() ? " mask" : "", c.restart.exists() ? " restart" : "", c.state.exists() ? " state" : "");
    told = text;
    if (tell) std::printf("%s\n", text), std::fflush(stdout);
    const Scanned made = scan(c, kernels, 1, random, random.chance(0.5));
    compare(c, made);
    bool clean = true;
    for (int64_t r = 0; r < c.p.rows; ++r)
        for (int64_t t = 0; t < c.p.tokens; ++t)
            for (int64_t e = 0; e < c.p.channels; ++e) clean = clean && !std::isnan(c.x.get(r, t, e));
    if (random.chance(0.3)) same_grids(made.output, scan(c, kernels, threads, random, false).output, c.p.tokens, "threads");
    if (c.p.tokens > 1 && random.chance(0.4)) {
        ScanCase shorter = c;
        shorter.p.tokens = random.between(1, c.p.tokens - 1);
        same_grids(scan(shorter, kernels, 1, random, false).output, made.output, shorter.p.tokens, "a shorter text");
    }
    if (clean && random.chance(0.5)) check_slopes(c, kernels, made, threads, random);
}

}  // namespace fuzz
