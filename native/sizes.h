// How large the parts of a call are, and how many tokens a block has.
#pragma once

#include <limits>

#include "tokens.h"

namespace kt {
namespace KT_ISA {

constexpr double INF = std::numeric_limits<double>::infinity();
template <class T> constexpr double RANGE = sizeof(T) == 4 ? 30 : 200;  // of exponents in a block
template <class T> constexpr double FAINT = sizeof(T) == 4 ? 87 : 708;  // e⁻ˣ from here on is subnormal
constexpr int64_t SPAN = 64;           // tokens of a block of full attention
constexpr int64_t BLOCK = KT_VECTOR_BYTES == 64 ? 32 : 48;  // of causal: whole tiles, little above the diagonal
constexpr int64_t LONG_BLOCK = 192;    // where a state does not stay in the cache
constexpr int64_t NEAR_BLOCK = 192;    // queries of a block, of all heads, where there is no far part
constexpr int64_t PANEL = 16384;       // numbers in a panel of features of the quadratic map

// Numbers have three types. Tokens are stored in the caller's (core.h: Type), and the state in float64.
// Arithmetic is in T, which is float32 or float64. Sums over all tokens are accumulated in Wide<T>.
template <class T> using Wide = double;

// Whether φ comes with a log-scale of each token; given features may have one too.
inline bool has_log_scale(Map map) {
    return map == Map::exp || map == Map::hedgehog_exp || map == Map::favor_positive ||
           map == Map::favor_hyperbolic || map == Map::favor_trig;
}

template <class T> struct Sizes {
    const Problem& p;
    int64_t d, m, M;   // of a query or key, of φ, of a value
    int64_t Mp;        // M in whole tiles
    int64_t C, Cp;     // tokens of a block, and in whole tiles
    int64_t panel;     // features that are formed at once
    int64_t w;         // log-decays of a token, at least 1
    bool has_scale, decays, by_feature, quadratic;
    bool by_pair;      // decays are a factor of every pair of tokens (scaling.h)
    bool pairs;        // sums are two floats (sums.h)

    explicit Sizes(const Problem& problem) : p(problem) {
        d = p.features.inputs;
        m = p.features.count;
        M = p.width;
        Mp = round_up(M, TILE_COLUMNS<T>);
        quadratic = p.features.map == Map::quadratic;
        C = p.chunk > 0 ? std::min(p.chunk, SPAN) : quadratic || !p.causal ? SPAN : BLOCK;
        if (p.chunk == 0 && m == 0) C = std::max(NEAR_BLOCK / p.groups / BLOCK, int64_t(1)) * BLOCK;
        if (p.chunk == 0 && quadratic && m * Mp * 12 > (256 << 10)) C = LONG_BLOCK;  // beyond L2
        Cp = round_up(C, TILE_COLUMNS<T>);
        panel = quadratic ? std::min(m, std::max<int64_t>(PANEL / Cp, 6) / 6 * 6) : m;
        w = std::max<int64_t>(1, p.decay_width);
        // A call without a state has no place for its log-scale, but its tokens may have one.
        has_scale = p.log_scale || (!p.sums && m > 0 && (has_log_scale(p.features.map) || p.k_scale.data));
        decays = p.decay_width > 0;
        by_feature = p.decay_width > 1;
        by_pair = p.decay_width == 1 && p.causal && !p.normalize && !has_scale && !quadratic;
        pairs = sizeof(T) == 4 && !has_scale && !decays && !p.restart.data;
    }

    int64_t tile_columns(int64_t n) const { return round_up(n, TILE_COLUMNS<T>); }
    int64_t in_lanes(int64_t rows) const { return rows * Cp + TILE_COLUMNS<T>; }  // the last tile may read past them
};

}  // namespace KT_ISA
}  // namespace kt
