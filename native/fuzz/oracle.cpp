#include "oracle.h"

#include <cmath>

namespace fuzz {

Dense densely(const Case& c, bool single) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, n = p.keys, n_q = p.queries;
    const int64_t query_rows = p.rows * p.groups;
    Dense x;
    auto tokens = [&](const Grid& g, int64_t rows, int64_t count, double exact, std::vector<Real>& to,
                      std::vector<uint8_t>& bad, std::vector<uint8_t>& raw_bad) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t t = 0; t < count; ++t) {
                uint8_t strange_here = 0, raw_here = 0;
                for (int64_t e = 0; e < d; ++e) {
                    const double root = p.features.root_scale, raw = g.get(r, t, e);
                    const double y = single ? double(float(raw) * float(root)) : raw * root;
                    strange_here |= !std::isfinite(y);
                    raw_here |= !std::isfinite(single ? double(float(raw) * float(exact)) : raw * exact);
                    to.push_back(Real(y));
                }
                bad.push_back(strange_here);
                raw_bad.push_back(raw_here);
            }
    };
    tokens(c.q, query_rows, n_q, p.near_scale, x.q, x.bad_q, x.raw_bad_q);
    tokens(c.k, p.rows, n, 1, x.k, x.bad_k, x.raw_bad_k);
    tokens(c.near_k, c.near_k.rows, p.near_slots, 1, x.near_k, x.bad_near_k, x.raw_bad_near_k);
    for (int64_t r = 0; r < c.near_v.rows; ++r)
        for (int64_t t = 0; t < p.near_slots; ++t)
            for (int64_t e = 0; e < p.width; ++e) x.near_v.push_back(Real(c.near_v.get(r, t, e)));
    x.gain.assign(c.gain.begin(), c.gain.end());
    for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t e = 0; e < p.width; ++e) x.v.push_back(Real(c.v.get(r, t, e)));
            for (int64_t e = 0; e < p.decay_width; ++e)
                x.log_decay.push_back(c.log_decay.exists() ? Real(c.log_decay.get(r, t, e)) : 0);
            x.hidden_k.push_back(c.mask.exists() && c.mask.get(r, t) == 0);
            x.restart.push_back(c.restart.exists() && c.restart.get(r, t) != 0);
            x.k_positions.push_back(c.k_positions.exists() ? c.k_positions.get(r, t)
                                                           : double(p.start + t));
            x.k_scale.push_back(c.k_scale.exists() ? c.k_scale.get(r, t) : 0);
        }
    for (int64_t r = 0; r < query_rows; ++r)
        for (int64_t t = 0; t < n_q; ++t) {
            x.hidden_q.push_back(c.hides(r, t));
            x.q_positions.push_back(c.q_positions.exists() ? c.q_positions.get(r, t)
                                                           : double(p.start + t));
            x.q_scale.push_back(c.q_scale.exists() ? c.q_scale.get(r, t) : 0);
        }
    const Kind kind = arithmetic(p.type);
    for (int64_t i = 0; c.weight.data() && i < c.weight.size() / size_of(kind); ++i)
        x.weight.push_back(Real(decode(c.weight.data() + i * size_of(kind), kind)));
    for (int64_t i = 0; c.bias.data() && i < c.bias.size() / size_of(kind); ++i)
        x.bias.push_back(Real(decode(c.bias.data() + i * size_of(kind), kind)));
    return x;
}

Limits limits_of(bool single) {
    if (single) return {1e-5L, 1e-33L, 1e-24L, 1e-18L, 1e18L};
    return {1e-13L, 1e-290L, 1e-218L, 1e-180L, 1e180L};
}

namespace {

// φ of one token: e^{log_scale}·value, and the size against which the error of each is measured.
struct Phi {
    std::vector<Real> value, size;
    Real log_scale = 0;
    bool risky = false;  // beyond the range of the arithmetic
};

void compute_phi(const Case& c, const Dense& x, const Real* token, int64_t which, double position,
                 double scale, Phi& out) {
    const kt::Features& f = c.p.features;
    const Limits limits = limits_of(c.single());
    const int64_t d = f.inputs, m = f.count, p = f.columns;
    std::vector<Real>&y = out.value, &size = out.size;
    y.assign(std::size_t(m), 0);
    size.assign(std::size_t(m), 0);
    out.log_scale = 0;
    Real stretch = 0;  // an exponent or an angle so large has so much larger an error
    if (projected(f.map))
        for (int64_t r = 0; r < p; ++r) {
            Real sum = 0, total = 0;
            if (x.weight.empty()) sum = total = token[r];
            for (int64_t i = 0; i < d && !x.weight.empty(); ++i) {
                const Real term = x.weight[std::size_t((which * d + i) * p + r)] * token[i];
                sum += term;
                total += std::fabs(term);
            }
            if (!x.bias.empty()) {
                sum += x.bias[std::size_t(which * p + r)];
                total += std::fabs(x.bias[std::size_t(which * p + r)]);
            }
            y[std::size_t(r)] = sum;
            size[std::size_t(r)] = total;
            stretch = std::max(stretch, std::fabs(total));
        }
    Real half_norm = 0;
    for (int64_t i = 0; i < d && favor(f.map); ++i) half_norm += token[i] * token[i] / 2;
    auto exponentials = [&](Real share) {  // of y, all of them
        Real top = NONE;
        for (Real e : y) top = std::max(top, e);
        for (Real& e : y) e = std::exp(e - top) * share;
        out.log_scale = top;
    };
    auto mirrored = [&] {
        for (int64_t r = 0; r < p; ++r) y[std::size_t(p + r)] = -y[std::size_t(r)];
    };
    switch (f.map) {
        case Map::given:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i];
            out.log_scale = Real(scale);
            break;
        case Map::elu:
            for (int64_t i = 0; i < d; ++i)
                y[std::size_t(i)] = token[i] > 0 ? token[i] + 1 : std::exp(token[i]);
            break;
        case Map::relu:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i] > 0 ? token[i] : 0;
            break;
        case Map::relu2:
            for (int64_t i = 0; i < d; ++i)
                y[std::size_t(i)] = token[i] > 0 ? token[i] * token[i] : 0;
            break;
        case Map::square:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i] * token[i];
            break;
        case Map::exp:
            for (int64_t i = 0; i < d; ++i) {
                y[std::size_t(i)] = token[i];
                stretch = std::max(stretch, std::fabs(token[i]));
            }
            exponentials(1);
            break;
        case Map::cosformer: {
            const Real angle = std::fmod(Real(position), 4 * Real(f.horizon)) / Real(f.horizon) *
                               std::acos(Real(-1)) / 2;
            for (int64_t i = 0; i < d; ++i) {
                const Real part = token[i] > 0 ? token[i] : 0;
                y[std::size_t(i)] = part * std::cos(angle);
                y[std::size_t(d + i)] = part * std::sin(angle);
                size[std::size_t(i)] = size[std::size_t(d + i)] = part;
            }
            break;
        }
        case Map::hedgehog_softmax:
        case Map::hedgehog_exp: {
            mirrored();
            exponentials(1);
            if (f.map == Map::hedgehog_exp) break;
            Real total = 0;
            for (Real e : y) total += e;
            for (Real& e : y) e /= total;
            out.log_scale = 0;
            break;
        }
        case Map::hedgehog_separate: {
            mirrored();
            for (int64_t first : {int64_t(0), p}) {
                Real top = NONE, total = 0;
                for (int64_t r = first; r < first + p; ++r) top = std::max(top, y[std::size_t(r)]);
                for (int64_t r = first; r < first + p; ++r)
                    total += y[std::size_t(r)] = std::exp(y[std::size_t(r)] - top);
                for (int64_t r = first; r < first + p; ++r) y[std::size_t(r)] /= total;
            }
            break;
        }
        case Map::t2r:
            for (Real& e : y) e = e > 0 ? e : 0;
            break;
        case Map::favor_hyperbolic: mirrored(); [[fallthrough]];
        case Map::favor_positive:
            exponentials(1 / std::sqrt(Real(m)));
            out.log_scale -= half_norm;
            break;
        case Map::favor_trig:
            for (int64_t r = 0; r < p; ++r) {
                const Real angle = y[std::size_t(r)], share = 1 / std::sqrt(Real(p));
                y[std::size_t(r)] = std::cos(angle) * share;
                y[std::size_t(p + r)] = std::sin(angle) * share;
                size[std::size_t(r)] = size[std::size_t(p + r)] = share;
            }
            out.log_scale = half_norm;
            break;
        case Map::quadratic: {
            std::size_t at = 0;
            for (int64_t a = f.c1 > 0 ? 0 : 1; a <= d; ++a)
                for (int64_t b = a; b <= d; ++b) {
                    const Real left = a ? token[a - 1] : 1, right = b ? token[b - 1] : 1;
                    const double square = !b ? f.c0 : !a ? f.c1 : a == b ? f.c2 : 2 * f.c2;
                    y[at++] = std::sqrt(Real(square)) * left * right;
                }
            break;
        }
    }
    if (favor(f.map)) stretch += half_norm * (c.single() ? 1e-8L : 1);
    if (f.map == Map::t2r) stretch = 0;
    out.risky = !(stretch * limits.error < 0.01L);
    const bool own = f.map == Map::t2r || f.map == Map::cosformer || f.map == Map::favor_trig;
    for (std::size_t i = 0; i < y.size(); ++i) {
        size[i] = (own ? size[i] : std::fabs(y[i])) * (1 + stretch);
        out.risky = out.risky || !(size[i] < limits.high);
    }
}

// The loops that take the time; plain enough to go unchecked.
#define KT_UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))

KT_UNCHECKED void add_row(Real* to, const Real* from, Real factor, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

KT_UNCHECKED void mix_row(Real* to, Real old, const Real* from, Real own, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = to[i] * old + from[i] * own;
}

KT_UNCHECKED Real largest_of(const Real* x, int64_t count) {
    Real top = 0;
    for (int64_t i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
    return top;
}

Told first_state(const Case& c, int64_t row) {
    const Problem& p = c.p;
    const int64_t w = p.width + 1;
    Told s;
    s.error = limits_of(c.single()).error;
    const std::size_t size = std::size_t(p.features.count * w);
    for (std::size_t i = 0; i < size; ++i) s.U.push_back(Real(c.sums[std::size_t(row) * size + i]));
    for (Real u : s.U) s.size.push_back(std::fabs(u));
    if (!c.log_scale.empty()) s.log_scale = Real(c.log_scale[std::size_t(row)]);
    if (s.log_scale > NONE) s.reach = std::fabs(s.log_scale);
    s.bad.assign(c.bad.begin() + row * w, c.bad.begin() + (row + 1) * w);
    s.decay_total.assign(c.decay_total.begin() + row * p.decay_width,
                         c.decay_total.begin() + (row + 1) * p.decay_width);
    return s;
}

// Every key has the weight of the map, and a state holds all of them.
Told tell_far(const Case& c, const Dense& x, int64_t row) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, m = p.features.count, w = p.width + 1, n = p.keys;
    const bool scaled = !c.log_scale.empty();
    const Limits limits = limits_of(c.single());
    Told s = first_state(c, row);
    s.lines.resize(std::size_t(p.groups * p.queries));
    Phi phi;
    std::vector<Real> value(std::size_t(w), 0), magnitude(std::size_t(w), 0);
    auto read = [&](int64_t g, int64_t t) {
        Line& line = s.lines[std::size_t(g * p.queries + t)];
        const std::size_t at = std::size_t((row * p.groups + g) * p.queries + t);
        line.hidden = x.hidden_q[at];
        if (line.hidden) return;
        line.whole = x.bad_q[at];
        line.bad = s.bad;
        line.sum.assign(std::size_t(w), 0);
        line.size.assign(std::size_t(w), 0);
        if (line.whole) return;
        compute_phi(c, x, x.q.data() + int64_t(at) * d, c.which(row), x.q_positions[at],
                    x.q_scale[at], phi);
        for (int64_t f = 0; f < m; ++f) {
            add_row(line.sum.data(), s.U.data() + f * w, phi.value[std::size_t(f)], w);
            add_row(line.size.data(), s.size.data() + f * w, phi.size[std::size_t(f)], w);
        }
        line.log_scale = scaled ? phi.log_scale + (s.log_scale > NONE ? s.log_scale : 0) : 0;
        line.risky = s.risky || phi.risky;
        line.top = s.top;
        line.error = s.error + 1e-15L * (s.reach + std::fabs(line.log_scale));
        for (Real e : line.size) line.risky = line.risky || !(e < limits.high);
    };
    for (int64_t t = 0; t < n; ++t) {
        const std::size_t at = std::size_t(row * n + t);
        const Real* decay = x.log_decay.data() + int64_t(at) * p.decay_width;
        const Real* values = x.v.data() + int64_t(at) * p.width;
        for (int64_t f = 0; f < p.decay_width; ++f)
            s.decay_total[std::size_t(f)] += x.restart[at]    ? -INF
                                             : x.hidden_k[at] ? 0
                                                              : double(decay[f]);
        if (x.restart[at]) {
            std::fill(s.U.begin(), s.U.end(), 0);
            std::fill(s.size.begin(), s.size.end(), 0);
            std::fill(s.bad.begin(), s.bad.end(), 0);
            s.log_scale = NONE;
            s.risky = false;
        } else if (p.decay_width && !x.hidden_k[at]) {
            Real slowest = 0;
            if (scaled) slowest = *std::max_element(decay, decay + p.decay_width);
            if (scaled) s.log_scale += slowest;
            // Of a decay that leaves nothing no error is left either.
            s.error += 4e-16L * std::min(-*std::min_element(decay, decay + p.decay_width), Real(1000));
            for (int64_t f = 0; f < m; ++f) {
                const Real factor = std::exp(decay[p.decay_width > 1 ? f : 0] - slowest);
                mix_row(s.U.data() + f * w, factor, value.data(), 0, w);
                mix_row(s.size.data() + f * w, factor, value.data(), 0, w);
            }
        }
        if (!x.hidden_k[at]) {
            for (int64_t e = 0; e < w; ++e)
                s.bad[std::size_t(e)] |= x.bad_k[at] || (e < p.width && !std::isfinite(values[e]));
            if (!x.bad_k[at]) {
                compute_phi(c, x, x.k.data() + int64_t(at) * d, c.which_key(row), x.k_positions[at],
                            x.k_scale[at], phi);
                s.risky = s.risky || phi.risky;
                s.reach = std::max(s.reach, std::fabs(phi.log_scale));
                Real old = 1, own = 1;
                if (scaled) {
                    const Real top = std::max(s.log_scale, phi.log_scale);
                    old = s.log_scale > NONE ? std::exp(s.log_scale - top) : 0;
                    own = std::exp(phi.log_scale - top);
                    s.log_scale = top;
                }
                Real largest = 0, top = 0;
                for (int64_t e = 0; e < w; ++e) {
                    Real one = e < p.width ? values[e] : 1;
                    if (s.bad[std::size_t(e)]) one = 0;
                    value[std::size_t(e)] = one;
                    magnitude[std::size_t(e)] = std::fabs(one);
                    largest = std::max(largest, std::fabs(one));
                }
                s.top = std::max(s.top, largest);
                for (int64_t f = 0; f < m; ++f) {
                    const Real a = phi.value[std::size_t(f)], b = phi.size[std::size_t(f)];
                    mix_row(s.U.data() + f * w, old, value.data(), a * own, w);
                    mix_row(s.size.data() + f * w, old, magnitude.data(), b * own, w);
                    top = std::max(top, b * largest);  // before it is known how little it counts
                }
                top = std::max(top, largest_of(s.size.data(), m * w));
                s.risky = s.risky || !(top < limits.high);
            }
        }
        for (int64_t g = 0; g < p.groups && p.causal; ++g) read(g, t);
    }
    for (int64_t g = 0; g < p.groups && !p.causal; ++g)
        for (int64_t t = 0; t < p.queries; ++t) read(g, t);
    return s;
}

// A key, its place among the unhidden tokens of its segment, and where it came from: a token of the
// call, or −1 − slot of the state.
struct Key {
    const Real *k, *v;
    double position;
    int64_t rank, segment, from;
    bool bad, raw_bad;
    Phi phi;
};

std::vector<Key> keys_of(const Case& c, const Dense& x, int64_t row) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, n = p.keys, slots = p.near_slots;
    const int64_t seen = c.seen.empty() ? 0 : c.seen[std::size_t(row)];
    std::vector<Key> keys;
    for (int64_t i = 0; i < slots; ++i) {
        const int64_t at = row * slots + i;
        if (c.near_keep.get(row, i) == 0) continue;
        keys.push_back({x.near_k.data() + at * d, x.near_v.data() + at * p.width,
                        c.near_positions.get(row, i), i < p.sinks ? i : seen - (slots - i), 0, -1 - i,
                        x.bad_near_k[std::size_t(at)] != 0, x.raw_bad_near_k[std::size_t(at)] != 0, {}});
    }
    int64_t rank = seen, segment = 0;
    for (int64_t t = 0; t < n; ++t) {
        const std::size_t at = std::size_t(row * n + t);
        if (x.restart[at]) rank = 0, ++segment;
        if (x.hidden_k[at]) continue;
        keys.push_back({x.k.data() + int64_t(at) * d, x.v.data() + int64_t(at) * p.width,
                        x.k_positions[at], rank++, segment, t, x.bad_k[at] != 0,
                        x.raw_bad_k[at] != 0, {}});
    }
    for (Key& key : keys)
        if (p.features.count && !key.bad)
            compute_phi(c, x, key.k, c.which_key(row), key.position, 0, key.phi);
    return keys;
}

// What is left after the call: the tokens that are near, and sums of all others of the last segment.
void tell_state(const Case& c, const std::vector<Key>& keys, int64_t segment, Told& s) {
    const Problem& p = c.p;
    const int64_t m = p.features.count, w = p.width + 1, room = std::max<int64_t>(p.window - 1, 0);
    const bool scaled = !c.log_scale.empty();
    const Limits limits = limits_of(c.single());
    if (segment > 0) {
        std::fill(s.U.begin(), s.U.end(), 0);
        std::fill(s.size.begin(), s.size.end(), 0);
        std::fill(s.bad.begin(), s.bad.end(), 0);
        std::fill(s.decay_total.begin(), s.decay_total.end(), -INF);
        s.log_scale = NONE;
    }
    const int64_t slots = p.sinks + std::min(room, p.near_slots - p.sinks + p.keys);
    s.near_after.assign(std::size_t(slots), kt::NO_TOKEN);
    Real top = s.log_scale;
    for (const Key& key : keys) {
        if (key.segment != segment) continue;
        if (s.seen - key.rank <= room) {
            s.near_after[std::size_t(slots - (s.seen - key.rank))] = key.from;
        } else if (key.rank < p.sinks) {
            s.near_after[std::size_t(key.rank)] = key.from;
        } else if (m > 0 && !key.bad) {
            top = std::max(top, key.phi.log_scale);
        }
    }
    auto share = [&](Real log_scale) { return log_scale == NONE ? 0 : std::exp(log_scale - top); };
    const Real old = scaled ? share(s.log_scale) : 1;
    for (std::size_t i = 0; i < s.U.size(); ++i) s.U[i] *= old, s.size[i] *= old;
    for (const Key& key : keys) {
        if (key.segment != segment || s.seen - key.rank <= room || key.rank < p.sinks || m == 0) continue;
        for (int64_t e = 0; e < w; ++e)
            s.bad[std::size_t(e)] |= key.bad || (e < p.width && !std::isfinite(key.v[e]));
        if (key.bad) continue;
        s.risky = s.risky || key.phi.risky;
        s.reach = std::max(s.reach, std::fabs(key.phi.log_scale));
        const Real own = scaled ? share(key.phi.log_scale) : 1;
        for (int64_t e = 0; e < w; ++e) {
            const Real value = e == p.width ? 1 : std::isfinite(key.v[e]) ? key.v[e] : 0;
            s.top = std::max(s.top, std::fabs(value));
            for (int64_t f = 0; f < m; ++f) {
                const std::size_t at = std::size_t(f * w + e), feature = std::size_t(f);
                s.U[at] += key.phi.value[feature] * own * value;
                s.size[at] += key.phi.size[feature] * own * std::fabs(value);
                s.risky = s.risky || !(key.phi.size[feature] * std::fabs(value) < limits.high) ||
                          !(s.size[at] < limits.high);
            }
        }
    }
    if (scaled) s.log_scale = top;
}

// One query: the keys near by by their exact weight e^{s·q·k}, all others by the map's, times e^{gain}
// and with `relative` the largest near one.
Line look(const Case& c, const Dense& x, const std::vector<Key>& keys, const Told& before, int64_t row,
          std::size_t at, int64_t gain_of, int64_t t, int64_t rank, int64_t segment) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, m = p.features.count, w = p.width + 1;
    const bool scaled = !c.log_scale.empty(), from_state = m > 0 && segment == 0;
    const Limits limits = limits_of(c.single());
    Line line;
    line.sum.assign(std::size_t(w), 0);
    line.size.assign(std::size_t(w), 0);
    line.bad.assign(std::size_t(w), 0);
    if (from_state) line.bad = before.bad;
    line.whole = x.raw_bad_q[at] || (m > 0 && x.bad_q[at]);
    struct Weight {
        const Key* key;
        bool near;
        Real exponent, stretch;  // of a near key, and how much larger its error is
    };
    std::vector<Weight> seen;
    const Real* q = x.q.data() + int64_t(at) * d;
    const Real root = Real(p.features.root_scale), scale = Real(p.near_scale) / (root * root);
    Real top = NONE, next = NONE, top_stretch = 0, widest = 0;
    for (const Key& key : keys) {
        if (key.segment != segment || (p.causal && key.from > t)) continue;
        const bool near = key.rank < p.sinks || std::llabs(rank - key.rank) < p.window;
        if (!near && m == 0) continue;
        for (int64_t e = 0; e < w; ++e)
            line.bad[std::size_t(e)] |= (near ? key.raw_bad : key.bad) ||
                                        (e < p.width && !std::isfinite(key.v[e]));
        if (line.whole || line.bad.back()) continue;
        Real exponent = 0, stretch = 0;
        for (int64_t i = 0; i < d && near; ++i) {
            exponent += scale * q[i] * key.k[i];
            stretch += std::fabs(scale * q[i] * key.k[i]);
        }
        line.risky = line.risky || !(stretch * limits.error < 0.01L) || (!near && key.phi.risky);
        if (near) {
            next = std::max(next, std::min(top, exponent));
            top_stretch = exponent > top ? stretch : top_stretch;
            top = std::max(top, exponent);
        } else {
            widest = std::max(widest, std::fabs(key.phi.log_scale));
        }
        seen.push_back({&key, near, exponent, stretch});
    }
    if (line.whole || line.bad.back()) return line;
    line.tied = p.relative && top > NONE && top - next < 1e-3L;
    Phi phi;
    Real unit = x.gain.empty() ? 0 : x.gain[std::size_t(gain_of)];
    if (p.relative && top > NONE) unit += top;
    if (m > 0) compute_phi(c, x, q, c.which(row), x.q_positions[at], 0, phi);
    unit += phi.log_scale;
    line.risky = line.risky || phi.risky || (from_state && before.risky);
    const Real of_unit = p.relative ? 1 + top_stretch : 1;  // its error
    Real level = top;
    const Real state_log = !scaled ? 0 : before.log_scale > NONE ? before.log_scale : 0;
    const bool any = std::any_of(before.U.begin(), before.U.end(), [](Real u) { return u != 0; });
    if (from_state && any) level = std::max(level, unit + state_log);
    for (const Weight& one : seen)
        if (!one.near) level = std::max(level, unit + one.key->phi.log_scale);
    line.log_scale = level > NONE ? level : 0;
    line.error = limits.error + 1e-15L * (widest + std::fabs(state_log) + std::fabs(unit) +
                                          std::fabs(line.log_scale));
    line.top = before.top;
    if (from_state && any) {
        const Real factor = std::exp(unit + state_log - line.log_scale);
        for (int64_t f = 0; f < m; ++f) {
            add_row(line.sum.data(), before.U.data() + f * w, phi.value[std::size_t(f)] * factor, w);
            add_row(line.size.data(), before.size.data() + f * w,
                    phi.size[std::size_t(f)] * factor * of_unit, w);
        }
    }
    for (const Weight& one : seen) {
        Real weight = 0, size = 0;
        if (one.near) {
            weight = std::exp(one.exponent - line.log_scale);
            size = weight * (1 + one.stretch);
        } else {
            const Phi& key = one.key->phi;
            const Real factor = std::exp(unit + key.log_scale - line.log_scale);
            for (int64_t f = 0; f < m; ++f) {
                weight += phi.value[std::size_t(f)] * key.value[std::size_t(f)] * factor;
                size += phi.size[std::size_t(f)] * key.size[std::size_t(f)] * factor * of_unit;
                const Real product = phi.size[std::size_t(f)] * key.size[std::size_t(f)];
                line.risky = line.risky || !(product < limits.high);
            }
        }
        for (int64_t e = 0; e < w; ++e) {
            const Real value = e == p.width ? 1 : one.key->v[e];
            if (line.bad[std::size_t(e)]) continue;
            line.top = std::max(line.top, std::fabs(value));
            for (int64_t f = 0; f < m && !one.near; ++f) {  // before it is known how little it counts
                const Real product = one.key->phi.size[std::size_t(f)] * std::fabs(value);
                line.risky = line.risky || !(product < limits.high);
            }
            line.sum[std::size_t(e)] += weight * value;
            line.size[std::size_t(e)] += size * std::fabs(value);
        }
    }
    for (Real e : line.size) line.risky = line.risky || !(e < limits.high);
    return line;
}

Told tell_near(const Case& c, const Dense& x, int64_t row) {
    const Problem& p = c.p;
    const int64_t n = p.keys;
    Told s = first_state(c, row);
    const std::vector<Key> keys = keys_of(c, x, row);
    s.lines.resize(std::size_t(p.groups * p.queries));
    int64_t rank = c.seen.empty() ? 0 : c.seen[std::size_t(row)], segment = 0;
    for (int64_t t = 0; t < std::max(n, p.queries); ++t) {
        const std::size_t key_at = std::size_t(row * n + t);
        if (t < n && x.restart[key_at]) rank = 0, ++segment;
        for (int64_t g = 0; g < p.groups && t < p.queries; ++g) {
            const int64_t q = row * p.groups + g;
            const std::size_t at = std::size_t(q * p.queries + t);
            Line& line = s.lines[std::size_t(g * p.queries + t)];
            if (x.hidden_q[at])
                line.hidden = true;
            else
                line = look(c, x, keys, s, row, at, q % (p.heads * p.groups), t, rank, segment);
        }
        if (t < n && !x.hidden_k[key_at]) ++rank;
    }
    s.seen = rank;
    tell_state(c, keys, segment, s);
    return s;
}

}  // namespace

Told tell(const Case& c, const Dense& x, int64_t row) {
    return c.near() ? tell_near(c, x, row) : tell_far(c, x, row);
}

}  // namespace fuzz
