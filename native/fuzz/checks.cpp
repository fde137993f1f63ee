#include "checks.h"

#include <cmath>

namespace fuzz {

namespace {

double half_error(Kind kind, Real x) {
    if (kind == Kind::f16) return double(std::fabs(x)) * 0x1p-11 + 0x1p-25;
    return kind == Kind::bf16 ? double(std::fabs(x)) * 0x1p-8 + 1e-40 : 0;
}

void compare_line(const Case& c, const Result& made, const Line& line, int64_t q, int64_t t) {
    const Problem& p = c.p;
    const Limits limits = limits_of(c.single());
    const Kind kind = made.output.kind;
    const int64_t at = q * p.queries + t;
    const int flag = p.normalize ? int(made.zero[at]) : 0;
    auto where = [&](int64_t e) {
        return "output" + at_index({q, t, e});
    };
    if (flag > 1) fail("zero[%lld] was not written", (long long)at);
    if (line.hidden) {
        for (int64_t e = 0; e < p.width; ++e)
            if (made.output.get(q, t, e) != 0)
                fail("%s of a hidden token is not 0", where(e).c_str());
        if (flag) fail("zero[%lld] is set for a hidden token", (long long)at);
        return;
    }
    const Real den = line.sum.empty() ? 0 : line.sum.back(), den_size = line.size.back();
    const bool spoilt = line.whole || line.bad.back();
    const bool certain = std::fabs(den) > std::max(limits.low, 50 * line.error * den_size);
    const bool nothing = den_size == 0 && !line.risky;
    if (p.normalize && spoilt && flag) fail("zero[%lld] is set for a NaN row", (long long)at);
    if (p.normalize && !spoilt && !line.risky && (nothing || certain) && flag != int(nothing))
        fail("zero[%lld] is %d, the normaliser is %Lg", (long long)at, flag, den);
    if (made.normalizer.exists && c.log_scale.empty() && !p.decay_width && !spoilt && !line.risky) {
        const Real expected = p.normalize ? den : 1, got = Real(made.normalizer[at]);
        if (!(std::fabs(got - expected) <= line.error * den_size + limits.tiny))
            fail("normalizer[%lld] is %Lg, not %Lg", (long long)at, got, expected);
    }
    const bool beyond = !p.normalize && line.log_scale > (c.single() ? 41 : 414);  // of e^…
    for (int64_t e = 0; e < p.width; ++e) {
        const double got = made.output.get(q, t, e);
        if (line.whole || line.bad[std::size_t(e)]) {
            if (!std::isnan(got)) fail("%s is %g, not NaN", where(e).c_str(), got);
            continue;
        }
        if (line.risky || beyond) continue;
        if (p.normalize && nothing) {
            const double expected = rounded(rounded(p.zero_fill, arithmetic(p.type)), kind);
            if (got != expected && !(std::isnan(got) && std::isnan(expected)))
                fail("%s is %g, not the fill %g", where(e).c_str(), got, expected);
            continue;
        }
        if (p.normalize && !certain) {
            // Too small to compare, but nothing cancels: a mean of finite values is finite.
            if (kind != Kind::f16 && !flag && !std::isfinite(got) && std::fabs(den) > den_size / 2)
                fail("%s is %g, the normaliser is %Lg", where(e).c_str(), got, den);
            continue;
        }
        const Real sum = line.sum[std::size_t(e)], size = line.size[std::size_t(e)];
        Real expected, allowed;
        if (p.normalize) {
            expected = sum / den;
            allowed = line.error * (size + std::fabs(expected) * den_size) / std::fabs(den) +
                      limits.tiny * line.top * (1 + size + den_size) / std::fabs(den);
        } else {
            const Real factor = std::exp(line.log_scale);
            expected = sum * factor;
            allowed = line.error * size * factor +
                      limits.tiny_factor * line.top * (1 + size) * (1 + factor);
        }
        if (std::fabs(expected) > (kind == Kind::f16 ? 6e4L : limits.high * 1e12L)) continue;
        allowed += Real(half_error(kind, std::fabs(expected) + allowed));
        if (!(std::fabs(Real(got) - expected) <= allowed))
            fail("%s is %.17g, not %.17Lg (± %.2Lg)", where(e).c_str(), got, expected, allowed);
    }
}

// The ring of a decoder has the tokens that a state would keep.
void compare_ring(const Case& c, const Result& made, const Told& told, int64_t row) {
    const Problem& p = c.p;
    const int64_t slots = int64_t(told.near_after.size()), size = made.ring_k.tokens - p.sinks;
    for (int64_t i = 0; i < slots; ++i) {
        const int64_t from = told.near_after[std::size_t(i)];
        if (from == kt::NO_TOKEN) continue;
        const int64_t at = i < p.sinks ? i : p.sinks + (told.seen - (slots - i)) % size;
        bool fine = true;
        auto equal = [&](const Grid& ring, const Grid& kept, const Grid& given, const char* name) {
            for (int64_t e = 0; e < ring.width; ++e) {
                const double x = from < 0 ? kept.get(row, -1 - from, e) : given.get(row, from, e);
                fine = fine && std::isfinite(x);
                if (!same(ring.get(row, at, e), x))
                    fail("%s%s of the ring is not that of token %lld", name, at_index({row, at, e}).c_str(),
                         (long long)from);
            }
        };
        equal(made.ring_k, c.near_k, c.k, "k");
        equal(made.ring_v, c.near_v, c.v, "v");
        const double position = from < 0 ? c.near_positions.get(row, -1 - from) : double(p.start + from);
        if (made.ring_positions.get(row, at) != position)
            fail("the position of slot %lld is %g", (long long)at, made.ring_positions.get(row, at));
        if (made.ring_keep.get(row, at) != (fine ? 1 : 2)) fail("slot %lld is marked wrongly", (long long)at);
    }
}

void compare_state(const Case& c, const Result& made, const Told& told, int64_t row) {
    const Problem& p = c.p;
    const Limits limits = limits_of(c.single());
    const int64_t m = p.features.count, w = p.width + 1;
    for (int64_t e = 0; e < w; ++e)
        if (made.bad[row * w + e] != told.bad[std::size_t(e)])
            fail("bad[%lld, %lld] is %d", (long long)row, (long long)e, int(made.bad[row * w + e]));
    for (int64_t f = 0; f < p.decay_width; ++f) {
        const double got = made.decay_total[row * p.decay_width + f];
        const double expected = told.decay_total[std::size_t(f)];
        if (got != expected && !(std::fabs(got - expected) <= 1e-12 * std::fabs(expected)))
            fail("decay_total%s is %g, not %g", at_index({row, f}).c_str(), got, expected);
    }
    const int64_t slots = made.near_after.exists ? int64_t(told.near_after.size()) : 0;
    for (int64_t i = 0; i < slots; ++i)
        if (made.near_after[row * slots + i] != told.near_after[std::size_t(i)])
            fail("near_after%s is %lld, not %lld", at_index({row, i}).c_str(),
                 (long long)made.near_after[row * slots + i],
                 (long long)told.near_after[std::size_t(i)]);
    if (made.seen_after.exists && made.seen_after[row] != told.seen)
        fail("seen_after[%lld] is %lld, not %lld", (long long)row, (long long)made.seen_after[row],
             (long long)told.seen);
    if (told.risky || told.bad.back()) return;
    Real factor = 1;
    if (!c.log_scale.empty()) {
        const Real got = Real(made.log_scale[row]);
        if (told.log_scale == NONE || got == NONE) {
            if (got != told.log_scale) fail("log_scale[%lld] is %Lg", (long long)row, got);
            factor = 0;
        } else {
            factor = std::exp(got - told.log_scale);
        }
    }
    for (int64_t i = 0; i < m * w; ++i) {
        if (told.bad[std::size_t(i % w)]) continue;
        const Real got = Real(made.sums[row * m * w + i]), expected = told.U[std::size_t(i)];
        if (factor == 0 && got != 0) fail("sums%s of nothing", at_index({row, i}).c_str());
        const Real size = told.size[std::size_t(i)];
        const Real allowed = (told.error + 1e-15L * told.reach) * size +
                             limits.tiny * told.top * (1 + size);
        if (!(std::fabs(got * factor - expected) <= allowed))
            fail("sums%s is %.17Lg, not %.17Lg (± %.2Lg)", at_index({row, i}).c_str(), got * factor,
                 expected, allowed);
    }
}

// The bits of `count` query tokens: row `other_row` of the other result.
void compare_bits(const Result& one, int64_t row, int64_t width_one, const Result& other,
                  int64_t other_row, int64_t width_other, int64_t count, const char* why) {
    for (int64_t t = 0; t < count; ++t) {
        for (int64_t e = 0; e < one.output.width; ++e) {
            const double a = one.output.get(row, t, e), b = other.output.get(other_row, t, e);
            if (!same(a, b))
                fail("%s: output[%lld, %lld, %lld] is %.17g or %.17g", why, (long long)row,
                     (long long)t, (long long)e, a, b);
        }
        const int64_t i = row * width_one + t, j = other_row * width_other + t;
        if (one.zero.exists && one.zero[i] != other.zero[j])
            fail("%s: zero[%lld, %lld]", why, (long long)row, (long long)t);
        if (one.hidden[std::size_t(i)]) continue;
        for (auto of : {&Result::normalizer, &Result::near_reference, &Result::near_normalizer,
                        &Result::near_top}) {
            const Array<double>&a = one.*of, &b = other.*of;
            if (a.exists && !same(a[i], b[j]))
                fail("%s: what is kept for the gradient of [%lld, %lld] is %.17g or %.17g", why,
                     (long long)row, (long long)t, a[i], b[j]);
        }
    }
}

void compare_states(const Result& one, int64_t row, int64_t rows, const Result& other,
                    int64_t other_row, const char* why) {
    compare_part(one.sums, row, rows, other.sums, other_row, why, "sums");
    compare_part(one.log_scale, row, rows, other.log_scale, other_row, why, "log_scale");
    compare_part(one.decay_total, row, rows, other.decay_total, other_row, why, "decay_total");
    compare_part(one.bad, row, rows, other.bad, other_row, why, "bad");
    compare_part(one.near_after, row, rows, other.near_after, other_row, why, "near_after");
    compare_part(one.seen_after, row, rows, other.seen_after, other_row, why, "seen_after");
}

// Rows `first` … of a grid, elsewhere in memory and with other strides.
Grid moved(Random& random, const Grid& g, int64_t first, int64_t count) {
    if (!g.exists()) return Grid();
    Grid to = make_grid(random, count, g.tokens, g.width, g.kind, For::writing);
    set_all(to, [&](int64_t r, int64_t t, int64_t e) { return g.get(first + r, t, e); });
    return to;
}

}  // namespace

void compare_row(const Case& c, const Result& made, const Told& told, int64_t row) {
    const Problem& p = c.p;
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t t = 0; t < p.queries; ++t) {
            const Line& line = told.lines[std::size_t(g * p.queries + t)];
            compare_line(c, made, line, row * p.groups + g, t);
        }
    compare_state(c, made, told, row);
    if (made.ring_k.exists()) compare_ring(c, made, told, row);
}

void check_threads(const Case& c, const kt::Kernels& kernels, const Result& made, int threads,
                   Random& random) {
    const Result other = forward(c, kernels, threads, random);
    const std::string why = "threads 1 and " + std::to_string(threads);
    for (int64_t q = 0; q < c.p.rows * c.p.groups; ++q)
        compare_bits(made, q, c.p.queries, other, q, c.p.queries, c.p.queries, why.c_str());
    for (int64_t r = 0; r < c.p.rows; ++r) compare_states(made, r, c.p.rows, other, r, why.c_str());
}

// The matrices and the bias of row r, for a case of that row alone.
void take_weights(const Case& c, int64_t r, Case& one) {
    Features& f = one.p.features;
    f.weight_heads = 1;
    f.key_weight_heads = std::min<int64_t>(1, f.key_weight_heads);
    const int64_t column = f.columns * size_of(arithmetic(c.p.type)), matrix = f.inputs * column;
    if (c.weight.data()) {
        one.weight = Bytes((1 + f.key_weight_heads) * matrix);
        std::memcpy(one.weight.data(), c.weight.data() + c.which(r) * matrix, std::size_t(matrix));
        if (f.key_weight_heads)
            std::memcpy(one.weight.data() + matrix, c.weight.data() + c.which_key(r) * matrix,
                        std::size_t(matrix));
    }
    if (c.bias.data()) {
        one.bias = Bytes(column);
        std::memcpy(one.bias.data(), c.bias.data() + c.which(r) * column, std::size_t(column));
    }
}

void check_alone(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    if (!c.p.rows) return;
    const int64_t r = random.between(0, c.p.rows - 1), groups = c.p.groups;
    Case one = c;
    one.p.rows = one.p.heads = 1;
    take_weights(c, r, one);
    for (Grid Case::*g : {&Case::k, &Case::v, &Case::mask, &Case::restart, &Case::log_decay,
                          &Case::k_positions, &Case::k_scale, &Case::near_k, &Case::near_v,
                          &Case::near_keep, &Case::near_positions})
        one.*g = moved(random, c.*g, r, 1);
    for (Grid Case::*g : {&Case::q, &Case::query_mask, &Case::q_positions, &Case::q_scale})
        one.*g = moved(random, c.*g, r * groups, groups);
    auto part = [&](auto& x) {
        const std::ptrdiff_t n = std::ptrdiff_t(x.size()) / c.p.rows;
        x = std::decay_t<decltype(x)>(x.begin() + r * n, x.begin() + (r + 1) * n);
    };
    part(one.sums);
    part(one.log_scale);
    part(one.decay_total);
    part(one.bad);
    part(one.seen);
    if (!c.gain.empty())
        one.gain.assign(c.gain.begin() + r % c.p.heads * groups,
                        c.gain.begin() + (r % c.p.heads + 1) * groups);
    const Result other = forward(one, kernels, 1, random);
    for (int64_t g = 0; g < groups; ++g)
        compare_bits(made, r * groups + g, c.p.queries, other, g, c.p.queries, c.p.queries,
                     "row alone");
    compare_states(made, r, c.p.rows, other, 0, "row alone");
}

// Without a state, outputs are those after an empty one, unless φ is too large for a number: by a state
// of 0 that is NaN.
void check_stateless(const Case& c, const kt::Kernels& kernels, const Result& made, int threads,
                     Random& random) {
    if (!c.begins_empty() || c.wild) return;
    const Result other = forward(c, kernels, threads, random, false);
    for (int64_t q = 0; q < c.p.rows * c.p.groups; ++q)
        compare_bits(made, q, c.p.queries, other, q, c.p.queries, c.p.queries, "without a state");
}

// A half-precision output is the float32 one, rounded to nearest.
void check_narrow(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    const Kind kind = made.output.kind;
    if (kind != Kind::f16 && kind != Kind::bf16) return;
    Case wide = c;
    wide.p.output_type = Type::f32;
    const Result other = forward(wide, kernels, 1, random);
    set_all(other.output, [&](int64_t q, int64_t t, int64_t e) {
        const double x = other.output.get(q, t, e), got = made.output.get(q, t, e);
        if (!same(got, rounded(x, kind)))
            fail("output%s is %g, %.9g rounded", at_index({q, t, e}).c_str(), got, x);
        return x;
    });
}

// Outputs up to token t must not know what comes after it, nor whether anything does.
void check_future(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    if (!c.p.causal || c.p.keys < 2) return;
    const int64_t t = random.between(0, c.p.keys - 2);
    Case other = c;
    const bool shorter = random.chance(0.3);
    if (shorter) {
        other.p.keys = other.p.queries = t + 1;
    } else {
        const double share = random.pick<double>({0.02, 0.3, 1});
        other.each_grid([&](Grid& g) {
            const bool before = &g == &other.near_k || &g == &other.near_v || &g == &other.near_keep ||
                                &g == &other.near_positions;
            if (!g.exists() || g.token == 0 || before) return;
            for (int64_t r = 0; r < g.rows; ++r)
                for (int64_t i = t + 1; i < g.tokens; ++i)
                    for (int64_t e = 0; e < g.width; ++e) {
                        if (!random.chance(share)) continue;
                        double x = strange(random);
                        if (&g == &other.log_decay) x = -random.pick<double>({0, 1, 50, 1e4, 1e30, 3e38});
                        if (g.kind == Kind::byte) x = double(random.between(0, 1));
                        if (&g == &other.q_positions || &g == &other.k_positions)
                            x = random.normal() * 1e4;
                        if (&g == &other.q_scale || &g == &other.k_scale) x = random.normal() * 1e3;
                        g.set(r, i, e, x);
                    }
        });
    }
    const Result changed = forward(other, kernels, 1, random);
    const std::string why = (shorter ? "without" : "with other") + std::string(" tokens after ") +
                            std::to_string(t);
    for (int64_t q = 0; q < c.p.rows * c.p.groups; ++q)
        compare_bits(made, q, c.p.queries, changed, q, other.p.queries, t + 1, why.c_str());
}

}  // namespace fuzz
