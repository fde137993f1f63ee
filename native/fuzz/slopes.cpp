// Gradients against differences of the oracle.
#include <cmath>

#include "checks.h"

namespace fuzz {

namespace {

// Σ d_output·output + Σ d_sums·sums of a row, the scale of the sums being held.
struct Loss {
    Real value = 0, size = 0;
    bool usable = true;
};

Loss loss_of(const Case& c, const Dense& x, const Slopes& s, int64_t row, Real held) {
    const Problem& p = c.p;
    const Told told = tell(c, x, row);
    Loss loss;
    auto add = [&](Real term) {
        loss.value += term;
        loss.size += std::fabs(term);
    };
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t t = 0; t < p.queries; ++t) {
            const Line& line = told.lines[std::size_t(g * p.queries + t)];
            if (line.hidden) continue;
            const Real den = line.sum.back();
            const bool none = p.normalize && den == 0;
            loss.usable = loss.usable && !line.risky && !line.tied && line.log_scale < 60;
            if (p.normalize && !none && std::fabs(den) < std::max(1e-10L, 1e-2L * line.size.back()))
                loss.usable = false;
            for (int64_t e = 0; e < p.width && !none; ++e) {
                const Real factor = p.normalize ? 1 / den : std::exp(line.log_scale);
                const double d = s.d_output.get(row * p.groups + g, t, e);
                add(line.sum[std::size_t(e)] * factor * Real(d));
            }
        }
    const std::size_t size = told.U.size();
    const Real factor = !c.log_scale.empty() && held > NONE ? std::exp(told.log_scale - held) : 1;
    for (std::size_t i = 0; i < size; ++i)
        add(told.U[i] * factor * Real(s.d_final[std::size_t(row) * size + i]));
    loss.usable = loss.usable && !told.risky;
    return loss;
}

void check_slope(const Case& c, Dense& x, const Slopes& s, const std::vector<int64_t>& rows,
                 const std::vector<Real>& held, Real* coordinate, Real factor, Real got,
                 Real largest, const std::string& name) {
    const Real before = *coordinate;
    Real slope = 0, size = 0;
    // A corner of ReLU may lie within a step, but not within all of them.
    for (Real step : {1e-5L, 1e-6L, 1e-7L}) {
        slope = size = 0;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            *coordinate = before + step;
            const Loss up = loss_of(c, x, s, rows[i], held[i]);
            *coordinate = before - step;
            const Loss down = loss_of(c, x, s, rows[i], held[i]);
            *coordinate = before;
            if (!up.usable || !down.usable) return;
            slope += (up.value - down.value) / (2 * step) * factor;
            size += up.size;
        }
        const Real top = std::max(largest, std::fabs(slope));
        const Real allowed = c.single() ? 1e-3L * (top + size) : 1e-5L * top + 1e-9L * size;
        if (std::fabs(got - slope) <= allowed + limits_of(c.single()).tiny_factor) return;
    }
    fail("%s is %.12Lg, by differences %.12Lg (largest %.3Lg)", name.c_str(), got, slope, largest);
}

}  // namespace

void check_backward(const Case& c, const kt::Kernels& kernels, const Result& made, Dense& x,
                    int threads, Random& random) {
    const Problem& p = c.p;
    const kt::Features& f = p.features;
    const int64_t d = f.inputs, m = f.count, w = p.width + 1, n = p.keys;
    Grid d_output = make_grid(random, p.rows * p.groups, p.queries, p.width, made.output.kind,
                              For::reading);
    fill(random, d_output, 1, 0);
    std::vector<double> d_final(c.sums.size());
    if (random.chance(0.5))
        for (double& e : d_final) e = random.normal();
    Random again = random;  // for the same layouts: where gradients are added up depends on them
    const Slopes s = backward(c, kernels, made, d_output, d_final, 1, random);
    const bool no_state = c.begins_empty() && !c.wild && std::count(d_final.begin(), d_final.end(), 0.0) == int64_t(d_final.size());
    for (const bool state : {true, false}) {
        if (state ? !random.chance(0.2) : !no_state || random.chance(0.5)) continue;
        Random layout = again;
        const char* why = state ? "threads" : "without a state";
        const Slopes other = backward(c, kernels, made, d_output, d_final, state ? threads : 1, layout, state);
        auto grids = [&](const Grid& a, const Grid& b, const char* name) {
            set_all(a, [&](int64_t r, int64_t t, int64_t e) {
                if (!same(a.get(r, t, e), b.get(r, t, e)))
                    fail("%s: %s%s", why, name, at_index({r, t, e}).c_str());
                return a.get(r, t, e);
            });
        };
        grids(s.d_q, other.d_q, "d_q");
        grids(s.d_k, other.d_k, "d_k");
        grids(s.d_v, other.d_v, "d_v");
        grids(s.d_near_k, other.d_near_k, "d_near_k");
        grids(s.d_near_v, other.d_near_v, "d_near_v");
        if (state) compare_part(s.d_sums, 0, 1, other.d_sums, 0, why, "d_sums");
        compare_part(s.d_log_decay, 0, 1, other.d_log_decay, 0, why, "d_log_decay");
        compare_part(s.d_weight, 0, 1, other.d_weight, 0, why, "d_weight");
        compare_part(s.d_bias, 0, 1, other.d_bias, 0, why, "d_bias");
        compare_part(s.d_gain, 0, 1, other.d_gain, 0, why, "d_gain");
    }
    int64_t work = p.groups * (n + p.queries) * m * w;
    if (c.near()) work = p.groups * p.queries * (n + p.near_slots) * (m + d + w) / 10;
    if (c.wild || !p.rows || !n || !p.queries || work > 8000) return;
    if (p.type == Type::f16 || p.type == Type::bf16) return;

    const int64_t r = random.between(0, p.rows - 1);
    const int64_t q = r * p.groups + random.between(0, p.groups - 1);
    std::vector<int64_t> all;
    std::vector<Real> held;
    for (int64_t i = 0; i < p.rows; ++i)
        if (i == r || (s.d_weight.exists &&
                       (c.which(i) == c.which(r) || c.which_key(i) == c.which_key(r)))) {
            all.push_back(i);
            held.push_back(c.log_scale.empty() ? NONE : Real(made.log_scale[i]));
            if (!loss_of(c, x, s, i, held.back()).usable) return;
        }
    const std::size_t mine = std::size_t(std::find(all.begin(), all.end(), r) - all.begin());
    const std::vector<int64_t> one = {r};
    const std::vector<Real> held_one = {held[mine]};
    auto try_grid = [&](const Grid& g, int64_t row, int64_t width, std::vector<Real>& of,
                        Real factor, const char* name) {
        if (!width || !g.tokens) return;
        Real largest = 0;
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < width; ++e) {
                if (!std::isfinite(g.get(row, t, e)))
                    fail("%s%s is not finite", name, at_index({row, t, e}).c_str());
                largest = std::max(largest, Real(std::fabs(g.get(row, t, e))));
            }
        const int64_t t = random.between(0, g.tokens - 1), e = random.between(0, width - 1);
        check_slope(c, x, s, one, held_one, &of[std::size_t((row * g.tokens + t) * width + e)],
                    factor, Real(g.get(row, t, e)), largest, name + at_index({row, t, e}));
    };
    const Real root = Real(f.root_scale);
    try_grid(s.d_q, q, d, x.q, root, "d_q");
    try_grid(s.d_k, r, d, x.k, root, "d_k");
    try_grid(s.d_v, r, p.width, x.v, 1, "d_v");
    try_grid(s.d_near_k, r, d, x.near_k, root, "d_near_k");
    try_grid(s.d_near_v, r, p.width, x.near_v, 1, "d_near_v");
    auto try_array = [&](const Array<double>& a, int64_t first, int64_t count, Real* of,
                         const std::vector<int64_t>& rows, const std::vector<Real>& scales,
                         const char* name) {
        if (!a.exists || !count) return;
        Real largest = 0;
        for (int64_t i = first; i < first + count; ++i) {
            if (!std::isfinite(a[i])) fail("%s[%lld] is not finite", name, (long long)i);
            largest = std::max(largest, Real(std::fabs(a[i])));
        }
        const int64_t i = first + random.between(0, count - 1);
        check_slope(c, x, s, rows, scales, of + i, 1, Real(a[i]), largest,
                    name + at_index({i}));
    };
    const int64_t steps = n * p.decay_width, matrix = d * f.columns;
    try_array(s.d_log_decay, r * steps, steps, x.log_decay.data(), one, held_one, "d_log_decay");
    try_array(s.d_weight, c.which(r) * matrix, matrix, x.weight.data(), all, held, "d_weight");
    if (f.key_weight_heads)
        try_array(s.d_weight, c.which_key(r) * matrix, matrix, x.weight.data(), all, held,
                  "d_weight of keys");
    try_array(s.d_bias, c.which(r) * f.columns, f.columns, x.bias.data(), all, held, "d_bias");
    if (s.d_gain.exists) {
        const Real largest = std::fabs(Real(s.d_gain[q]));
        check_slope(c, x, s, one, held_one, &x.gain[std::size_t(q % (p.heads * p.groups))], 1,
                    Real(s.d_gain[q]), largest, "d_gain" + at_index({q}));
    }
    if (m == 0) return;
    // The state is not among the dense numbers: its slope is that of a copy of the case.
    Case shifted = c;
    const int64_t at = r * m * w + random.between(0, m * w - 1);
    Real largest = limits_of(c.single()).tiny_factor, slope = 0;
    for (int64_t i = r * m * w; i < (r + 1) * m * w; ++i)
        largest = std::max(largest, Real(std::fabs(s.d_sums[i])));
    if (!c.log_scale.empty() && c.log_scale[std::size_t(r)] == -INF) return;  // there is none
    const double here = c.sums[std::size_t(at)], got = s.d_sums[at];
    // A quotient may be no line over a step, but is one over a shorter, unless it is a pole.
    for (const double step : {0x1p-20, 0x1p-24, 0x1p-28}) {
        const Real span = Real(here + step) - Real(here - step);
        if (span == 0) return;  // so large a number
        Real ends[2], size = 0;
        for (int side = 0; side < 2; ++side) {
            shifted.sums[std::size_t(at)] = here + (side ? step : -step);
            const Loss loss = loss_of(shifted, x, s, r, held[mine]);
            if (!loss.usable) return;
            ends[side] = loss.value;
            size += loss.size;
        }
        slope = (ends[1] - ends[0]) / span;
        const Real allowed = c.single() ? 1e-3L * (largest + size) : 1e-5L * largest + 1e-9L * size;
        if (std::fabs(Real(got) - slope) <= allowed) return;
        if (step == 0x1p-28 && std::fabs(got) * step > 1e-3L * size) return;
    }
    fail("d_sums[%lld] is %.12g, by differences %.12Lg", (long long)at, got, slope);
}

}  // namespace fuzz
