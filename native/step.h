// One more token for every row: U ← a ⊙ U + φ(k)vᵀ and o = φ(q)ᵀU / φ(q)ᵀZ, in float64. The cost
// is that of passing over the state once. Rows are taken several at a time, in lanes, for φ.
//
// Features with a log-scale are float64 too, whatever q and k are: sums in float64 keep weights of
// 1e-300 beside the largest, but a feature that float32 has made 0 is lost to all of them.
#pragma once

#include "row.h"

namespace kt {
namespace KT_ISA {

template <class T> class Steps {
  public:
    explicit Steps(const Problem& p)
        : p(p), together(p.features.weight_heads > 1 ? 1 : TILE_VECS * LANES<T>),
          C(TILE_VECS * LANES<T>), W(p.width + 1), stride(p.sums_stride ? p.sums_stride : W),
          map(p.features, C, arena) {
        const Features& f = p.features;
        x = arena.take<T>((f.inputs + 1) * C);
        rows = arena.take<T>(C * f.inputs);
        phi_k = arena.take<T>(f.count * C);
        phi_q = arena.take<T>(p.groups * f.count * C);
        ls_k = arena.take<double>(C);
        ls_q = arena.take<double>(p.groups * C);
        where = arena.take<double>(C);
        value = arena.take<double>(stride);
        mixed = arena.take<double>(p.groups * stride);
        std::fill(value, value + stride, 0.0);
        keep = arena.take<double>(f.count);
        k = arena.take<double>(f.count);
        q = arena.take<double>(f.count);
        narrow = arena.take<T>(p.width);
        for (int64_t j = 0; j < C; ++j) {
            where[j] = double(p.start);
            if (f.map == Map::quadratic) x[j] = 1;
        }
        bad_k.resize(std::size_t(C));
        bad_q.resize(std::size_t(p.groups * C));
    }

    void run(int64_t low, int64_t high) {
        for (int64_t r = low; r < high; r += together) {
            const int64_t n = std::min(together, high - r);
            features(p.k, r, 1, n, p.heads, phi_k, ls_k, bad_k.data());
            for (int64_t g = 0; g < p.groups; ++g)
                features(p.q, r * p.groups + g, p.groups, n, p.heads * p.groups,
                         phi_q + g * p.features.count * C, ls_q + g * C, bad_q.data() + g * C);
            for (int64_t j = 0; j < n; ++j) token(r + j, j);
        }
    }

  private:
    // φ of rows first, first + step, …: n of them, one in each lane.
    void features(const View& view, int64_t first, int64_t step, int64_t n, int64_t heads, T* phi,
                  double* log_scale, uint8_t* bad) {
        const int64_t d = p.features.inputs;
        for (int64_t j = 0; j < n; ++j) {
            T* one = rows + j * d;
            read_token<T>(view, p.type, first + j * step, 0, d, T(p.features.root_scale), one);
            bad[j] = !all_finite(one, d);
            if (bad[j]) std::fill(one, one + d, T(1));
        }
        T* lanes = x + (map.quadratic() ? C : 0);
        to_lanes(rows, d, n, C, d, lanes, C);
        const int64_t which = first % heads * p.features.weight_heads / heads;
        map.phi(map.quadratic() ? x : lanes, C, which, where, phi, log_scale);
    }

    void token(int64_t r, int64_t lane) {
        const int64_t m = p.features.count, w = p.decay_width;
        uint8_t* bad = p.bad + r * W;
        read_token<T>(p.v, p.type, r, 0, p.width, T(1), narrow);
        uint8_t spoilt = bad_k[std::size_t(lane)];
        if (spoilt || !all_finite(narrow, p.width))
            for (int64_t c = 0; c < p.width; ++c) {
                const bool fine = std::isfinite(narrow[c]);
                bad[c] |= !fine || bad_k[std::size_t(lane)];
                if (!fine) narrow[c] = 0;
            }
        for (int64_t c = 0; c < p.width; ++c) {
            value[c] = double(narrow[c]);
            spoilt |= bad[c];
        }
        value[p.width] = 1;
        bad[p.width] |= bad_k[std::size_t(lane)];
        spoilt |= bad[p.width];

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
        for (int64_t f = 0; f < m; ++f) {
            keep[f] = all;
            if (w > 1) keep[f] = std::exp(shift + decay(r, f));
            k[f] = double(phi_k[f * C + lane]) * add;
        }
        for (int64_t g = 0; g < p.groups; ++g) {
            for (int64_t f = 0; f < m; ++f) q[f] = double(phi_q[(g * m + f) * C + lane]);
            double* U = p.sums + r * m * stride;
            if (g > 0)
                pass<0>(U, mixed + g * stride);
            else if (w == 0 && all == 1)
                pass<1>(U, mixed);
            else
                pass<2>(U, mixed);
        }
        for (int64_t g = 0; g < p.groups; ++g) write_out(r, g, lane, bad, spoilt);
    }

    double decay(int64_t r, int64_t f) const {
        const Type type = p.type == Type::f64 ? Type::f64 : Type::f32;
        return double(read<T>(p.log_decay.at(r, 0) + f * p.log_decay.element, type));
    }

    // U ← keep·U + k·value and out = qᵀU, some rows of U at a time, so that `value` and `out` are read
    // less often. `how`: 0 only reads U, 1 keeps all of it, 2 multiplies.
    template <int how> void pass(double* U, double* out) const {
        constexpr int N = how == 1 ? 4 : 2;
        const int64_t m = p.features.count;
        std::fill(out, out + stride, 0.0);
        int64_t f = 0;
        for (; f + N <= m; f += N) rows_at<how, N>(U + f * stride, f, out);
        for (; f < m; ++f) rows_at<how, 1>(U + f * stride, f, out);
    }

    template <int how, int N>
    KT_INLINE void rows_at(double* __restrict U, int64_t f, double* __restrict out) const {
        constexpr int64_t L = LANES<double>;
        const int64_t S = stride, end = std::min(S, round_up(W, L));
        const double* __restrict add = value;
        Vec<double> keeps[N], ks[N], qs[N];
        for (int i = 0; i < N; ++i) {
            keeps[i] = splat(keep[f + i]);
            ks[i] = splat(k[f + i]);
            qs[i] = splat(q[f + i]);
            if (how == 2 && keep[f + i] == 0) std::fill(U + i * S, U + i * S + W, 0.0);  // NaN too
        }
        int64_t c = 0;
        for (; c + L <= end; c += L) {
            Vec<double> total = load(out + c);
            const Vec<double> v = load(add + c);
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i) {
                if (c % 8 == 0) __builtin_prefetch(U + (N + i) * S + c, 1);
                Vec<double> u = load(U + i * S + c);
                if (how == 2) u = u * keeps[i];
                if (how) store(U + i * S + c, u = u + v * ks[i]);
                total += u * qs[i];
            }
            store(out + c, total);
        }
        for (; c < W; ++c)
            for (int i = 0; i < N; ++i) {
                double& u = U[i * S + c];
                if (how == 2) u = u * keeps[i][0];
                if (how) u = u + add[c] * ks[i][0];
                out[c] += u * qs[i][0];
            }
    }

    void write_out(int64_t r, int64_t g, int64_t lane, const uint8_t* bad, bool spoilt) {
        const int64_t at = r * p.groups + g;
        const double* sums = mixed + g * stride;
        const double total = sums[p.width];
        const bool whole = bad_q[std::size_t(g * C + lane)];
        const bool zero = p.normalize && total == 0 && !whole && !bad[p.width];
        double factor = 1;
        if (!p.normalize && p.log_scale) {
            const double ref = p.log_scale[r] == -INF ? 0 : p.log_scale[r];
            factor = std::exp(ls_q[g * C + lane] + ref);
        }
        const bool plain = p.normalize && total != 0 && !spoilt && !whole;
        for (int64_t c = 0; c < p.width && plain; ++c) narrow[c] = T(sums[c] / total);
        for (int64_t c = 0; c < p.width && !plain; ++c) {
            double y = !p.normalize ? (factor == 0 ? 0 : sums[c] * factor)
                       : total == 0 ? p.zero_fill
                                    : sums[c] / total;
            if (spoilt || whole)
                if (whole || bad[c]) y = std::numeric_limits<double>::quiet_NaN();
            narrow[c] = T(y);
        }
        write_token(p.output, p.output_type, at, 0, p.width, narrow);
        p.zero[at] = zero;
    }

    const Problem& p;
    const int64_t together, C, W, stride;
    Arena arena;
    Mapper<T> map;
    T *x, *rows, *phi_k, *phi_q, *narrow;
    double *ls_k, *ls_q, *where, *value, *mixed;
    double *keep, *k, *q;  // of every feature, for the row at hand
    std::vector<uint8_t> bad_k, bad_q;
};

}  // namespace KT_ISA
}  // namespace kt
