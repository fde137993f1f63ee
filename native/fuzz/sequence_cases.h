// What the fuzzers of the short convolution and of the selective scan share.
#pragma once

#include <cmath>

#include "cases.h"
#include "memory.h"

namespace fuzz {

using Long = long double;
using Longs = std::vector<Long>;

inline Long silu(Long x) { return x / (1 + std::exp(-x)); }
inline Long silu_slope(Long x) {
    const Long s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
}

// Numbers to read, now and then NaN; or none.
inline Grid numbers(Random& random, int64_t rows, int64_t tokens, int64_t width, Kind kind, double size,
                    double poison = 0) {
    Grid g = make_grid(random, rows, tokens, width, kind, For::reading);
    fill(random, g, size, 0);
    if (poison > 0)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t t = 0; t < tokens; ++t)
                for (int64_t e = 0; e < width; ++e)
                    if (random.chance(poison)) g.set(r, t, e, NOT);
    return g;
}

inline Grid flags(Random& random, double share, int64_t rows, int64_t tokens, double yes) {
    Grid g;
    if (!random.chance(share)) return g;
    g = make_grid(random, rows, tokens, 1, Kind::byte, For::reading);
    set_all(g, [&](auto...) { return double(random.chance(yes)); });
    return g;
}

inline bool hidden(const Grid& mask, int64_t r, int64_t t) { return mask.exists() && mask.get(r, t) == 0; }
inline bool begins(const Grid& restart, int64_t r, int64_t t) { return restart.exists() && restart.get(r, t) != 0; }

// Whether a number is what it should be, `size` being what was added up to it.
inline void expect(const char* name, double got, Long right, Kind kind, Long size, std::initializer_list<int64_t> at) {
    if (std::isnan(right) && std::isnan(got)) return;
    const double half = kind == Kind::f16 ? 0x1p-10 : kind == Kind::bf16 ? 0x1p-7 : 0;
    const double precise = kind == Kind::f64 ? 1e-12 : 3e-5;
    const double allowed = half * double(std::fabs(right)) + (kind == Kind::f16 ? 0x1p-24 : 0) +
                           precise * (1 + double(size));
    if (kind == Kind::f16 && std::fabs(right) > 6e4L) return;
    if (!(std::fabs(Long(got) - right) <= allowed))
        fail("%s%s is %.9g, not %.9Lg", name, at_index(at).c_str(), got, right);
}

inline void same_grids(const Grid& one, const Grid& other, int64_t tokens, const char* why) {
    for (int64_t r = 0; r < one.rows && one.exists(); ++r)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t e = 0; e < one.width; ++e)
                if (!same(one.get(r, t, e), other.get(r, t, e)))
                    fail("%s:%s is %.17g or %.17g", why, at_index({r, t, e}).c_str(), one.get(r, t, e),
                         other.get(r, t, e));
}

}  // namespace fuzz
