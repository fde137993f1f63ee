// A row of the delta rule, chunk after chunk. The state is kept in panels of as many columns as a tile
// has, (Mp / W, dr, W): a panel stays in the first cache while a chunk passes over it.
#pragma once

#include "delta_chunk.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaState {
  public:
    DeltaState(const DeltaSizes<T>& s, Arena& arena) : s(s), data(arena.take<T>(s.dr * s.Mp)), bad(std::size_t(s.Mp)) {}

    const DeltaSizes<T>& s;
    T* data;
    std::vector<uint8_t> bad;  // columns that are NaN for the caller

    T* panel(int64_t c) const { return data + c * s.dr; }

    void clear() {
        std::fill(data, data + s.dr * s.Mp, T(0));
        std::fill(bad.begin(), bad.end(), 0);
    }

    // From and to (d, M).
    void take(const T* from) {
        for (int64_t c = 0; c < s.M; c += s.W) {
            const int64_t w = std::min<int64_t>(s.W, s.M - c);
            for (int64_t i = 0; i < s.d; ++i) std::copy(from + i * s.M + c, from + i * s.M + c + w, panel(c) + i * s.W);
        }
    }

    void give(T* to) const {
        for (int64_t c = 0; c < s.M; c += s.W) {
            const int64_t w = std::min<int64_t>(s.W, s.M - c);
            for (int64_t i = 0; i < s.d; ++i) std::copy(panel(c) + i * s.W, panel(c) + i * s.W + w, to + i * s.M + c);
        }
    }

    // The same for a state of the caller, null for 0. A column that is not finite there is bad, and 0 here.
    void read(const T* from) {
        clear();
        if (!from) return;
        take(from);
        if (all_finite(data, s.dr * s.Mp)) return;
        for (int64_t c = 0; c < s.M; ++c) {
            T* column = panel(c / s.W * s.W) + c % s.W;
            for (int64_t i = 0; i < s.d; ++i) bad[std::size_t(c)] |= !std::isfinite(column[i * s.W]);
            for (int64_t i = 0; i < s.d && bad[std::size_t(c)]; ++i) column[i * s.W] = 0;
        }
    }

    void write(T* to) const {
        give(to);
        for (int64_t c = 0; c < s.M; ++c)
            for (int64_t i = 0; i < s.d && bad[std::size_t(c)]; ++i)
                to[i * s.M + c] = std::numeric_limits<T>::quiet_NaN();
    }
};

// What passes over a panel. U and z are rows of `stride` numbers from the panel's first column on.
template <class T> class DeltaPanel {
  public:
    static constexpr int64_t W = TILE_COLUMNS<T>;
    template <int R> using Rows = Tile<T, R, TILE_VECS>;

    explicit DeltaPanel(const DeltaChunk<T>& chunk) : s(chunk.s), chunk(chunk), tokens(chunk.tokens) {}

    // The solution U of columns c … c + W − 1, after state S; false if a number is not finite. `w` are the
    // rows β v, where there are erase vectors; `plain`, if not null, gets U without β.
    bool solve(const T* S, int64_t c, const T* w, T* u, int64_t stride, T* plain) const {
        Vec<T> check{};
        even_rows(chunk.rows(), [&](auto r, int64_t i) {
            constexpr int R = decltype(r)::value;
            Rows<R> z;
            from_state(z, chunk.far_e, S, i);
            if (s.erases) z.add(chunk.read_k + i * s.Cp, s.Cp, 1, w, stride, i + R);
            z.add(chunk.read_x + i * s.Cp, s.Cp, 1, u, stride, i);
            const T* own = chunk.read_x + i * s.Cp + i;
#pragma GCC unroll 6
            for (int a = 0; a < R; ++a) {
                const T beta = tokens.beta[i + a];
#pragma GCC unroll 4
                for (int j = 0; j < TILE_VECS; ++j) {
                    Vec<T> y = z.acc[a][j];
                    if (!s.erases) y = load(tokens.v + (i + a) * s.Ms + c + j * LANES<T>) - y;
                    if (plain) store(plain + (i + a) * stride + j * LANES<T>, y);
                    y *= beta;
                    check += y * T(0);
                    z.acc[a][j] = y;
#pragma GCC unroll 6
                    for (int e = a + 1; e < R; ++e) z.acc[e][j] += own[e * s.Cp + a] * y;
                }
            }
            z.store(u + i * stride, stride);
        });
        return sum<T>(check) == T(0);
    }

    // Outputs of the chunk's tokens into out, by the state before it.
    void look(const T* S, const T* w, const T* u, int64_t stride, T* out, int64_t out_stride) const {
        even_rows(chunk.rows(), [&](auto r, int64_t i) {
            constexpr int R = decltype(r)::value;
            Rows<R> o;
            from_state(o, chunk.far_q, S, i);
            if (s.erases) o.add(chunk.look_k + i * s.Cp, s.Cp, 1, w, stride, i + R);
            o.add(chunk.look_x + i * s.Cp, s.Cp, 1, u, stride, i + R);
            o.store(out + i * out_stride, out_stride);
        });
    }

    // S ← what it is after the chunk.
    void advance(T* S, const T* w, const T* u, int64_t stride) const {
        even_rows(s.dr, [&](auto r, int64_t f) {
            constexpr int R = decltype(r)::value;
            Rows<R> sum;
            sum.clear();
            sum.add(chunk.lanes_x + f * s.Cp, s.Cp, 1, u, stride, chunk.count());
            if (s.erases) sum.add(chunk.lanes_k + f * s.Cp, s.Cp, 1, w, stride, chunk.count());
            T* at = S + f * W;
            sum.each([&](int a, int j) __attribute__((always_inline)) {
                T* to = at + a * W + j * LANES<T>;
                store(to, load(to) * (s.by_feature ? chunk.keep_feature[f + a] : chunk.keep) + sum.acc[a][j]);
            });
        });
    }

  private:
    template <int R> KT_INLINE void from_state(Rows<R>& tile, const T* x, const T* S, int64_t i) const {
        tile.clear();
        tile.add(x + i * s.ds, s.ds, 1, S, W, s.d);
        if (s.by_token)
            tile.change([&](Vec<T> y, int a, int) __attribute__((always_inline)) { return y * chunk.enter[i + a]; });
    }

    const DeltaSizes<T>& s;
    const DeltaChunk<T>& chunk;
    const DeltaTokens<T>& tokens;
};

template <class T> class DeltaRow {
  public:
    explicit DeltaRow(const DeltaSizes<T>& s)
        : s(s), p(s.p), chunk(s, arena), state(s, arena), panel(chunk), u(arena.take<T>(s.rows * s.W)),
          w(arena.take<T>(s.rows * s.W)), out(arena.take<T>(s.rows * s.Ms)) {}

    void run(int64_t r, Control& control) {
        T* given = p.state ? static_cast<T*>(p.state) + r * s.d * s.M : nullptr;
        const int64_t kept = (p.tokens + KEPT_TOKENS - 1) / KEPT_TOKENS;
        state.read(given);
        int64_t next = 0;  // token after which a state is kept
        for (int64_t t = 0, n; t < p.tokens; t += n) {
            if (control.stopped()) return;
            n = s.extent(r, t);
            if (s.restarts(r, t)) state.clear();
            if (p.states && t >= next) {
                state.write(static_cast<T*>(p.states) + (r * kept + t / KEPT_TOKENS) * s.d * s.M);
                next = (t / KEPT_TOKENS + 1) * KEPT_TOKENS;
            }
            chunk.form(r, t, n, true);
            if (chunk.tokens.any) {
                const bool last = !given && t + n == p.tokens;
                for (int64_t c = 0; c < s.Mp; c += s.W) pass(c, last);
            }
            write(r, t);
        }
        if (given) state.write(given);
    }

  private:
    void pass(int64_t c, bool last) {
        T* S = state.panel(c);
        if (s.erases && !written(c)) spoil(c, w);
        if (!panel.solve(S, c, w, u, s.W, nullptr)) spoil(c, u);
        panel.look(S, w, u, s.W, out + c, s.Ms);
        if (!last) panel.advance(S, w, u, s.W);
    }

    // w = β v; false if a number is not finite.
    bool written(int64_t c) {
        Vec<T> check{};
        for (int64_t i = 0; i < chunk.rows(); ++i)
            for (int64_t j = 0; j < s.W; j += LANES<T>) {
                const Vec<T> y = load(chunk.tokens.v + i * s.Ms + c + j) * chunk.tokens.beta[i];
                check += y * T(0);
                store(w + i * s.W + j, y);
            }
        return sum<T>(check) == T(0);
    }

    // Numbers that were too large: their columns are NaN from there on.
    void spoil(int64_t c, T* y) {
        for (int64_t i = 0; i < chunk.rows(); ++i)
            for (int64_t j = 0; j < s.W; ++j)
                if (!std::isfinite(y[i * s.W + j])) {
                    int64_t& from = chunk.tokens.from[std::size_t(c + j)];
                    from = std::min(from, i);
                    y[i * s.W + j] = 0;
                }
    }

    void write(int64_t r, int64_t t) {
        DeltaTokens<T>& tokens = chunk.tokens;
        const int64_t n = chunk.count();
        bool any_bad = false;
        for (int64_t c = 0; c < s.M; ++c) {
            int64_t& from = tokens.from[std::size_t(c)];
            if (state.bad[std::size_t(c)]) from = 0;
            any_bad |= from < n;
            state.bad[std::size_t(c)] |= from < n;
        }
        for (int64_t i = 0; i < n; ++i) {
            T* o = out + i * s.Ms;
            if (tokens.hidden[std::size_t(i)]) std::fill(o, o + s.M, T(0));
            else if (tokens.bad_q[std::size_t(i)]) std::fill(o, o + s.M, std::numeric_limits<T>::quiet_NaN());
            else
                for (int64_t c = 0; c < s.M && any_bad; ++c)
                    if (i >= tokens.from[std::size_t(c)]) o[c] = std::numeric_limits<T>::quiet_NaN();
            write_numbers(p.output.at(r, t + i), p.output_type, p.output.element, s.M, o);
        }
    }

    Arena arena;
    const DeltaSizes<T>& s;
    const DeltaRule& p;
    DeltaChunk<T> chunk;
    DeltaState<T> state;
    DeltaPanel<T> panel;
    T *u, *w, *out;
};

}  // namespace KT_ISA
}  // namespace kt
