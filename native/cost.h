// What a call costs, in multiply-adds of float32: for choosing how many threads it is worth, so roughly.
#pragma once

#include "operators.h"

namespace kt {

// Of one token: φ, with 8 for each feature that is more than a product.
inline double feature_cost(const Features& f) {
    const double projected = f.weight ? double(f.inputs) * double(f.columns) : 0;
    return projected + 8.0 * double(f.count);
}

// Of one query: the keys that it sees exactly, with 8 for the exponential of each.
inline double near_cost(const Problem& p) {
    if (p.window == 0 && p.sinks == 0) return 0;
    const double all = double(p.keys + p.near_slots) * (p.causal ? 0.5 : 1);
    const double band = double(p.window) * (p.causal ? 1 : 2) + double(p.sinks);
    return (band < all ? band : all) * double(p.features.inputs + p.width + 8);
}

inline double forward_cost(const Problem& p) {
    const double state = double(p.features.count) * double(p.width + 1);
    const double looks = double(p.groups) * double(p.queries);
    const double within = p.causal ? 24.0 * double(p.features.count + p.width) : 0;  // half a block
    const double row = (double(p.keys) + looks) * (state + feature_cost(p.features)) +
                       looks * (within + near_cost(p));
    return double(p.rows) * row * (p.type == Type::f64 ? 2 : 1);
}

inline double backward_cost(const Problem& p) { return 2.5 * forward_cost(p); }

// A step passes over the state, in float64, more slowly than it could compute.
inline double step_cost(const Problem& p) {
    const double state = double(p.features.count) * double(p.width + 1);
    const double looks = double(p.groups + 1);
    const double near = double(p.groups) * double(p.near_slots) * double(p.features.inputs + p.width);
    return double(p.rows) * (looks * (4 * state + feature_cost(p.features)) + near);
}

// Of the delta rule: three products with the state, and half a chunk.
inline double forward_cost(const DeltaRule& p) {
    const double state = double(p.inputs) * double(p.width);
    const double within = 48.0 * double(p.inputs + p.width);
    return double(p.rows) * double(p.tokens) * (3 * state + within) * (p.type == Type::f64 ? 2 : 1);
}

inline double backward_cost(const DeltaRule& p) { return 3 * forward_cost(p); }

inline double step_cost(const DeltaRule& p) {
    return 4 * double(p.rows) * double(p.inputs) * double(p.width) * (p.type == Type::f64 ? 2 : 1);
}

// The activation counts 16, as does the exponential of each state of a scan.
inline double forward_cost(const ShortConvolution& p) {
    const double numbers = double(p.rows) * double(p.tokens) * double(p.channels);
    return numbers * (double(p.taps) + (p.silu ? 16 : 4)) * (p.type == Type::f64 ? 2 : 1);
}

inline double backward_cost(const ShortConvolution& p) { return 3 * forward_cost(p); }

inline double forward_cost(const SelectiveScan& p) {
    const double numbers = double(p.rows) * double(p.tokens) * double(p.channels);
    return numbers * (20 * double(p.states) + 40) * (p.type == Type::f64 ? 2 : 1);
}

inline double backward_cost(const SelectiveScan& p) { return 2.5 * forward_cost(p); }

}  // namespace kt
