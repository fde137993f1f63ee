// The gradient of the selective scan: the states of a tile of tokens again, then their slopes backwards.
#pragma once

#include "scan.h"

namespace kt {
namespace KT_ISA {

constexpr int64_t GROUP = 4 * WIDTH;  // channels of a task of the gradient, which sums up those of B and C

// The gradient of up to GROUP channels of one row, from the last tile of tokens to the first.
template <class T> class ScanGradient {
  public:
    ScanGradient(const SelectiveScan& p, const SelectiveScanGradient& gradient) : g(gradient), s_(p) {
        const int64_t tokens = std::min(p.keep, std::max<int64_t>(p.tokens, 1)), N = p.states;
        after_ = s_.arena.template take<T>(N * GROUP);
        past_ = s_.arena.template take<T>((tokens + 1) * N * LANES<T>);
        decay_ = s_.arena.template take<T>(tokens * N * LANES<T>);
        sum_B_ = s_.arena.template take<T>(tokens * N * LANES<T>);
        sum_C_ = s_.arena.template take<T>(tokens * N * LANES<T>);
        for (T** one : {&y_, &z_, &d_, &dx_, &dt_, &dz_}) *one = s_.arena.template take<T>(tokens * WIDTH);
        d_A_.resize(std::size_t(N * GROUP));
        d_D_.resize(std::size_t(GROUP));
        d_bias_.resize(std::size_t(GROUP));
    }

    // Slopes of B and C, summed over these channels, go to d_B and d_C (n, N); those of A, D and bias of
    // this row to d_A (channels, N + 2).
    void run(int64_t row, int64_t first, T* d_B, T* d_C, double* d_A, Control& control) {
        const SelectiveScan& p = s_.p;
        const int64_t end = std::min(p.channels, first + GROUP), N = p.states;
        std::fill(d_A_.begin(), d_A_.end(), 0.0);
        std::fill(d_D_.begin(), d_D_.end(), 0.0);
        std::fill(d_bias_.begin(), d_bias_.end(), 0.0);
        for (int64_t c = first; c < end; c += WIDTH) {
            s_.begin(row, c);
            T* after = after_ + (c - first) * N;
            if (g.d_state_after.data)
                s_.read_states(g.d_state_after, row, after);
            else
                std::fill(after, after + N * WIDTH, T(0));
        }
        const int64_t tiles = (p.tokens + p.keep - 1) / p.keep;
        for (int64_t k = tiles - 1; k >= 0; --k) {
            if (control.stopped()) return;
            const int64_t t = k * p.keep, count = std::min(p.keep, p.tokens - t);
            std::fill(sum_B_, sum_B_ + count * N * LANES<T>, T(0));
            std::fill(sum_C_, sum_C_ + count * N * LANES<T>, T(0));
            for (int64_t c = first; c < end; c += WIDTH) {
                if (end - first > WIDTH || k == tiles - 1) s_.begin(row, c);
                tile(k, t, count, c - first);
            }
            sum_lanes(sum_B_, count * N, d_B + t * N);
            sum_lanes(sum_C_, count * N, d_C + t * N);
        }
        for (int64_t c = first; c < end; c += WIDTH) {
            s_.begin(row, c);
            if (g.d_state.data) s_.write_states(g.d_state, row, after_ + (c - first) * N);
            for (int64_t i = 0; i < s_.channels; ++i) {
                double* to = d_A + (c + i) * (N + 2);
                const int64_t at = c - first + i;
                for (int64_t n = 0; n < N; ++n) to[n] = d_A_[std::size_t(((c - first) * N) + n * WIDTH + i)];
                to[N] = d_D_[std::size_t(at)];
                to[N + 1] = d_bias_[std::size_t(at)];
            }
        }
    }

  private:
    const SelectiveScanGradient& g;
    Channels<T> s_;
    T* after_;            // slopes of h after a tile, (GROUP / WIDTH, N, WIDTH)
    T *past_, *decay_;    // of one register of channels: h before and after each token, e^{ΔA}, (keep, N, LANES)
    T *sum_B_, *sum_C_;   // (keep, N, LANES)
    T *y_, *z_;           // the output before the gate, and the gate, (keep, WIDTH)
    T *d_, *dx_, *dt_, *dz_;
    std::vector<double> d_A_, d_D_, d_bias_;  // (GROUP / WIDTH, N, WIDTH), (GROUP)

    void tile(int64_t k, int64_t t, int64_t count, int64_t place) {
        const SelectiveScan& p = s_.p;
        s_.read(t, count);
        s_.read_numbers(g.d_output, t, count, d_);
        if (p.z.data) s_.read_numbers(p.z, t, count, z_);
        std::fill(y_, y_ + count * WIDTH, T(0));
        std::fill(dx_, dx_ + count * WIDTH, T(0));
        std::fill(dt_, dt_ + count * WIDTH, T(0));
        by_lanes<T>(s_.channels, [&](int64_t c) {
            begin_past(k, c);
            by_way(s_, c, count, [&](auto way, int64_t n) { remember<decltype(way)>(n, c, count); });
            if (p.z.data) open_gate(c, count);
            by_way(s_, c, count, [&](auto way, int64_t n) { back<decltype(way)>(n, c, count, place); });
            finish(c, count, place);
        });
        s_.write_numbers(g.d_x, t, count, dx_);
        s_.write_numbers(g.d_dt, t, count, dt_);
        if (p.z.data) s_.write_numbers(g.d_z, t, count, dz_);
    }

    // h before the tile, as the forward pass has kept it.
    void begin_past(int64_t k, int64_t c) {
        const SelectiveScan& p = s_.p;
        const int64_t tiles = (p.tokens + p.keep - 1) / p.keep, lanes = std::min<int64_t>(LANES<T>, s_.channels - c);
        const T* from = static_cast<const T*>(p.kept) + (s_.row * tiles + k) * p.states * p.channels + s_.channel + c;
        for (int64_t n = 0; n < p.states; ++n) {
            T* to = past_ + n * LANES<T>;
            std::copy(from + n * p.channels, from + n * p.channels + lanes, to);
            std::fill(to + lanes, to + LANES<T>, T(0));
        }
    }

    // The forward pass again: h after each token, the decays, and the output where a gate needs it.
    template <class W> void remember(int64_t n, int64_t c, int64_t count) {
        constexpr int K = W::K;
        const int64_t N = s_.p.states;
        Vec<T> h[K], A[K];
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            h[k] = load(past_ + (n + k) * LANES<T>);
            A[k] = load(s_.A + (n + k) * WIDTH + c);
        }
        for (int64_t i = 0; i < count; ++i) {
            T *past = past_ + ((i + 1) * N + n) * LANES<T>, *decays = decay_ + (i * N + n) * LANES<T>;
            if (W::flags && s_.restart[std::size_t(i)])
                for (int k = 0; k < K; ++k) h[k] = Vec<T>{};
            if (W::flags && s_.hidden[std::size_t(i)]) {
                for (int k = 0; k < K; ++k) store(past + k * LANES<T>, h[k]);
                continue;
            }
            const Vec<T> step = load(s_.step + i * WIDTH + c), input = load(s_.input + i * WIDTH + c);
            const T *B = s_.B + i * N + n, *C = s_.C + i * N + n;
            Vec<T> y = load(y_ + i * WIDTH + c);
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k) {
                const Vec<T> a = decay<T, W::tame>(step * A[k]);
                h[k] = a * h[k] + input * B[k];
                y += h[k] * C[k];
                store(decays + k * LANES<T>, a);
                store(past + k * LANES<T>, h[k]);
            }
            store(y_ + i * WIDTH + c, y);
        }
    }

    // The slopes of the gate, and of the output before it.
    void open_gate(int64_t c, int64_t count) {
        const Vec<T> D = load(s_.D + c);
        for (int64_t i = c; i < count * WIDTH; i += WIDTH) {
            const Vec<T> z = load(z_ + i), d = load(d_ + i);
            Vec<T> y = load(y_ + i);
            if (s_.p.D.data) y += D * load(s_.x + i);
            store(dz_ + i, d * y * silu_slope<T>(z));
            store(d_ + i, d * silu<T>(z));
        }
    }

    // From the last token of a tile to the first. For now dx holds Σ_n (slope of h_n)·B_n, and dt the
    // slope of Δ by way of the decays.
    template <class W> void back(int64_t n, int64_t c, int64_t count, int64_t place) {
        constexpr int K = W::K;
        const int64_t N = s_.p.states;
        T* after = after_ + place * N + n * WIDTH + c;
        Vec<T> slope[K], A[K], d_A[K];
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            slope[k] = load(after + k * WIDTH);
            A[k] = load(s_.A + (n + k) * WIDTH + c);
            d_A[k] = Vec<T>{};
        }
        for (int64_t i = count - 1; i >= 0; --i) {
            if (!(W::flags && s_.hidden[std::size_t(i)])) {
                const int64_t at = i * WIDTH + c;
                const T *past = past_ + (i * N + n) * LANES<T>, *decays = decay_ + (i * N + n) * LANES<T>;
                T *sum_B = sum_B_ + (i * N + n) * LANES<T>, *sum_C = sum_C_ + (i * N + n) * LANES<T>;
                const T *B = s_.B + i * N + n, *C = s_.C + i * N + n;
                const Vec<T> d = load(d_ + at), step = load(s_.step + at), input = load(s_.input + at);
                const bool fresh = W::flags && s_.restart[std::size_t(i)];
                Vec<T> taken = load(dx_ + at), decayed = load(dt_ + at);
#pragma GCC unroll 8
                for (int k = 0; k < K; ++k) {
                    const Vec<T> h = load(past + (N + k) * LANES<T>), a = load(decays + k * LANES<T>);
                    const Vec<T> before = fresh ? Vec<T>{} : load(past + k * LANES<T>);
                    slope[k] += d * C[k];
                    store(sum_C + k * LANES<T>, load(sum_C + k * LANES<T>) + d * h);
                    store(sum_B + k * LANES<T>, load(sum_B + k * LANES<T>) + slope[k] * input);
                    taken += slope[k] * B[k];
                    slope[k] *= a;
                    const Vec<T> moved = slope[k] * before;
                    d_A[k] += moved * step;
                    decayed += moved * A[k];
                }
                store(dx_ + at, taken);
                store(dt_ + at, decayed);
            }
            if (W::flags && s_.restart[std::size_t(i)])
                for (int k = 0; k < K; ++k) slope[k] = Vec<T>{};
        }
        T lanes[LANES<T>];
        for (int k = 0; k < K; ++k) {
            store(after + k * WIDTH, slope[k]);
            store(lanes, d_A[k]);
            for (int l = 0; l < LANES<T>; ++l)
                d_A_[std::size_t(place * N + (n + k) * WIDTH + c + l)] += double(lanes[l]);
        }
    }

    // The slopes of x and dt from those sums.
    void finish(int64_t c, int64_t count, int64_t place) {
        const Vec<T> D = load(s_.D + c);
        Vec<T> sum_D{}, sum_bias{};
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = i * WIDTH + c;
            if (s_.hidden[std::size_t(i)]) {
                for (T* one : {dx_, dt_, dz_}) store(one + at, Vec<T>{});
                continue;
            }
            const Vec<T> x = load(s_.x + at), step = load(s_.step + at), d = load(d_ + at), taken = load(dx_ + at);
            Vec<T> dx = step * taken, dt = load(dt_ + at) + x * taken;
            if (s_.p.D.data) dx += D * d;
            if (s_.p.softplus) dt *= sigmoid<T>(load(s_.raw + at));
            sum_D += d * x;
            sum_bias += dt;
            store(dx_ + at, dx);
            store(dt_ + at, dt);
        }
        T lanes[LANES<T>];
        store(lanes, sum_D);
        for (int l = 0; l < LANES<T>; ++l) d_D_[std::size_t(place + c + l)] += double(lanes[l]);
        store(lanes, sum_bias);
        for (int l = 0; l < LANES<T>; ++l) d_bias_[std::size_t(place + c + l)] += double(lanes[l]);
    }

    // The sum of the lanes of each of `count` registers.
    static void sum_lanes(const T* from, int64_t count, T* to) {
        int64_t i = 0;
        for (; i + LANES<T> <= count; i += LANES<T>) {
            Vec<T> rows[LANES<T>];
#pragma GCC unroll 16
            for (int l = 0; l < LANES<T>; ++l) rows[l] = load(from + (i + l) * LANES<T>);
            store(to + i, sums_of<T>(rows));
        }
        for (; i < count; ++i) to[i] = sum<T>(load(from + i * LANES<T>));
    }
};

}  // namespace KT_ISA
}  // namespace kt
