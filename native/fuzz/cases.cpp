#include "cases.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace fuzz {

constexpr int64_t UNBOUNDED = INT32_MAX;  // a window that no token leaves

namespace {

const char* name_of(Map map) {
    const char* names[] = {"given", "elu", "relu", "relu2", "exp", "square", "cosformer",
                           "hedgehog_softmax", "hedgehog_exp", "hedgehog_separate", "t2r", "favor_positive",
                           "favor_hyperbolic", "favor_trig", "quadratic"};
    return names[int(map)];
}

int64_t some_width(Random& random, int64_t low) {
    if (random.chance(0.4)) return random.pick<int64_t>({4, 8, 8, 16, 24, 32});
    return random.chance(0.7) ? random.between(low, 9) : random.between(low, 40);
}

// How many pairs of tokens there are, times what each takes.
int64_t pair_cost(const Problem& p) {
    const int64_t all = p.keys + p.near_slots;
    return p.rows * p.groups * p.queries * all * (p.features.inputs + p.features.count + p.width + 4);
}

// A window or sinks, in what units far weights are, and for how many tokens a state has slots.
void choose_near(Random& random, Case& c) {
    Problem& p = c.p;
    const int64_t n = p.keys;
    p.window = random.pick<int64_t>({0, 1, 2, 3, 7, 16, 63, 64, 65, n - 1, n, n + 5, UNBOUNDED});
    p.window = std::max<int64_t>(p.window, 0);
    p.sinks = random.pick<int64_t>({0, 0, 0, 1, 4});
    if (p.window == 0 && p.sinks == 0) p.window = 5;
    p.relative = random.chance(0.4);
    p.near_scale = random.pick<double>({1, 0.3, 1 / std::sqrt(double(p.features.inputs))});
    // Queries and keys are told apart by their place, unless a window sees all of them anyway.
    if (!p.causal && p.window > 0 && p.window < UNBOUNDED) p.queries = p.keys;
    if (random.chance(0.2)) return;  // no state at all
    const int64_t most = std::max<int64_t>(p.window - 1, 0);
    const int64_t room = random.chance(0.3) ? 0 : std::min(most, random.pick<int64_t>({1, 3, 20, 70}));
    p.near_slots = p.sinks + room;
    c.seen.assign(std::size_t(p.rows), 0);
}

// The tokens that a state has kept, and what it has seen. Something lies in the sums only where more
// tokens have come than the window and the sinks hold.
void fill_near(Random& random, Case& c, double size, double odd) {
    Problem& p = c.p;
    const int64_t room = p.near_slots - p.sinks, d = p.features.inputs;
    const bool full = room == std::max<int64_t>(p.window - 1, 0);
    for (int64_t& seen : c.seen)
        seen = full ? random.between(0, room + p.sinks + 3) : random.between(0, room);
    if (!p.near_slots) return;
    const Kind kind = kind_of(p.type);
    c.near_k = make_grid(random, p.rows, p.near_slots, d, kind, For::writing);
    c.near_v = make_grid(random, p.rows, p.near_slots, p.width, kind, For::writing);
    c.near_keep = make_grid(random, p.rows, p.near_slots, 1, Kind::byte, For::writing);
    c.near_positions = make_grid(random, p.rows, p.near_slots, 1, Kind::f64, For::writing);
    fill(random, c.near_k, size, odd);
    fill(random, c.near_v, 1, odd);
    set_all(c.near_positions, [&](auto...) { return double(random.between(0, 300)); });
    set_all(c.near_keep, [&](int64_t r, int64_t slot, int64_t) {
        const int64_t seen = c.seen[std::size_t(r)], left = seen - std::min(seen, room);
        const bool kept = slot < p.sinks ? slot < left : p.near_slots - slot <= seen;
        if (!kept) c.near_k.set(r, slot, 0, NOT);  // nobody may look there
        return kept;
    });
}

}  // namespace

double strange(Random& random) {
    return random.pick<double>({NOT, INF, -INF, 1e-40, -1e-310, 6e-8, 0.0, -0.0, 1e30, -1e30, 3e38,
                                1e200, -1e200, 1e4, -1e4, 100, -95, -750, 65504});
}

double any_decay(Random& random, Kind kind) {
    const bool wide = kind == Kind::f64;
    const double most = wide ? 308.25 : 38.53, edges[] = {-most, 0, 3, 17, most};
    const int64_t part = random.between(0, 3);
    const double power = edges[part] + (edges[part + 1] - edges[part]) * random.uniform();
    const double largest = wide ? std::numeric_limits<double>::max() : double(std::numeric_limits<float>::max());
    return -std::min(std::pow(10.0, power), largest);
}

void fill(Random& random, Grid& g, double size, double odd) {
    for (int64_t r = 0; r < g.rows; ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e)
                g.set(r, t, e, random.chance(odd) ? strange(random) : size * random.normal());
}

Case make_case(Random& random, int64_t number) {
    Case c;
    Problem& p = c.p;
    kt::Features& f = p.features;
    p.type = random.pick<Type>({Type::f64, Type::f64, Type::f32, Type::f32, Type::f16, Type::bf16});
    p.output_type = p.type;
    const bool half = p.type == Type::f16 || p.type == Type::bf16;
    if (half && random.chance(0.5)) p.output_type = Type::f32;
    f.map = Map(random.between(0, int64_t(Map::quadratic)));
    const bool large = number % 9973 == 71, long_blocks = number % 9973 == 5071;
    if (large) f.map = random.pick<Map>({Map::given, Map::elu, Map::exp});
    if (long_blocks) f.map = Map::quadratic;
    p.heads = random.between(1, 3);
    p.groups = random.chance(0.6) ? 1 : random.between(2, 3);
    p.rows = p.heads * random.between(1, 2);
    p.causal = random.chance(0.75);
    p.normalize = random.chance(0.7);
    p.zero_fill = random.pick<double>({0, 0, 0.5, NOT});
    const double length = random.uniform();
    p.keys = length < 0.6    ? random.between(1, 14)
             : length < 0.92 ? random.between(15, 80)
                             : random.between(81, 200);
    p.queries = p.causal ? p.keys : random.between(1, random.chance(0.7) ? 14 : 90);
    if (random.chance(0.01)) p.keys = 0;
    if (random.chance(0.01) || (p.causal && p.keys == 0)) p.queries = 0;
    if (p.causal && p.queries == 0) p.keys = 0;
    f.inputs = some_width(random, 1);
    p.width = some_width(random, 0);
    const bool near = !large && !long_blocks && random.chance(0.4);
    const bool exact = near && random.chance(0.3);  // softmax attention: a map without features
    if (exact) f.map = Map::given;
    const bool longer = near && random.chance(0.03);
    if (longer) p.keys = p.queries = random.between(200, 500);
    const bool quadratic = f.map == Map::quadratic;
    if (quadratic && (f.inputs > 11 || p.keys > 80)) f.inputs = random.between(1, 9);
    if (quadratic && p.keys < 15 && random.chance(0.06))
        f.inputs = random.between(20, 23);  // several panels
    p.start = random.chance(0.4) ? 0 : random.between(0, 300);
    p.chunk = random.chance(0.5) ? 0 : random.pick<int64_t>({1, 2, 3, 5, 8, 16, 33, 64, 100});
    f.root_scale = random.chance(0.5) ? 1 : random.pick<double>({0.35, 0.5, 0.8409, 1.5});
    c.wild = random.chance(0.35);

    // Now and then a call so large that outputs are written around the cache, or that the quadratic
    // map takes its longer blocks.
    if (large) {
        p.heads = p.rows = 16;
        p.groups = 1;
        p.keys = p.queries = 2080;
        f.inputs = 8;
        p.width = 64;
    }
    if (long_blocks) {
        p.heads = p.rows = p.groups = 1;
        p.keys = p.queries = 2100;
        f.inputs = 40;
        p.width = 32;
        p.chunk = 0;
    }
    if (large || long_blocks) {
        p.type = p.output_type = Type::f32;
        c.plain_output = true;
        c.wild = false;
    }

    const int64_t d = f.inputs;
    f.count = f.columns = d;
    f.horizon = double(random.between(1, 400));
    switch (f.map) {
        case Map::cosformer: f.count = f.columns = 2 * d; break;
        case Map::quadratic: {
            const int form = int(random.between(0, 2));
            f.c0 = form == 0 ? 0 : form == 1 ? 1 : 2.25;
            f.c1 = form == 0 ? 0 : form == 1 ? 1 : 3;
            f.c2 = form == 1 ? 0.5 : 1;
            f.count = f.columns = form == 0 ? d * (d + 1) / 2 : (d + 1) * (d + 2) / 2;
            break;
        }
        case Map::hedgehog_softmax:
        case Map::hedgehog_exp:
        case Map::hedgehog_separate:
        case Map::favor_hyperbolic:
        case Map::favor_trig:
        case Map::t2r:
        case Map::favor_positive: {
            const bool one = f.map == Map::t2r || f.map == Map::favor_positive;
            const bool identity = !favor(f.map) && !one && random.chance(0.3);
            if (!identity) f.columns = some_width(random, 1);
            f.count = one ? f.columns : 2 * f.columns;
            if (identity) break;
            if (!favor(f.map) && random.chance(0.5)) f.weight_heads = p.heads;
            // Keys have matrices of their own, or those of queries.
            if (!favor(f.map) && !one && random.chance(0.4))
                f.key_weight_heads = random.chance(0.5) ? p.heads : 1;
            const Kind kind = arithmetic(p.type);
            const int64_t size = (f.weight_heads + f.key_weight_heads) * d * f.columns;
            const double scale = random.pick<double>({0.3, 1, 2}) / std::sqrt(double(d));
            c.weight = Bytes(size * size_of(kind));
            for (int64_t i = 0; i < size; ++i)
                encode(c.weight.data() + i * size_of(kind), kind, scale * random.normal());
            if (f.map == Map::t2r && random.chance(0.6)) {
                c.bias = Bytes(f.weight_heads * f.columns * size_of(kind));
                for (int64_t i = 0; i < f.weight_heads * f.columns; ++i)
                    encode(c.bias.data() + i * size_of(kind), kind, random.normal());
            }
            break;
        }
        default: break;
    }
    if (exact) f.count = f.columns = 0;
    const int64_t m = f.count, M = p.width;
    // Long and wide at once would be slow without testing more.
    auto slow = [&] {
        if (large || long_blocks) return false;
        if (near && pair_cost(p) > (longer ? 4000000 : 500000)) return true;
        return !longer && p.rows * p.groups * (p.keys + p.queries) * m * (M + 1) > 12000;
    };
    while (slow()) {
        if (p.groups > 1)
            p.groups = 1;
        else if (p.rows > p.heads)
            p.rows = p.heads;
        else if (p.causal)
            p.keys = p.queries = p.keys / 2 + 1;
        else
            p.keys = p.keys / 2 + 1, p.queries = p.queries / 2 + 1;
        if (p.keys <= 4 && p.queries <= 4) break;
    }
    if (near) choose_near(random, c);

    const int64_t query_rows = p.rows * p.groups, n = p.keys, n_q = p.queries;
    const Kind kind = kind_of(p.type), wide = arithmetic(p.type);
    const double odd = c.wild ? random.pick<double>({0.002, 0.01, 0.05}) : 0;
    const double size = random.pick<double>({0.3, 1, 1, 1, 3});
    auto grid = [&](int64_t rows, int64_t tokens, int64_t width, Kind of) {
        return make_grid(random, rows, tokens, width, of, For::reading, large);
    };
    c.q = grid(query_rows, n_q, d, kind);
    c.k = grid(p.rows, n, d, kind);
    c.v = grid(p.rows, n, M, kind);
    fill(random, c.q, size, random.chance(0.7) ? odd : 0);
    fill(random, c.k, size, random.chance(0.7) ? odd : 0);
    fill(random, c.v, random.pick<double>({1, 1, 20}), random.chance(0.7) ? odd : 0);
    auto byte = [&] { return random.chance(0.9) ? 1.0 : double(random.between(1, 127)); };
    if (random.chance(0.4)) {
        c.mask = grid(p.rows, n, 1, Kind::byte);
        const double hide = random.pick<double>({0.05, 0.3, 0.9});
        set_all(c.mask, [&](auto...) { return random.chance(hide) ? 0 : byte(); });
    }
    if (!p.causal && random.chance(0.4)) {
        c.query_mask = grid(query_rows, n_q, 1, Kind::byte);
        set_all(c.query_mask, [&](auto...) { return random.chance(0.3) ? 0 : byte(); });
    }
    if (near) {
        fill_near(random, c, size, odd);
        const double strength = random.pick<double>({0, 1, 5, 30});
        if (random.chance(0.7)) c.gain.resize(std::size_t(p.heads * p.groups));
        for (double& gain : c.gain) gain = strength * random.normal();
    }
    if (p.causal && !near && !long_blocks && random.chance(0.4)) {
        p.decay_width = quadratic || random.chance(0.6) ? 1 : m;
        c.log_decay = grid(p.rows, n, p.decay_width, wide);
        const double strength = random.pick<double>({0.01, 0.3, 5, 60, 1000});
        const double any = random.chance(0.5) ? 0 : random.pick<double>({0.02, 0.3});
        set_all(c.log_decay, [&](auto...) {
            return random.chance(any) ? any_decay(random, wide) : random.chance(0.1) ? 0 : -strength * random.uniform();
        });
    }
    if (p.causal && !long_blocks && random.chance(0.25)) {
        p.decay_width = std::max<int64_t>(p.decay_width, 1);  // a restart is a decay of −inf
        c.restart = grid(p.rows, n, 1, Kind::byte);
        const double often = random.pick<double>({0.03, 0.3});
        set_all(c.restart, [&](auto...) { return random.chance(often) ? byte() : 0; });
    }
    if (f.map == Map::cosformer && random.chance(0.5)) {
        auto where = [&](int64_t, int64_t t, int64_t) {
            return random.chance(0.8) ? double(t) : double(random.between(-100000, 100000));
        };
        c.q_positions = grid(query_rows, n_q, 1, Kind::f64);
        c.k_positions = grid(p.rows, n, 1, Kind::f64);
        set_all(c.q_positions, where);
        set_all(c.k_positions, where);
    }
    bool has_scale = f.map == Map::exp || f.map == Map::hedgehog_exp || favor(f.map);
    if (f.map == Map::given && !large && !near && random.chance(0.4)) {
        has_scale = true;
        const double spread = random.pick<double>({1, 20, 300});
        c.q_scale = grid(query_rows, n_q, 1, Kind::f64);
        c.k_scale = grid(p.rows, n, 1, Kind::f64);
        set_all(c.q_scale, [&](auto...) { return spread * random.normal(); });
        set_all(c.k_scale, [&](auto...) { return spread * random.normal(); });
        if (c.mask.exists() && c.k_scale.token && c.mask.token)  // as the Python side does
            for (int64_t r = 0; r < p.rows; ++r)
                for (int64_t t = 0; t < n; ++t)
                    if (c.mask.get(r, t) == 0 && p.rows == 1) c.k_scale.set(r, t, 0, -INF);
    }

    bool empty = random.chance(0.5);
    for (int64_t seen : c.seen) empty = empty || seen <= p.near_slots;
    const std::size_t rows = std::size_t(p.rows), columns = std::size_t(M + 1);
    c.sums.assign(rows * std::size_t(m) * columns, 0);
    for (std::size_t i = 0; i < c.sums.size() && !empty; ++i)
        c.sums[i] = i % columns == columns - 1 ? 0.1 + std::fabs(random.normal()) : random.normal();
    if (has_scale)
        for (std::size_t r = 0; r < rows; ++r)
            c.log_scale.push_back(empty ? -INF
                                        : random.pick<double>({0, 5, 5, 80}) * random.normal());
    c.decay_total.resize(rows * std::size_t(p.decay_width));
    for (double& x : c.decay_total) x = random.chance(0.5) ? 0 : -random.uniform();
    c.bad.assign(rows * columns, 0);
    if (c.wild && m > 0 && random.chance(0.1))
        for (std::size_t r = 0; r < rows; ++r) {
            const bool all = random.chance(0.2);
            for (std::size_t i = 0; i < columns; ++i)
                c.bad[r * columns + i] = all || (i + 1 < columns && random.chance(0.2));
        }
    c.keep_normalizer = random.chance(0.5);
    return c;
}

Problem bind(const Case& c) {
    Problem p = c.p;
    p.q = c.q.view();
    p.k = c.k.view();
    p.v = c.v.view();
    p.mask = c.mask.view();
    p.query_mask = c.query_mask.view();
    p.restart = c.restart.view();
    p.log_decay = c.log_decay.view();
    p.q_positions = c.q_positions.view();
    p.k_positions = c.k_positions.view();
    p.q_scale = c.q_scale.view();
    p.k_scale = c.k_scale.view();
    p.near_k = c.near_k.view();
    p.near_v = c.near_v.view();
    p.near_keep = c.near_keep.view();
    p.near_positions = c.near_positions.view();
    if (!c.seen.empty()) p.seen = c.seen.data();
    if (!c.gain.empty()) p.gain = c.gain.data();
    p.features.weight = c.weight.data();
    p.features.bias = c.bias.data();
    return p;
}

std::string story(const Case& c) {
    const Problem& p = c.p;
    const char* types[] = {"f32", "f64", "f16", "bf16"};
    char text[500];
    std::snprintf(text, sizeof text,
                  "%s %s→%s rows %lld heads %lld groups %lld n %lld n_q %lld d %lld m %lld M %lld "
                  "weights %lld+%lld chunk %lld start %lld%s%s%s%s%s%s decay %lld%s",
                  name_of(p.features.map), types[int(p.type)], types[int(p.output_type)],
                  (long long)p.rows, (long long)p.heads, (long long)p.groups, (long long)p.keys,
                  (long long)p.queries, (long long)p.features.inputs,
                  (long long)p.features.count, (long long)p.width,
                  (long long)p.features.weight_heads, (long long)p.features.key_weight_heads,
                  (long long)p.chunk, (long long)p.start,
                  p.causal ? " causal" : "", p.normalize ? " normalized" : "",
                  c.mask.exists() ? " mask" : "", c.restart.exists() ? " restart" : "",
                  c.log_scale.empty() ? "" : " scaled", c.wild ? " wild" : "",
                  (long long)p.decay_width, c.q_scale.exists() ? " given scales" : "");
    std::string told = text;
    if (!c.near()) return told;
    std::snprintf(text, sizeof text, " window %lld sinks %lld slots %lld%s%s%s", (long long)p.window,
                  (long long)p.sinks, (long long)p.near_slots, p.relative ? " relative" : "",
                  c.gain.empty() ? "" : " gain", c.seen.empty() ? "" : " state");
    return told + text;
}

uint64_t digest(Case& c) {
    uint64_t hash = 14695981039346656037u;
    c.each_grid([&](Grid& g) {
        for (int64_t i = 0; g.exists() && i < g.memory.size(); ++i)
            hash = (hash ^ uint8_t(g.memory.data()[i])) * 1099511628211u;
    });
    return hash;
}

}  // namespace fuzz
