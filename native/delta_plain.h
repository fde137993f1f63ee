// The delta rule token by token: plain, and slow.
#pragma once

#include <limits>
#include <numeric>

#include "operators.h"
#include "tokens.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaPlain {
  public:
    explicit DeltaPlain(const DeltaRule& p)
        : p(p), d(p.inputs), M(p.width), S(std::size_t(d * M)), q(d), k(d), e(d), x(d), v(M), keep(d), z(M) {}

    void forward(int64_t r) {
        begin(r);
        std::vector<T> o(M);
        for (int64_t t = 0; t < p.tokens; ++t) {
            if (p.states && t % 256 == 0)
                std::copy(S.begin(), S.end(), static_cast<T*>(p.states) + (r * ((p.tokens + 255) / 256) + t / 256) * d * M);
            if (restarts(r, t)) std::fill(S.begin(), S.end(), T(0));
            std::fill(o.begin(), o.end(), T(0));
            if (!hidden(r, t)) {
                load(r, t);
                advance();
                for (int64_t i = 0; i < d; ++i)
                    for (int64_t c = 0; c < M; ++c) o[c] += q[i] * S[i * M + c];
                for (int64_t c = 0; c < M && q_bad; ++c) o[c] = NaN;
            }
            write_token(p.output, p.output_type, r, t, M, o.data());
        }
        if (p.state) std::copy(S.begin(), S.end(), static_cast<T*>(p.state) + r * d * M);
    }

    void backward(const DeltaRuleGradient& g, int64_t r) {
        begin(r);
        std::vector<std::vector<T>> before;
        for (int64_t t = 0; t < p.tokens; ++t) {
            if (restarts(r, t)) std::fill(S.begin(), S.end(), T(0));
            before.push_back(S);
            if (hidden(r, t)) continue;
            load(r, t);
            advance();
        }
        std::vector<T> G(std::size_t(d * M)), dq(d), dk(d), de(d), dx(d), dg(d), dv(M), du(M), o(M);
        T* d_state = g.d_state ? static_cast<T*>(g.d_state) + r * d * M : nullptr;
        if (d_state) std::copy(d_state, d_state + d * M, G.begin());
        for (int64_t t = p.tokens - 1; t >= 0; --t) {
            for (auto* y : {&dq, &dk, &de, &dx, &dg, &dv}) std::fill(y->begin(), y->end(), T(0));
            T db = 0;
            if (!hidden(r, t)) {
                load(r, t);
                S = before[std::size_t(t)];
                advance();
                read_token(g.d_output, p.output_type, r, t, M, T(1), o.data());
                for (int64_t i = 0; i < d; ++i)
                    for (int64_t c = 0; c < M; ++c) {
                        dq[i] += o[c] * S[i * M + c];
                        G[i * M + c] += q[i] * o[c];
                    }
                // S = D S₀ + k (β v)ᵀ − x (β z)ᵀ,  z = eᵀ D S₀
                std::fill(du.begin(), du.end(), T(0));
                for (int64_t i = 0; i < d; ++i)
                    for (int64_t c = 0; c < M; ++c) {
                        dk[i] += G[i * M + c] * beta * v[c];
                        dx[i] -= G[i * M + c] * beta * z[c];
                        dv[c] += beta * k[i] * G[i * M + c];
                        db += G[i * M + c] * (k[i] * v[c] - x[i] * z[c]);
                        du[c] -= beta * x[i] * G[i * M + c];
                    }
                const std::vector<T>& S0 = before[std::size_t(t)];
                for (int64_t i = 0; i < d; ++i)
                    for (int64_t c = 0; c < M; ++c) {
                        de[i] += du[c] * keep[i] * S0[i * M + c];
                        const T h = G[i * M + c] + e[i] * du[c];
                        dg[i] += h * keep[i] * S0[i * M + c];
                        G[i * M + c] = h * keep[i];
                    }
                finish(dq, dk, de, dx);
            }
            if (restarts(r, t)) std::fill(G.begin(), G.end(), T(0));
            put(g.d_q, p.type, r, t, dq);
            put(g.d_k, p.type, r, t, dk);
            put(g.d_v, p.type, r, t, dv);
            put(g.d_erase, p.type, r, t, dx);
            put(g.d_read, p.type, r, t, de);
            put(g.d_beta, type_of<T>, r, t, std::vector<T>{db});
            if (p.decay_width == 1) dg = {std::accumulate(dg.begin(), dg.end(), T(0))};
            put(g.d_log_decay, type_of<T>, r, t, dg);
            dg.resize(std::size_t(d));
        }
        if (d_state) std::copy(G.begin(), G.end(), d_state);
    }

  private:
    static constexpr T NaN = std::numeric_limits<T>::quiet_NaN();

    bool hidden(int64_t r, int64_t t) const { return p.mask.data && !*p.mask.at(r, t); }
    bool restarts(int64_t r, int64_t t) const { return p.restart.data && *p.restart.at(r, t); }

    void put(const View& view, Type type, int64_t r, int64_t t, const std::vector<T>& x) {
        if (view.data) write_token(view, type, r, t, int64_t(x.size()), x.data());
    }

    void begin(int64_t r) {
        std::fill(S.begin(), S.end(), T(0));
        const T* state = static_cast<const T*>(p.state);
        if (state) std::copy(state + r * d * M, state + (r + 1) * d * M, S.begin());
    }

    T length(const std::vector<T>& y) const {
        double total = 1e-6;
        for (const T a : y) total += double(a) * double(a);
        return T(1 / std::sqrt(total));
    }

    void load(int64_t r, int64_t t) {
        const int64_t r_k = r / p.groups;
        read_token(p.q, p.type, r_k, t, d, T(1), q.data());
        read_token(p.k, p.type, r_k, t, d, T(1), k.data());
        read_token(p.v, p.type, r, t, M, T(1), v.data());
        q_root = k_root = 1;
        if (p.normalize) q_root = length(q), k_root = length(k);
        for (T& y : q) y *= q_root * T(p.scale);
        for (T& y : k) y *= k_root;
        e = x = k;
        if (p.read.data) read_token(p.read, p.type, r_k, t, d, T(1), e.data());
        if (p.erase.data) read_token(p.erase, p.type, r_k, t, d, T(1), x.data());
        beta = p.beta.data ? read<T>(p.beta.at(r, t), type_of<T>) : T(1);
        T decay = 0;
        bool fine = std::isfinite(beta);
        for (int64_t i = 0; i < d; ++i) {
            if (p.decay_width > 0 && p.log_decay.data)
                decay = read<T>(p.log_decay.at(r, t) + (p.decay_width > 1 ? i : 0) * p.log_decay.element, type_of<T>);
            keep[i] = std::exp(decay);
            fine = fine && std::isfinite(decay);
        }
        fine = fine && all_finite(k.data(), d) && all_finite(e.data(), d) && all_finite(x.data(), d);
        if (!fine) std::fill(v.begin(), v.end(), NaN);
        if (!fine) k = e = x = std::vector<T>(std::size_t(d), T(0));
        if (!fine) beta = 1;
        q_bad = !all_finite(q.data(), d);
        if (q_bad) std::fill(q.begin(), q.end(), T(0));
    }

    void advance() {
        std::fill(z.begin(), z.end(), T(0));
        for (int64_t i = 0; i < d; ++i)
            for (int64_t c = 0; c < M; ++c) {
                S[i * M + c] *= keep[i];
                z[c] += e[i] * S[i * M + c];
            }
        for (int64_t i = 0; i < d; ++i)
            for (int64_t c = 0; c < M; ++c)
                S[i * M + c] = std::isfinite(v[c]) ? S[i * M + c] + k[i] * beta * v[c] - x[i] * beta * z[c] : NaN;
    }

    void finish(std::vector<T>& dq, std::vector<T>& dk, std::vector<T>& de, std::vector<T>& dx) {
        for (int64_t i = 0; i < d; ++i) {
            if (!p.read.data) dk[i] += de[i];
            if (!p.erase.data) dk[i] += dx[i];
            dq[i] *= T(p.scale);
        }
        if (!p.normalize) return;
        T qq = 0, kk = 0;
        for (int64_t i = 0; i < d; ++i) qq += dq[i] * q[i] / T(p.scale), kk += dk[i] * k[i];
        for (int64_t i = 0; i < d; ++i) {
            dq[i] = q_root * (dq[i] - q[i] / T(p.scale) * qq);
            dk[i] = k_root * (dk[i] - k[i] * kk);
        }
    }

    const DeltaRule& p;
    const int64_t d, M;
    std::vector<T> S, q, k, e, x, v, keep, z;
    T beta = 1, q_root = 1, k_root = 1;
    bool q_bad = false;
};

}  // namespace KT_ISA
}  // namespace kt
