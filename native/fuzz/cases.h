// A case: a call with everything in it that a kernel can be given.
#pragma once

#include "memory.h"

namespace fuzz {

using kt::Features;
using kt::Map;
using kt::Problem;
using kt::Type;

struct Case {
    Problem p;  // sizes; `bind` adds the addresses
    Grid q, k, v, mask, query_mask, restart, log_decay, q_positions, k_positions, q_scale, k_scale;
    Grid near_k, near_v, near_keep, near_positions;  // tokens that the state has kept
    Bytes weight, bias;
    std::vector<double> sums, log_scale, decay_total, gain;
    std::vector<int64_t> seen;  // empty: nobody asks for the tokens that are kept
    std::vector<uint8_t> bad;
    bool keep_normalizer = false, wild = false, plain_output = false;

    // Nothing lies in the state: a call may come without it.
    bool begins_empty() const {
        auto all = [](const auto& x, auto value) { return std::count(x.begin(), x.end(), value) == int64_t(x.size()); };
        return all(sums, 0.0) && all(log_scale, -INF) && all(bad, 0);
    }
    bool near() const { return p.window > 0 || p.sinks > 0; }
    bool single() const { return p.type != Type::f64; }
    template <class F> void each_grid(F&& f) {
        for (Grid* g : {&q, &k, &v, &mask, &query_mask, &restart, &log_decay, &q_positions,
                        &k_positions, &q_scale, &k_scale, &near_k, &near_v, &near_keep,
                        &near_positions})
            f(*g);
    }
    bool hides(int64_t query_row, int64_t t) const {
        if (p.causal) return mask.exists() && mask.get(query_row / p.groups, t) == 0;
        return query_mask.exists() && query_mask.get(query_row, t) == 0;
    }
    // The matrix of a row's queries, and of its keys.
    int64_t which(int64_t row) const { return p.features.query_weight(row % p.heads, p.heads); }
    int64_t which_key(int64_t row) const { return p.features.key_weight(row % p.heads, p.heads); }
};

inline bool projected(Map map) { return map >= Map::hedgehog_softmax && map <= Map::favor_trig; }
inline bool favor(Map map) { return map >= Map::favor_positive && map <= Map::favor_trig; }

double strange(Random& random);  // a number that is hard on a kernel
// A log-decay of any size, from next to nothing to the largest number of its kind.
double any_decay(Random& random, Kind kind);
void fill(Random& random, Grid& g, double size, double odd);

// Case `number` of a seed.
Case make_case(Random& random, int64_t number);
std::string story(const Case& c);
uint64_t digest(Case& c);  // of the inputs

// The case as a kernel is given it, but for what it writes.
Problem bind(const Case& c);

}  // namespace fuzz
