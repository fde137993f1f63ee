// One more token for every row: U ← a ⊙ U + φ(k)vᵀ and o = φ(q)ᵀU / φ(q)ᵀZ, in float64. The cost
// is that of passing over the state once. Rows are taken several at a time, in lanes, for φ.
//
// Features with a log-scale are float64 too, whatever q and k are: sums in float64 keep weights of
// 1e-300 beside the largest, but a feature that float32 has made 0 is lost to all of them.
//
// With a window the token goes into a ring, which the query sees exactly; the one that leaves the
// window with it is added to U after the query has been answered.
#pragma once

#include "join.h"
#include "ring.h"

namespace kt {
namespace KT_ISA {

template <class T> class Steps {
  public:
    explicit Steps(const Problem& p)
        : p(p),
          together(p.features.weight_heads > 1 || p.features.key_weight_heads > 1 ? 1 : TILE_VECS * LANES<T>),
          C(TILE_VECS * LANES<T>), W(p.width + 1), stride(p.sums_stride ? p.sums_stride : W),
          late(p.window > 0), map(p.features, C, arena), ring(p, arena) {
        const Features& f = p.features;
        x = arena.take<T>((f.inputs + 1) * C);
        rows = arena.take<T>(C * f.inputs);
        phi_k = arena.take<T>(f.count * C);
        phi_q = arena.take<T>(p.groups * f.count * C);
        ls_k = arena.take<double>(C);
        ls_q = arena.take<double>(p.groups * C);
        where_k = arena.take<double>(C);
        where_q = arena.take<double>(C);
        value = arena.take<double>(stride);
        mixed = arena.take<double>(p.groups * stride);
        std::fill(value, value + stride, 0.0);
        keep = arena.take<double>(f.count);
        k = arena.take<double>(f.count);
        q = arena.take<double>(f.count);
        narrow = arena.take<T>(p.width);
        for (int64_t j = 0; j < C; ++j) {
            where_k[j] = where_q[j] = double(p.start);
            if (f.map == Map::quadratic) x[j] = 1;
        }
        bad_k.resize(std::size_t(C));
        bad_q.resize(std::size_t(p.groups * C));
        added.resize(std::size_t(W));
        rows_of_q.resize(std::size_t(p.groups));
        leaving.resize(std::size_t(C));
    }

    // `known`: what the tokens near by of all rows give to the queries, by span, if somebody has taken
    // these steps that far already.
    void run(int64_t low, int64_t high, const typename Ring<T>::Sums* known = nullptr) {
        for (int64_t r = low; r < high; r += together) {
            const int64_t n = std::min(together, high - r);
            const Features& f = p.features;
            for (int64_t j = 0; j < n; ++j) {
                leaving[std::size_t(j)] = {&p.k, &p.v, p.type, 0};
                if (ring && !known) ring.enter(r + j);
                if (ring) leaving[std::size_t(j)] = ring.leaving(r + j, where_k[j]);
                read_key(leaving[std::size_t(j)], r + j, rows + j * f.inputs);
            }
            rows_of_k = features(n, f.key_weight(r % p.heads, p.heads), where_k, phi_k, ls_k, bad_k.data());
            for (int64_t g = 0; g < p.groups; ++g) {
                for (int64_t j = 0; j < n; ++j)
                    read_token<T>(p.q, p.type, (r + j) * p.groups + g, 0, f.inputs, T(f.root_scale),
                                  rows + j * f.inputs);
                const int64_t q = r * p.groups + g, heads = p.heads * p.groups;
                rows_of_q[std::size_t(g)] =
                    features(n, f.query_weight(q % heads, heads), where_q, phi_q + g * f.count * C,
                             ls_q + g * C, bad_q.data() + g * C);
            }
            for (int64_t j = 0; j < n; ++j) token(r + j, j, known);
        }
    }

  private:
    void read_key(const Left& left, int64_t r, T* to) {
        if (left.none())
            std::fill(to, to + p.features.inputs, T(1));
        else
            read_token<T>(*left.k, left.type, r, left.slot, p.features.inputs, T(p.features.root_scale), to);
    }

    // φ of the n tokens in `rows`, by a matrix of weights: whether in rows, or in lanes.
    bool features(int64_t n, int64_t which, const double* where, T* phi, double* log_scale, uint8_t* bad) {
        const int64_t d = p.features.inputs;
        if (in_rows(n, phi)) {
            std::fill(bad, bad + n, 0);
            return true;
        }
        for (int64_t j = 0; j < n; ++j) {
            T* one = rows + j * d;
            bad[j] = !all_finite(one, d);
            if (bad[j]) std::fill(one, one + d, T(1));
        }
        if (p.features.count == 0) return false;
        T* lanes = x + (map.quadratic() ? C : 0);
        to_lanes(rows, d, n, C, d, lanes, C);
        map.phi(map.quadratic() ? x : lanes, C, which, where, phi, log_scale);
        return false;
    }

    bool in_rows(int64_t n, T* phi) const {
        const int64_t d = p.features.inputs;
        if (d % LANES<T> || p.features.count != d) return false;
        switch (p.features.map) {
            case Map::given: return map_rows<T, IdentityMap<T>>(rows, d, n, d, phi);
            case Map::elu: return map_rows<T, EluMap<T, true>>(rows, d, n, d, phi);
            case Map::relu: return map_rows<T, ReluMap<T>>(rows, d, n, d, phi);
            case Map::relu2: return map_rows<T, Relu2Map<T>>(rows, d, n, d, phi);
            case Map::square: return map_rows<T, SquareMap<T>>(rows, d, n, d, phi);
            default: return false;
        }
    }

    // φ of the token in a lane, times `factor`, in float64.
    void widen(const T* phi, bool as_rows, int64_t lane, double factor, double* to) const {
        const int64_t m = p.features.count;
        for (int64_t f = 0; f < m && as_rows; ++f) to[f] = double(phi[lane * m + f]) * factor;
        for (int64_t f = 0; f < m && !as_rows; ++f) to[f] = double(phi[f * C + lane]) * factor;
    }

    void token(int64_t r, int64_t lane, const typename Ring<T>::Sums* known) {
        const Left& left = leaving[std::size_t(lane)];
        uint8_t* bad = p.bad + r * W;
        if (!left.none()) read_value(left, r, lane);
        if (!left.none() && !late) note_bad(bad);
        if (ring) ring.attend(r, known);
        if (late) reference = p.log_scale ? p.log_scale[r] : 0;
        double all = 1;
        if (!left.none()) all = factors(r, lane);
        double* U = p.sums + r * p.features.count * stride;
        // Where a token is added after the query has been answered, the last one to read adds it.
        for (int64_t i = 0; i < p.groups; ++i) {
            const int64_t g = late ? p.groups - 1 - i : i;
            widen(phi_q + g * p.features.count * C, rows_of_q[std::size_t(g)], lane, 1, q);
            if (g > 0 || left.none())
                pass<0>(U, mixed + g * stride);
            else if (p.decay_width == 0 && all == 1)
                late ? pass<1, true>(U, mixed) : pass<1>(U, mixed);
            else
                late ? pass<2, true>(U, mixed) : pass<2>(U, mixed);
        }
        if (!late) reference = p.log_scale ? p.log_scale[r] : 0;
        for (int64_t g = 0; g < p.groups; ++g) write_out(r, g, lane, bad);
        if (!left.none() && late) note_bad(bad);
    }

    // The value of the token that is added, without NaN and inf, and which columns these spoil.
    void read_value(const Left& left, int64_t r, int64_t lane) {
        const uint8_t whole = bad_k[std::size_t(lane)];
        read_token<T>(*left.v, left.type, r, left.slot, p.width, T(1), narrow);
        any_added = whole || !all_finite(narrow, p.width);
        for (int64_t c = 0; c < p.width && any_added; ++c) {
            added[std::size_t(c)] = !std::isfinite(narrow[c]) || whole;
            if (!std::isfinite(narrow[c])) narrow[c] = 0;
        }
        added[std::size_t(p.width)] = whole;
        for (int64_t c = 0; c < p.width; ++c) value[c] = double(narrow[c]);
        value[p.width] = 1;
    }

    void note_bad(uint8_t* bad) const {
        for (int64_t c = 0; c < W && any_added; ++c) bad[c] |= added[std::size_t(c)];
    }

    // What the token that is added counts (k), and what the sums are multiplied by (keep): that of all
    // of them where they have one.
    double factors(int64_t r, int64_t lane) {
        const int64_t m = p.features.count, w = p.decay_width;
        double slowest = 0, add = 1, shift = 0;
        if (w > 0) {
            slowest = -INF;
            for (int64_t f = 0; f < w; ++f) {
                slowest = std::max(slowest, decay(r, f));
                p.decay_total[r * w + f] += decay(r, f);
            }
        }
        if (p.log_scale) {
            const double old = p.log_scale[r], now = std::max(old + slowest, ls_k[lane]);
            add = std::exp(ls_k[lane] - now);
            shift = old - now;
            p.log_scale[r] = now;
        }
        const double all = w == 0 && shift == 0 ? 1 : std::exp(shift + (w ? decay(r, 0) : 0));
        for (int64_t f = 0; f < m && (w > 0 || all != 1); ++f)
            keep[f] = w > 1 ? std::exp(shift + decay(r, f)) : all;
        widen(phi_k, rows_of_k, lane, add, k);
        return all;
    }

    double decay(int64_t r, int64_t f) const {
        const Type type = p.type == Type::f64 ? Type::f64 : Type::f32;
        return double(read<T>(p.log_decay.at(r, 0) + f * p.log_decay.element, type));
    }

    // U ← keep·U + k·value and out = qᵀU, some columns at a time: as many as there are registers for
    // their sums and values. `how`: 0 only reads U, 1 keeps all of it, 2 multiplies. `first`: out is of
    // U before.
    template <int how, bool first = false> void pass(double* U, double* out) const {
        constexpr int64_t L = LANES<double>, N = 4;
        constexpr int64_t MOST = KT_VECTOR_BYTES == 64 ? 9 : N;  // 64 columns and that of Z, at once
        const int64_t end = std::min(stride, round_up(W, L));
        int64_t c = 0;
        for (; c + MOST * L <= end; c += MOST * L) columns_at<how, first, MOST>(U + c, value + c, out + c);
        for (; c + N * L <= end; c += N * L) columns_at<how, first, N>(U + c, value + c, out + c);
        for (; c + L <= end; c += L) columns_at<how, first, 1>(U + c, value + c, out + c);
        for (; c < W; ++c) {
            out[c] = 0;
            for (int64_t f = 0; f < p.features.count; ++f) {
                double& u = U[f * stride + c];
                if (first) out[c] += u * q[f];
                if (how == 2) u = keep[f] == 0 ? 0 : u * keep[f];
                if (how) u = u + value[c] * k[f];
                if (!first) out[c] += u * q[f];
            }
        }
    }

    template <int how, bool first, int N>
    KT_INLINE void columns_at(double* __restrict U, const double* add, double* out) const {
        constexpr int64_t L = LANES<double>, AHEAD = 8;  // rows that are fetched before they are needed
        const int64_t m = p.features.count, S = stride;
        Vec<double> total[N] = {}, v[N];
#pragma GCC unroll 9
        for (int i = 0; i < N; ++i) v[i] = load(add + i * L);
#pragma GCC unroll 2
        for (int64_t f = 0; f < m; ++f, U += S) {
            const Vec<double> ks = splat(k[f]), qs = splat(q[f]), keeps = splat(how == 2 ? keep[f] : 1.0);
            const bool gone = how == 2 && keep[f] == 0;  // whatever it was, inf too
#pragma GCC unroll 9
            for (int i = 0; i < N; ++i) {
                if (i * L % 8 == 0) __builtin_prefetch(U + AHEAD * S + i * L, 1);
                Vec<double> u = load(U + i * L);
                if (first) total[i] += u * qs;
                if (how == 2) u = gone ? Vec<double>{} : u * keeps;
                if (how) store(U + i * L, u = u + v[i] * ks);
                if (!first) total[i] += u * qs;
            }
        }
#pragma GCC unroll 9
        for (int i = 0; i < N; ++i) store(out + i * L, total[i]);
    }

    // The logarithm of what the sums of a query are multiplied by.
    double scale(int64_t g, int64_t lane) const {
        return p.log_scale ? ls_q[g * C + lane] + (reference > -INF ? reference : 0) : 0;
    }

    // Adds the sums over near tokens to those over far ones; returns the logarithm of their unit.
    double add_near(int64_t at, int64_t g, int64_t lane, double* sums) const {
        const double top = ring.sums.top[g], gain = p.gain ? p.gain[at % (p.heads * p.groups)] : 0;
        double size = std::fabs(sums[p.width]);
        for (int64_t c = 0; c < p.width && sums[p.width] == 0; ++c) size = std::max(size, std::fabs(sums[c]));
        const Join both = join_wide(top, far_unit(p, gain, top, scale(g, lane)), size);
        const T* close = ring.sums.mixed + g * p.width;
        for (int64_t c = 0; c < p.width; ++c)
            sums[c] = (both.far == 0 ? 0 : both.far * sums[c]) + (both.near == 0 ? 0 : both.near * double(close[c]));
        sums[p.width] = both.far * sums[p.width] + both.near * ring.sums.den[g];
        return both.level > -INF ? both.level : 0;
    }

    void write_out(int64_t r, int64_t g, int64_t lane, const uint8_t* bad) {
        const int64_t at = r * p.groups + g;
        double* sums = mixed + g * stride;
        double factor = 1;
        if (ring) {
            const double level = add_near(at, g, lane, sums);
            if (!p.normalize) factor = std::exp(level);
        } else if (!p.normalize && p.log_scale) {
            factor = std::exp(scale(g, lane));
        }
        const double total = sums[p.width];
        const uint8_t* close = ring && ring.any_bad ? ring.bad.data() : nullptr;
        const bool whole = bad_q[std::size_t(g * C + lane)];
        const bool spoilt = close || std::any_of(bad, bad + W, [](uint8_t b) { return b; });
        const bool zero = p.normalize && total == 0 && !whole && !bad[p.width] && !(close && close[p.width]);
        const bool plain = p.normalize && total != 0 && !spoilt && !whole;
        for (int64_t c = 0; c < p.width && plain; ++c) narrow[c] = T(sums[c] / total);
        for (int64_t c = 0; c < p.width && !plain; ++c) {
            double y = !p.normalize ? (factor == 0 ? 0 : sums[c] * factor)
                       : total == 0 ? p.zero_fill
                                    : sums[c] / total;
            if (whole || bad[c] || (close && close[c])) y = std::numeric_limits<double>::quiet_NaN();
            narrow[c] = T(y);
        }
        write_token(p.output, p.output_type, at, 0, p.width, narrow);
        p.zero[at] = zero;
    }

    const Problem& p;
    const int64_t together, C, W, stride;
    const bool late;  // a token is added to the sums after the query has been answered
    Arena arena;
    Mapper<T> map;
    Ring<T> ring;
    T *x, *rows, *phi_k, *phi_q, *narrow;
    double *ls_k, *ls_q, *where_k, *where_q, *value, *mixed;
    double *keep, *k, *q;  // of every feature, for the row at hand
    double reference = 0;  // the log-scale of the sums that the queries see
    std::vector<uint8_t> bad_k, bad_q, added;
    bool any_added = false, rows_of_k = false;
    std::vector<uint8_t> rows_of_q;
    std::vector<Left> leaving;
};

}  // namespace KT_ISA
}  // namespace kt
