// The selective scan: N numbers for each channel that decay, take a token up, and are read.
#include "pool.h"
#include "scan_grad.h"
#include "spares.h"

namespace kt {
namespace KT_ISA {
namespace {

template <class T> class Forward {
  public:
    explicit Forward(const SelectiveScan& p) : s_(p) {
        h_ = s_.arena.template take<T>(p.states * WIDTH);
        const int64_t tokens = std::min(p.keep, std::max<int64_t>(p.tokens, 1));
        y_ = s_.arena.template take<T>(tokens * WIDTH);
        z_ = p.z.data ? s_.arena.template take<T>(tokens * WIDTH) : nullptr;
    }

    void run(int64_t row, int64_t channel, Control& control) {
        const SelectiveScan& p = s_.p;
        if (is_step(row)) {
            step(row, channel);
            return;
        }
        s_.begin(row, channel);
        if (p.state.data)
            s_.read_states(p.state, row, h_);
        else
            std::fill(h_, h_ + p.states * WIDTH, T(0));
        for (int64_t t = 0; t < p.tokens; t += p.keep) {
            if (control.stopped()) return;
            if (p.kept) keep(t / p.keep);
            tile(t, std::min(p.keep, p.tokens - t));
        }
        if (p.state_after.data) s_.write_states(p.state_after, row, h_);
    }

  private:
    Channels<T> s_;
    T *h_, *y_, *z_;  // (N, WIDTH), (keep, WIDTH)

    // Whether a decoder gives one token, and A and the states as it keeps them: N numbers side by side.
    bool is_step(int64_t row) const {
        const SelectiveScan& p = s_.p;
        const bool plain = p.tokens == 1 && !p.mask.data && !p.restart.data && !p.kept && p.states % LANES<T> == 0;
        return plain && p.state.data && p.state_after.data && direct<T>(p.A, type_of<T>, 0, p.states) &&
               direct<T>(p.state, type_of<T>, row, p.states) && direct<T>(p.state_after, type_of<T>, row, p.states);
    }

    // One token, where A and the states lie: their numbers are in lanes, and only the new states are turned, to
    // be added up as `pass` adds them.
    void step(int64_t row, int64_t channel) {
        const SelectiveScan& p = s_.p;
        s_.begin_tokens(row, channel);
        s_.read(0, 1);
        if (z_) s_.read_numbers(p.z, 0, 1, z_);
        by_lanes<T>(s_.channels, [&](int64_t c) {
            const int count = int(std::min<int64_t>(LANES<T>, s_.channels - c));
            Vec<T> y{};
            for (int64_t n = 0; n < p.states; n += LANES<T>) {
                Vec<T> h[LANES<T>];
                if (count == LANES<T>)
                    step_register<LANES<T>>(row, channel + c, c, n, h);
                else
                    step_register<0>(row, channel + c, c, n, h, count);
                transpose<T>(h);
#pragma GCC unroll 16
                for (int k = 0; k < LANES<T>; ++k) y += h[k] * s_.C[n + k];
            }
            store(y_ + c, finished(y, c, 0));
        });
        s_.write_numbers(p.output, 0, 1, y_);
    }

    // The new states n … of `count` channels, a constant if it is not 0, of which `first` is the first.
    template <int K> KT_INLINE void step_register(int64_t row, int64_t first, int64_t c, int64_t n, Vec<T>* h,
                                                  int count = K) const {
        const SelectiveScan& p = s_.p;
        const int64_t A_step = p.A.token / int64_t(sizeof(T)), step = p.state.token / int64_t(sizeof(T)),
                      after_step = p.state_after.token / int64_t(sizeof(T));
        const T* A = reinterpret_cast<const T*>(p.A.at(0, first)) + n;
        const T* state = reinterpret_cast<const T*>(p.state.at(row, first)) + n;
        T* after = reinterpret_cast<T*>(p.state_after.at(row, first)) + n;
        const T *delta = s_.step + c, *input = s_.input + c;
        Vec<T> squares{};  // if small, no e^{ΔA} is subnormal, infinite or NaN
#pragma GCC unroll 16
        for (int l = 0; l < LANES<T>; ++l) {
            if (K == 0 && l >= count) {
                h[l] = Vec<T>{};
                continue;
            }
            h[l] = splat(delta[l]) * load(A + l * A_step);
            squares += h[l] * h[l];
        }
        constexpr T LIMIT = sizeof(T) == 4 ? T(87) : T(708);
        const Vec<T> wild = squares < splat(LIMIT * LIMIT) ? Vec<T>{} : splat(T(1));
        const auto take_up = [&](auto tame) {
            const Vec<T> B = load(s_.B + n);
#pragma GCC unroll 16
            for (int l = 0; l < LANES<T>; ++l) {
                if (K == 0 && l >= count) continue;
                h[l] = decay<T, decltype(tame)::value>(h[l]) * load(state + l * step) + splat(input[l]) * B;
                store(after + l * after_step, h[l]);
            }
        };
        if (sum<T>(wild) == T(0))
            take_up(std::true_type{});
        else
            take_up(std::false_type{});
    }

    // y + D x, times the gate, of channels c … and token i.
    KT_INLINE Vec<T> finished(Vec<T> y, int64_t c, int64_t i) const {
        const int64_t at = i * WIDTH + c;
        if (s_.p.D.data) y += load(s_.D + c) * load(s_.x + at);
        if (z_) y *= silu<T>(load(z_ + at));
        return y;
    }

    void keep(int64_t k) {
        const SelectiveScan& p = s_.p;
        const int64_t tiles = (p.tokens + p.keep - 1) / p.keep;
        T* to = static_cast<T*>(p.kept) + (s_.row * tiles + k) * p.states * p.channels + s_.channel;
        for (int64_t n = 0; n < p.states; ++n)
            std::copy(h_ + n * WIDTH, h_ + n * WIDTH + s_.channels, to + n * p.channels);
    }

    void tile(int64_t t, int64_t count) {
        const SelectiveScan& p = s_.p;
        s_.read(t, count);
        std::fill(y_, y_ + count * WIDTH, T(0));
        if (z_) s_.read_numbers(p.z, t, count, z_);
        by_lanes<T>(s_.channels, [&](int64_t c) {
            by_way(s_, c, count, [&](auto way, int64_t n) { pass<decltype(way)>(n, c, count); });
            for (int64_t i = 0; i < count; ++i) {
                const Vec<T> y = finished(load(y_ + i * WIDTH + c), c, i);
                store(y_ + i * WIDTH + c, s_.hidden[std::size_t(i)] ? Vec<T>{} : y);
            }
        });
        s_.write_numbers(p.output, t, count, y_);
    }

    template <class W> void pass(int64_t n, int64_t c, int64_t count) {
        constexpr int K = W::K;
        const int64_t N = s_.p.states;
        Vec<T> h[K], A[K];
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            h[k] = load(h_ + (n + k) * WIDTH + c);
            A[k] = load(s_.A + (n + k) * WIDTH + c);
        }
        for (int64_t i = 0; i < count; ++i) {
            if (W::flags && s_.restart[std::size_t(i)])
                for (int k = 0; k < K; ++k) h[k] = Vec<T>{};
            if (W::flags && s_.hidden[std::size_t(i)]) continue;
            const Vec<T> step = load(s_.step + i * WIDTH + c), input = load(s_.input + i * WIDTH + c);
            const T *B = s_.B + i * N + n, *C = s_.C + i * N + n;
            Vec<T> y = load(y_ + i * WIDTH + c);
#pragma GCC unroll 8
            for (int k = 0; k < K; ++k) {
                h[k] = decay<T, W::tame>(step * A[k]) * h[k] + input * B[k];
                y += h[k] * C[k];
            }
            store(y_ + i * WIDTH + c, y);
        }
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) store(h_ + (n + k) * WIDTH + c, h[k]);
    }
};

template <class T> void run(const SelectiveScan& p, Control& control) {
    const int64_t strips = (p.channels + WIDTH - 1) / WIDTH;
    Spares<Forward<T>> spares;
    parallel(
        p.rows * strips, control.threads,
        [&](int64_t i) {
            if (control.stopped()) return;
            spares.with([&] { return std::make_unique<Forward<T>>(p); },
                        [&](Forward<T>& strip) { strip.run(i / strips, i % strips * WIDTH, control); });
        },
        [&] { control.stopped(); });
}

template <class T> void run_backward(const SelectiveScan& p, const SelectiveScanGradient& g, Control& control) {
    const int64_t N = p.states, groups = (p.channels + GROUP - 1) / GROUP, size = p.tokens * N;
    // By rows and groups of channels, so that sums do not depend on the threads.
    std::vector<double> d_A(std::size_t(p.rows * p.channels * (N + 2)), 0.0);
    Arena arena;
    T* parts = arena.take<T>(p.rows * groups * 2 * size);
    Spares<ScanGradient<T>> spares;
    parallel(
        p.rows * groups, control.threads,
        [&](int64_t i) {
            if (control.stopped()) return;
            T* d_B = parts + i * 2 * size;
            double* own = d_A.data() + i / groups * p.channels * (N + 2);
            spares.with([&] { return std::make_unique<ScanGradient<T>>(p, g); }, [&](ScanGradient<T>& strip) {
                strip.run(i / groups, i % groups * GROUP, d_B, d_B + size, own, control);
            });
        },
        [&] { control.stopped(); });
    if (control.stopped()) return;
    std::vector<T> total(std::size_t(N), T(0));
    for (int64_t row = 0; row < p.rows; ++row)
        for (int64_t side = 0; side < 2; ++side)
            for (int64_t t = 0; t < p.tokens; ++t) {
                for (int64_t n = 0; n < N; ++n) {
                    double sum = 0;
                    for (int64_t i = 0; i < groups; ++i)
                        sum += double(parts[((row * groups + i) * 2 + side) * size + t * N + n]);
                    total[std::size_t(n)] = T(sum);
                }
                write_token<T>(side ? g.d_C : g.d_B, p.type, row, t, N, total.data());
            }
    for (int64_t c = 0; c < p.channels; ++c) {
        for (int64_t n = 0; n < N + 2; ++n) {
            double sum = 0;
            for (int64_t row = 0; row < p.rows; ++row) sum += d_A[std::size_t((row * p.channels + c) * (N + 2) + n)];
            double* to = n < N ? g.d_A + c * N + n : n == N ? g.d_D + c : g.d_dt_bias + c;
            if (n < N ? g.d_A != nullptr : n == N ? g.d_D != nullptr : g.d_dt_bias != nullptr) *to = sum;
        }
    }
}

}  // namespace

void selective_scan_wide(const SelectiveScan& p, Control& control);
void selective_scan_backward_wide(const SelectiveScan& p, const SelectiveScanGradient& g, Control& control);

#if defined(KT_WIDE)

void selective_scan_wide(const SelectiveScan& p, Control& control) { run<double>(p, control); }

void selective_scan_backward_wide(const SelectiveScan& p, const SelectiveScanGradient& g, Control& control) {
    run_backward<double>(p, g, control);
}

#else

void selective_scan(const SelectiveScan& p, Control& control) {
    p.type == Type::f64 ? selective_scan_wide(p, control) : run<float>(p, control);
}

void selective_scan_backward(const SelectiveScan& p, const SelectiveScanGradient& g, Control& control) {
    p.type == Type::f64 ? selective_scan_backward_wide(p, g, control) : run_backward<float>(p, g, control);
}

#endif

}  // namespace KT_ISA
}  // namespace kt
