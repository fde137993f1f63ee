#include "sequence.h"
#include "sequence_cases.h"

namespace fuzz {
namespace {

struct ConvolutionCase {
    kt::ShortConvolution p;
    Grid x, weight, bias, mask, restart, state;

    kt::ShortConvolution bind() const {
        kt::ShortConvolution made = p;
        made.x = x.view(), made.weight = weight.view(), made.bias = bias.view(), made.mask = mask.view();
        made.restart = restart.view(), made.state = state.view();
        return made;
    }
    int64_t before() const { return p.taps - 1; }
};

struct Convolved {
    Grid output, after;
};

ConvolutionCase make_convolution(Random& random) {
    ConvolutionCase c;
    kt::ShortConvolution& p = c.p;
    p.type = random.pick<kt::Type>({kt::Type::f64, kt::Type::f32, kt::Type::f32, kt::Type::f16, kt::Type::bf16});
    p.rows = random.between(1, 3);
    p.tokens = random.chance(0.5) ? random.between(0, 5) : random.between(5, 150);
    p.channels = random.pick<int64_t>({1, 3, 15, 16, 17, 63, 64, 65, 130});
    p.taps = random.pick<int64_t>({1, 2, 3, 4, 4, 5, 7});
    p.silu = random.chance(0.6);
    const Kind kind = kind_of(p.type), wide = arithmetic(p.type);
    const double poison = random.chance(0.2) ? 0.01 : 0;
    c.x = numbers(random, p.rows, p.tokens, p.channels, kind, 1, poison);
    c.weight = numbers(random, 1, p.taps, p.channels, wide, 1);
    if (random.chance(0.7)) c.bias = numbers(random, 1, 1, p.channels, wide, 1);
    c.mask = flags(random, 0.4, p.rows, p.tokens, 0.7);
    c.restart = flags(random, 0.4, p.rows, p.tokens, 0.1);
    if (p.taps > 1 && random.chance(0.6)) c.state = numbers(random, p.rows, p.taps - 1, p.channels, kind, 1, poison);
    return c;
}

Convolved convolve(const ConvolutionCase& c, const kt::Kernels& kernels, int threads, Random& random, bool overwrite) {
    kt::ShortConvolution p = c.bind();
    Convolved made;
    made.output = make_grid(random, p.rows, p.tokens, p.channels, kind_of(p.type), For::writing);
    p.output = made.output.view();
    if (c.before() > 0) {
        made.after = make_grid(random, p.rows, c.before(), p.channels, kind_of(p.type), For::writing);
        p.state_after = made.after.view();
        if (overwrite && c.state.exists()) {
            set_all(made.after, [&](int64_t r, int64_t t, int64_t e) { return c.state.get(r, t, e); });
            p.state = made.after.view();
        }
    }
    kt::Control control;
    control.threads = threads;
    kernels.short_convolution(p, control);
    check_gaps(made.output, "output");
    if (made.after.exists()) check_gaps(made.after, "state after");
    return made;
}

// The taps of a row: the number of the token that each reads, NONE, or −1 − i for token i of the state.
constexpr int64_t NONE = std::numeric_limits<int64_t>::min();

struct Lines {
    std::vector<std::vector<int64_t>> taps;  // of each token; empty where it is hidden
    std::vector<int64_t> last;               // the taps before a token that would follow
};

Lines lines(const ConvolutionCase& c, int64_t r) {
    Lines made;
    std::vector<int64_t> line(std::size_t(c.before()), NONE);
    for (int64_t i = 0; i < c.before() && c.state.exists(); ++i) line[std::size_t(i)] = -1 - i;
    for (int64_t t = 0; t < c.p.tokens; ++t) {
        if (begins(c.restart, r, t)) std::fill(line.begin(), line.end(), NONE);
        made.taps.emplace_back();
        if (hidden(c.mask, r, t)) continue;
        line.push_back(t);
        made.taps.back() = line;
        line.erase(line.begin());
    }
    made.last = line;
    return made;
}

Long value(const ConvolutionCase& c, int64_t r, int64_t at, int64_t e) {
    return at == NONE ? 0 : at < 0 ? c.state.get(r, -1 - at, e) : c.x.get(r, at, e);
}

// bias + Σ weight · x, and the sum of what was added.
std::pair<Long, Long> sum_of(const ConvolutionCase& c, int64_t r, const std::vector<int64_t>& taps, int64_t e) {
    Long sum = c.bias.exists() ? c.bias.get(0, 0, e) : 0, size = std::fabs(sum);
    for (std::size_t j = 0; j < taps.size(); ++j) {
        const Long one = c.weight.get(0, int64_t(j), e) * value(c, r, taps[j], e);
        sum += one;
        size += std::fabs(one);
    }
    return {sum, size};
}

void compare(const ConvolutionCase& c, const Convolved& made) {
    for (int64_t r = 0; r < c.p.rows; ++r) {
        const Lines line = lines(c, r);
        for (int64_t e = 0; e < c.p.channels; ++e) {
            for (int64_t t = 0; t < c.p.tokens; ++t) {
                Long right = 0, size = 0;
                if (!line.taps[std::size_t(t)].empty()) {
                    std::tie(right, size) = sum_of(c, r, line.taps[std::size_t(t)], e);
                    if (c.p.silu) right = silu(right);
                }
                expect("output", made.output.get(r, t, e), right, made.output.kind, size, {r, t, e});
            }
            for (int64_t i = 0; i < c.before(); ++i)
                if (!same(made.after.get(r, i, e), double(value(c, r, line.last[std::size_t(i)], e))))
                    fail("state after%s is another token", at_index({r, i, e}).c_str());
        }
    }
}

struct ConvolutionSlopes {
    Grid x, state;
    Array<double> weight, bias;
};

ConvolutionSlopes backward(const ConvolutionCase& c, const kt::Kernels& kernels, const Grid& d_output,
                           const Grid& d_after, int threads, Random& random) {
    const kt::ShortConvolution p = c.bind();
    kt::ShortConvolutionGradient g;
    ConvolutionSlopes made;
    const Kind kind = kind_of(p.type);
    made.x = make_grid(random, p.rows, p.tokens, p.channels, kind, For::writing);
    made.weight = Array<double>(p.taps * p.channels, 0xFF);
    made.bias = Array<double>(p.channels, 0xFF);
    g.d_output = d_output.view(), g.d_x = made.x.view(), g.d_state_after = d_after.view();
    g.d_weight = made.weight.data(), g.d_bias = made.bias.data();
    if (c.state.exists()) {
        made.state = make_grid(random, p.rows, c.before(), p.channels, kind, For::writing);
        g.d_state = made.state.view();
    }
    kt::Control control;
    control.threads = threads;
    kernels.short_convolution_backward(p, g, control);
    check_gaps(made.x, "d_x");
    if (made.state.exists()) check_gaps(made.state, "d_state");
    made.weight.check("d_weight");
    made.bias.check("d_bias");
    return made;
}

void check_slopes(const ConvolutionCase& c, const kt::Kernels& kernels, int threads, Random& random) {
    const kt::ShortConvolution& p = c.p;
    const Kind kind = kind_of(p.type);
    const Grid d_output = numbers(random, p.rows, p.tokens, p.channels, kind, 1);
    Grid d_after;
    if (c.before() > 0 && random.chance(0.5)) d_after = numbers(random, p.rows, c.before(), p.channels, kind, 1);
    const ConvolutionSlopes got = backward(c, kernels, d_output, d_after, 1, random);
    const ConvolutionSlopes again = backward(c, kernels, d_output, d_after, threads, random);
    same_grids(got.x, again.x, p.tokens, "d_x by threads");
    for (int64_t i = 0; i < p.taps * p.channels; ++i)
        if (!same(got.weight[i], again.weight[i])) fail("d_weight depends on the threads");
    for (int64_t e = 0; e < p.channels; ++e) {
        Longs d_weight(std::size_t(p.taps), 0), sizes(std::size_t(p.taps), 0);
        Long d_bias = 0, size_bias = 0;
        for (int64_t r = 0; r < p.rows; ++r) {
            const Lines line = lines(c, r);
            Longs d_x(std::size_t(p.tokens), 0), d_state(std::size_t(c.before()), 0);
            auto add = [&](int64_t at, Long slope) {
                if (at != NONE) (at < 0 ? d_state[std::size_t(-1 - at)] : d_x[std::size_t(at)]) += slope;
            };
            for (int64_t i = 0; i < c.before() && d_after.exists(); ++i)
                add(line.last[std::size_t(i)], d_after.get(r, i, e));
            for (int64_t t = 0; t < p.tokens; ++t) {
                const std::vector<int64_t>& taps = line.taps[std::size_t(t)];
                if (taps.empty()) continue;
                Long slope = d_output.get(r, t, e);
                if (p.silu) slope *= silu_slope(sum_of(c, r, taps, e).first);
                d_bias += slope;
                size_bias += std::fabs(slope);
                for (std::size_t j = 0; j < taps.size(); ++j) {
                    add(taps[j], slope * c.weight.get(0, int64_t(j), e));
                    const Long one = slope * value(c, r, taps[j], e);
                    d_weight[j] += one;
                    sizes[j] += std::fabs(one);
                }
            }
            for (int64_t t = 0; t < p.tokens; ++t)
                expect("d_x", got.x.get(r, t, e), d_x[std::size_t(t)], kind, 10, {r, t, e});
            for (int64_t i = 0; i < c.before() && c.state.exists(); ++i)
                expect("d_state", got.state.get(r, i, e), d_state[std::size_t(i)], kind, 10, {r, i, e});
        }
        const Kind wide = arithmetic(p.type);
        for (int64_t j = 0; j < p.taps; ++j)
            expect("d_weight", got.weight[j * p.channels + e], d_weight[std::size_t(j)], wide, sizes[std::size_t(j)],
                   {j, e});
        expect("d_bias", got.bias[e], d_bias, wide, size_bias, {e});
    }
}

bool has_nan(const Grid& g) {
    for (int64_t r = 0; r < g.rows && g.exists(); ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e)
                if (std::isnan(g.get(r, t, e))) return true;
    return false;
}

}  // namespace

void run_convolution_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& told) {
    const ConvolutionCase c = make_convolution(random);
    char text[200];
    std::snprintf(text, sizeof text, "%s short convolution type=%d rows=%lld n=%lld channels=%lld taps=%lld%s%s%s%s",
                  kernels.name, int(c.p.type), (long long)c.p.rows, (long long)c.p.tokens, (long long)c.p.channels,
                  (long long)c.p.taps, c.p.silu ? " silu" : "", c.mask.exists() ? " mask" : "",
                  c.restart.exists() ? " restart" : "", c.state.exists() ? " state" : "");
    told = text;
    if (tell) std::printf("%s\n", text), std::fflush(stdout);
    const Convolved made = convolve(c, kernels, 1, random, random.chance(0.5));
    compare(c, made);
    if (random.chance(0.3))
        same_grids(made.output, convolve(c, kernels, threads, random, false).output, c.p.tokens, "threads");
    if (c.p.tokens > 1 && random.chance(0.4)) {
        ConvolutionCase shorter = c;
        shorter.p.tokens = random.between(1, c.p.tokens - 1);
        same_grids(convolve(shorter, kernels, 1, random, false).output, made.output, shorter.p.tokens, "a shorter text");
    }
    if (!has_nan(c.x) && !has_nan(c.state) && random.chance(0.6)) check_slopes(c, kernels, threads, random);
}

}  // namespace fuzz
