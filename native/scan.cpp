// The selective scan: N numbers for each channel that decay, take a token up, and are read.
#include "scan.h"

#include "pool.h"
#include "spares.h"

namespace kt {
namespace KT_ISA {
namespace {

// How tokens go by: K states of a register of channels, and whether tokens may be hidden or begin a text.
template <int states, bool tame_, bool flags_> struct Way {
    static constexpr int K = states;
    static constexpr bool tame = tame_, flags = flags_;
};

template <class T, class F> KT_INLINE void by_way(const Channels<T>& s, int64_t c, int64_t count, F&& f) {
    const bool tame = s.tame(c, count);
    s.by_states([&](auto k, int64_t n) {
        constexpr int K = decltype(k)::value;
        if (s.flags)
            f(Way<K, false, true>{}, n);
        else if (tame)
            f(Way<K, true, false>{}, n);
        else
            f(Way<K, false, false>{}, n);
    });
}

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

constexpr int64_t GROUP = 4 * WIDTH;  // channels of a task of the gradient, which sums up those of B and C

// The gradient of up to GROUP channels of one row, from the last tile of tokens to the first.
template <class T> class Backward {
  public:
    Backward(const SelectiveScan& p, const SelectiveScanGradient& gradient) : g(gradient), s_(p) {
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
    Spares<Backward<T>> spares;
    parallel(
        p.rows * groups, control.threads,
        [&](int64_t i) {
            if (control.stopped()) return;
            T* d_B = parts + i * 2 * size;
            double* own = d_A.data() + i / groups * p.channels * (N + 2);
            spares.with([&] { return std::make_unique<Backward<T>>(p, g); }, [&](Backward<T>& strip) {
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
