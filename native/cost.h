// What a call costs, in multiply-adds of float32: for choosing how many threads it is worth, so roughly.
#pragma once

#include "core.h"

namespace kt {

// Of one token: φ, with 8 for each feature that is more than a product.
inline double feature_cost(const Features& f) {
    const double projected = f.weight ? double(f.inputs) * double(f.columns) : 0;
    return projected + 8.0 * double(f.count);
}

inline double forward_cost(const Problem& p) {
    const double state = double(p.features.count) * double(p.width + 1);
    const double looks = double(p.groups) * double(p.queries);
    const double within = p.causal ? 24.0 * double(p.features.count + p.width) : 0;  // half a block
    const double row = (double(p.keys) + looks) * (state + feature_cost(p.features)) + looks * within;
    return double(p.rows) * row * (p.type == Type::f64 ? 2 : 1);
}

inline double backward_cost(const Problem& p) { return 2.5 * forward_cost(p); }

// A step passes over the state, in float64, more slowly than it could compute.
inline double step_cost(const Problem& p) {
    const double state = double(p.features.count) * double(p.width + 1);
    const double looks = double(p.groups + 1);
    return double(p.rows) * looks * (4 * state + feature_cost(p.features));
}

}  // namespace kt
