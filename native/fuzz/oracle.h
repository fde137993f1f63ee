// The truth: a plain loop over tokens in long double, with the sizes that rounding is measured by.
#pragma once

#include "cases.h"

namespace fuzz {

using Real = long double;

constexpr Real NONE = -std::numeric_limits<Real>::infinity();

// The same numbers, densely and as arithmetic sees them.
struct Dense {
    std::vector<Real> q, k, v, log_decay, weight, bias, near_k, near_v, gain;
    std::vector<double> q_positions, k_positions, q_scale, k_scale;
    // Not finite: times the root of the scale, as φ takes tokens, and as exact weights take them.
    std::vector<uint8_t> bad_k, bad_q, bad_near_k, raw_bad_k, raw_bad_q, raw_bad_near_k;
    std::vector<uint8_t> hidden_k, hidden_q, restart;
};

Dense densely(const Case& c, bool single);

// What rounding may do, by the type of arithmetic.
struct Limits {
    Real error;        // relative to the sizes of what is added up
    Real tiny;         // absolute: subnormal numbers lose digits
    Real tiny_factor;  // the same of an output that is not normalised: e^{RANGE} times that
    Real low, high;    // normalisers below, and numbers above, are not compared
};

Limits limits_of(bool single);

// One output row of the plain loop.
struct Line {
    std::vector<Real> sum, size;     // (M + 1): Σ weight·v and Σ weight, and Σ of their sizes
    std::vector<uint8_t> bad;        // (M + 1)
    Real log_scale = 0;              // they count e^{log_scale}
    Real top = 1;                    // the largest value so far
    Real error = 0;                  // relative: of the arithmetic, and of sums of large exponents
    bool hidden = false, whole = false, risky = false;
    bool tied = false;  // two keys have nearly the largest exponent, which far weights are relative to
};

struct Told {
    std::vector<Line> lines;  // (groups, n_q)
    std::vector<Real> U, size;
    Real log_scale = NONE;
    std::vector<uint8_t> bad;
    std::vector<double> decay_total;
    std::vector<int64_t> near_after;  // as Problem's; `seen` tokens of the segment at the end
    int64_t seen = 0;
    Real top = 1, error = 0, reach = 0;  // reach: of log-scales
    bool risky = false;
};

Told tell(const Case& c, const Dense& x, int64_t row);

}  // namespace fuzz
