// Where near and far sums meet. Each kind has its own unit, given by its logarithm: the largest exponent
// of near weights, and for far ones the gain, the largest exponent if the gain is relative to it, and
// log-scales. Both are brought to one level before they are added.
#pragma once

#include <cmath>

#include "sizes.h"

namespace kt {
namespace KT_ISA {

// The logarithm of the unit of far weights; `top` is the largest exponent near by, `scale` the log-scales.
inline double far_unit(const Problem& p, double gain, double top, double scale) {
    return gain + (p.relative && top > -INF ? top : 0) + scale;
}

// What near and far sums are to be multiplied by, and the logarithm of the unit that they have then.
struct Join {
    double level, near, far;
    bool nothing() const { return level == 0 && near == 0 && far == 0; }
};

// Of sums in the type of arithmetic; −INF as a unit stands for no sums.
template <class T> Join join(double near_unit, double far_unit, double far_den) {
    if (near_unit == -INF) return {far_unit > -INF ? far_unit : 0, 0, double(far_unit > -INF)};
    if (far_unit == -INF) return {near_unit, 1, 0};
    // A far part of next to nothing must not set the scale.
    const double size = std::fabs(far_den) > 1e-30 ? 0 : std::log(std::fabs(far_den));
    const double above = far_unit + size - near_unit;
    if (above > 0) return {far_unit + size, std::exp(T(-above)), std::exp(-size)};
    return {near_unit, 1, std::exp(T(std::min(far_unit - near_unit, 80.0)))};
}

// Of sums in float64, as a decoder has them; `size` is that of the far sums, 0 if they are nothing.
inline Join join_wide(double near_unit, double far_unit, double size) {
    const double level = std::max(near_unit, size > 0 ? far_unit + std::log(size) : -INF);
    return {level, near_unit > -INF ? std::exp(near_unit - level) : 0,
            size > 0 ? std::exp(std::min(far_unit - level, 700.0)) : 0};
}

}  // namespace KT_ISA
}  // namespace kt
