#include "delta_oracle.h"

#include <cmath>

namespace fuzz {

kt::DeltaRule DeltaCase::bind() const {
    kt::DeltaRule bound = p;
    bound.q = q.view(), bound.k = k.view(), bound.v = v.view();
    bound.beta = beta.view(), bound.log_decay = log_decay.view();
    bound.erase = erase.view(), bound.read = read.view();
    bound.mask = mask.view(), bound.restart = restart.view();
    return bound;
}

DeltaLoop::DeltaLoop(const DeltaCase& c, int64_t row) : c(c), row(row), d(c.p.inputs), M(c.p.width), n(c.p.tokens) {}

DeltaLoop::Token DeltaLoop::token(int64_t t) const {
    Token x;
    const kt::DeltaRule& p = c.p;
    const int64_t kr = row / p.groups;
    x.hidden = c.mask.exists() && c.mask.get(row, t) == 0;
    auto take = [&](const Grid& g, int64_t r, int64_t width, bool& fine) {
        Longs y(std::size_t(width), 0);
        for (int64_t i = 0; i < width; ++i) {
            y[std::size_t(i)] = Long(g.get(r, t, i));
            fine = fine && std::isfinite(y[std::size_t(i)]);
        }
        return y;
    };
    auto root = [&](const Longs& y) {
        Long total = 1e-6L;
        for (Long a : y) total += a * a;
        return p.normalize ? 1 / std::sqrt(total) : Long(1);
    };
    x.q = take(c.q, kr, d, x.fine_q);
    x.k = take(c.k, kr, d, x.fine);
    x.root_q = root(x.q), x.root_k = root(x.k);
    for (Long& y : x.q) y *= x.root_q * Long(p.scale);
    for (Long& y : x.k) y *= x.root_k;
    x.e = c.read.exists() ? take(c.read, kr, d, x.fine) : x.k;
    x.x = c.erase.exists() ? take(c.erase, kr, d, x.fine) : x.k;
    if (c.beta.exists()) x.beta = Long(c.beta.get(row, t));
    x.fine = x.fine && std::isfinite(x.beta);
    for (int64_t i = 0; i < d; ++i) {
        const Long decay = p.decay_width ? Long(c.log_decay.get(row, t, p.decay_width > 1 ? i : 0)) : 0;
        x.fine = x.fine && std::isfinite(decay);
        x.keep.push_back(std::exp(decay));
    }
    for (int64_t e = 0; e < M; ++e) {
        x.v.push_back(Long(c.v.get(row, t, e)));
        x.fine_v.push_back(std::isfinite(x.v.back()));
    }
    return x;
}

DeltaTold DeltaLoop::run() {
    DeltaTold told;
    told.output.assign(std::size_t(n * M), 0);
    told.bad.assign(std::size_t(n * M), 0);
    told.spoilt.assign(std::size_t(M), 0);
    Longs S(std::size_t(d * M));
    Long largest = 0;
    for (int64_t i = 0; i < d * M; ++i) {
        S[std::size_t(i)] = Long(c.state[std::size_t(row * d * M + i)]);
        if (!std::isfinite(S[std::size_t(i)])) told.spoilt[std::size_t(i % M)] = 1;
    }
    for (int64_t i = 0; i < d * M; ++i)
        if (told.spoilt[std::size_t(i % M)]) S[std::size_t(i)] = 0;
    before.clear();
    for (int64_t t = 0; t < n; ++t) {
        if (restarts(t)) {
            std::fill(S.begin(), S.end(), 0);
            std::fill(told.spoilt.begin(), told.spoilt.end(), 0);
        }
        before.push_back(S);
        const Token x = token(t);
        if (!x.hidden && !x.fine) std::fill(told.spoilt.begin(), told.spoilt.end(), 1);
        for (int64_t e = 0; e < M && !x.hidden; ++e) {
            if (!x.fine_v[std::size_t(e)]) told.spoilt[std::size_t(e)] = 1;
            told.bad[std::size_t(t * M + e)] = told.spoilt[std::size_t(e)] || !x.fine_q;
            if (told.spoilt[std::size_t(e)]) continue;
            Long z = 0, o = 0;
            for (int64_t i = 0; i < d; ++i) {
                Long& s = S[std::size_t(i * M + e)];
                s *= x.keep[std::size_t(i)];
                z += x.e[std::size_t(i)] * s;
            }
            largest = std::max({largest, std::fabs(x.beta * z), std::fabs(x.beta * x.v[std::size_t(e)])});
            for (int64_t i = 0; i < d; ++i) {
                Long& s = S[std::size_t(i * M + e)];
                s += x.beta * (x.k[std::size_t(i)] * x.v[std::size_t(e)] - x.x[std::size_t(i)] * z);
                o += x.q[std::size_t(i)] * s;
                largest = std::max({largest, std::fabs(s), std::fabs(x.q[std::size_t(i)] * s)});
            }
            told.output[std::size_t(t * M + e)] = o;
        }
        told.size.push_back(largest);
    }
    told.state = S;
    return told;
}

DeltaGradients DeltaLoop::back(const Grid& d_output, const std::vector<double>& d_state) {
    const int64_t w = c.p.decay_width;
    DeltaGradients g;
    for (Longs* x : {&g.q, &g.k, &g.erase, &g.read}) x->assign(std::size_t(n * d), 0);
    g.v.assign(std::size_t(n * M), 0);
    g.beta.assign(std::size_t(n), 0);
    g.log_decay.assign(std::size_t(n * w), 0);
    Longs G(std::size_t(d * M));
    for (int64_t i = 0; i < d * M; ++i) G[std::size_t(i)] = Long(d_state[std::size_t(row * d * M + i)]);
    for (int64_t t = n - 1; t >= 0; --t) {
        const Token x = token(t);
        Longs dq(std::size_t(d), 0), dk(std::size_t(d), 0), de(std::size_t(d), 0), dx(std::size_t(d), 0);
        for (int64_t e = 0; e < M && !x.hidden; ++e) {
            const Longs& S0 = before[std::size_t(t)];
            auto old = [&](int64_t i) { return x.keep[std::size_t(i)] * S0[std::size_t(i * M + e)]; };
            const Long out = Long(d_output.get(row, t, e)), v = x.v[std::size_t(e)];
            Long z = 0, dz = 0, dw = 0;
            for (int64_t i = 0; i < d; ++i) z += x.e[std::size_t(i)] * old(i);
            for (int64_t i = 0; i < d; ++i) {
                const std::size_t at = std::size_t(i);
                const Long s = old(i) + x.beta * (x.k[at] * v - x.x[at] * z);
                Long& grad = G[std::size_t(i * M + e)];
                dq[at] += out * s;
                grad += out * x.q[at];
                dk[at] += grad * x.beta * v;
                dx[at] -= grad * x.beta * z;
                dw += grad * x.k[at];
                dz -= grad * x.x[at];
            }
            g.v[std::size_t(t * M + e)] = x.beta * dw;
            g.beta[std::size_t(t)] += dw * v + dz * z;
            for (int64_t i = 0; i < d; ++i) {
                const std::size_t at = std::size_t(i);
                de[at] += x.beta * dz * old(i);
                Long& grad = G[std::size_t(i * M + e)];
                grad += x.e[at] * x.beta * dz;
                if (w) g.log_decay[std::size_t(t * w + (w > 1 ? i : 0))] += grad * old(i);
                grad *= x.keep[at];
            }
        }
        if (restarts(t)) std::fill(G.begin(), G.end(), 0);
        if (x.hidden) continue;
        Long along_q = 0, along_k = 0;
        for (int64_t i = 0; i < d; ++i) {
            const std::size_t at = std::size_t(i);
            dq[at] *= Long(c.p.scale);
            if (!c.read.exists()) dk[at] += de[at];
            if (!c.erase.exists()) dk[at] += dx[at];
            along_q += dq[at] * Long(c.q.get(row / c.p.groups, t, i)) * x.root_q;
            along_k += dk[at] * x.k[at];
        }
        for (int64_t i = 0; i < d; ++i) {
            const std::size_t at = std::size_t(i), to = std::size_t(t * d + i);
            const Long y = Long(c.q.get(row / c.p.groups, t, i)) * x.root_q;
            g.q[to] = c.p.normalize ? x.root_q * (dq[at] - y * along_q) : dq[at];
            g.k[to] = c.p.normalize ? x.root_k * (dk[at] - x.k[at] * along_k) : dk[at];
            g.read[to] = de[at];
            g.erase[to] = dx[at];
        }
    }
    g.state = G;
    return g;
}

}  // namespace fuzz
