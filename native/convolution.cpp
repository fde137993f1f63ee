// The short convolution: taps over the tokens of a text that take part, for each channel alone.
#include "operators.h"
#include "pool.h"
#include "spares.h"
#include "tile.h"

namespace kt {
namespace KT_ISA {
namespace {

// The tokens of a row that take part. Numbers of tokens count these only; before the first of a text
// are zeros, before the first of a row is the state.
struct Line {
    std::vector<int64_t> at;      // their places; empty if all take part
    std::vector<int64_t> begins;  // the first of each text, and the number of all at the end

    Line(const ShortConvolution& p, int64_t row) : begins{0} {
        int64_t count = p.mask.data ? 0 : p.tokens;
        if (p.mask.data || p.restart.data)
            for (int64_t t = 0; t < p.tokens; ++t) {
                if (p.restart.data && *p.restart.at(row, t)) begins.push_back(p.mask.data ? count : t);
                if (!p.mask.data || !*p.mask.at(row, t)) continue;
                at.push_back(t);
                ++count;
            }
        begins.push_back(count);
    }

    int64_t texts() const { return int64_t(begins.size()) - 1; }
    int64_t first(int64_t text) const { return begins[std::size_t(text)]; }
    int64_t end(int64_t text) const { return begins[std::size_t(text) + 1]; }
    int64_t count() const { return begins.back(); }
    int64_t place(int64_t j) const { return at.empty() ? j : at[std::size_t(j)]; }
};

// The channels of one tile in one row, from beginning to end.
template <class T> class Strip {
  public:
    explicit Strip(const ShortConvolution& call) : p(call), before(call.taps - 1) {
        const int64_t rows = TILE_TOKENS + 2 * before;  // the state counts as tokens too, in the gradient
        weight_ = arena_.take<T>(p.taps * WIDTH);
        bias_ = arena_.take<T>(WIDTH);
        x_ = arena_.take<T>(rows * WIDTH);
        y_ = arena_.take<T>(rows * WIDTH);
        out_ = arena_.take<T>(rows * WIDTH);
        scratch_ = arena_.take<T>(WIDTH * TILE_TOKENS);
    }

    void forward(int64_t row, int64_t channel, Control& control) {
        begin(row, channel);
        const Line line(p, row);
        for (int64_t text = 0; text < line.texts(); ++text) {
            begin_text(text);
            for (int64_t j = line.first(text); j < line.end(text); j += TILE_TOKENS) {
                if (control.stopped()) return;
                const int64_t count = std::min(TILE_TOKENS, line.end(text) - j);
                read(p.x, line, j, count, x_ + before * WIDTH);
                by_taps([&](auto taps) { convolve<decltype(taps)::value>(count); });
                write(p.output, line, j, count, out_);
                std::memmove(x_, x_ + count * WIDTH, std::size_t(before * WIDTH) * sizeof(T));
            }
        }
        hide(p.output);
        if (p.state_after.data) write_rows(p.state_after, x_);
    }

    // The slopes of the weights are added to d_weight (taps + 1, channels), the bias being the last.
    void backward(const ShortConvolutionGradient& g, int64_t row, int64_t channel, double* d_weight,
                  Control& control) {
        begin(row, channel);
        const Line line(p, row);
        const int64_t last = line.texts() - 1;
        for (int64_t text = last; text >= 0; --text) {
            std::fill(y_, y_ + before * WIDTH, T(0));  // slopes of what comes after the text: none
            int64_t end = line.end(text);
            while (end > line.first(text)) {
                if (control.stopped()) return;
                const int64_t count = std::min(TILE_TOKENS, end - line.first(text)), j = end - count;
                read_before(line, text, j);
                read(p.x, line, j, count, x_ + before * WIDTH);
                std::memmove(y_ + count * WIDTH, y_, std::size_t(before * WIDTH) * sizeof(T));
                read(g.d_output, line, j, count, y_);
                by_taps([&](auto taps) { slopes<decltype(taps)::value>(count, d_weight); });
                if (text == last) add_after(g, j - line.count() + before, count);
                write(g.d_x, line, j, count, out_);
                end = j;
            }
        }
        hide(g.d_x);
        if (!g.d_state.data) return;
        // The state is before the first tokens of the first text: as tokens without slopes of their own.
        std::memmove(y_ + before * WIDTH, y_, std::size_t(before * WIDTH) * sizeof(T));
        std::fill(y_, y_ + before * WIDTH, T(0));
        by_taps([&](auto taps) { spread<decltype(taps)::value>(before); });
        if (last == 0) add_after(g, -line.count(), before);
        write_rows(g.d_state, out_);
    }

  private:
    const ShortConvolution& p;
    const int64_t before;  // taps − 1
    int64_t row_ = 0, channel_ = 0, channels_ = 0;
    Arena arena_;
    T *weight_, *bias_;     // (taps, WIDTH) and (WIDTH)
    T *x_, *y_, *out_;      // (TILE_TOKENS + 2·(taps − 1), WIDTH)
    T* scratch_;

    void begin(int64_t row, int64_t channel) {
        row_ = row;
        channel_ = channel;
        channels_ = std::min(WIDTH, p.channels - channel);
        std::fill(bias_, bias_ + WIDTH, T(0));
        read_rows(p.weight, type_of<T>, 0, p.taps, weight_);
        if (p.bias.data)
            read_token<T>(from_element(p.bias, channel), type_of<T>, 0, 0, channels_, T(1), bias_);
    }

    // What is before the first token of a text, into the first rows of x.
    void begin_text(int64_t text) {
        std::fill(x_, x_ + before * WIDTH, T(0));
        if (text == 0 && p.state.data) read_rows(p.state, p.type, row_, before, x_);
    }

    void read_rows(const View& view, Type type, int64_t row, int64_t count, T* rows) {
        for (int64_t i = 0; i < count; i += TILE_TOKENS)
            read_tile<T>(view, type, row, i, std::min(TILE_TOKENS, count - i), channel_, channels_, rows + i * WIDTH,
                         scratch_);
    }

    // What is before token j of a text.
    void read_before(const Line& line, int64_t text, int64_t j) {
        begin_text(text);
        const int64_t have = j - line.first(text);
        if (have == 0) return;
        const int64_t fresh = std::min(have, before);
        std::memmove(x_, x_ + fresh * WIDTH, std::size_t((before - fresh) * WIDTH) * sizeof(T));
        for (int64_t i = 0; i < fresh; ++i) read(p.x, line, j - fresh + i, 1, x_ + (before - fresh + i) * WIDTH);
    }

    void read(const View& view, const Line& line, int64_t j, int64_t count, T* tile) {
        if (line.place(j + count - 1) - line.place(j) == count - 1) {
            read_tile<T>(view, p.type, row_, line.place(j), count, channel_, channels_, tile, scratch_);
            return;
        }
        for (int64_t i = 0; i < count; ++i)
            read_tile<T>(view, p.type, row_, line.place(j + i), 1, channel_, channels_, tile + i * WIDTH, scratch_);
    }

    void write(const View& view, const Line& line, int64_t j, int64_t count, const T* tile) {
        if (line.place(j + count - 1) - line.place(j) == count - 1) {
            write_tile<T>(view, p.type, row_, line.place(j), count, channel_, channels_, tile, scratch_);
            return;
        }
        for (int64_t i = 0; i < count; ++i)
            write_tile<T>(view, p.type, row_, line.place(j + i), 1, channel_, channels_, tile + i * WIDTH, scratch_);
    }

    void write_rows(const View& view, const T* rows) {
        for (int64_t i = 0; i < before; i += TILE_TOKENS)
            write_tile<T>(view, p.type, row_, i, std::min(TILE_TOKENS, before - i), channel_, channels_,
                          rows + i * WIDTH, scratch_);
    }

    // Zeros where a token is hidden.
    void hide(const View& view) {
        if (!p.mask.data) return;
        const View part = from_element(view, channel_);
        std::fill(out_, out_ + WIDTH, T(0));
        for (int64_t t = 0; t < p.tokens; ++t)
            if (!*p.mask.at(row_, t)) write_token<T>(part, p.type, row_, t, channels_, out_);
    }

    // f(number of taps) as a constant where it is a usual one, else as 0.
    template <class F> KT_INLINE void by_taps(F&& f) {
        switch (p.taps) {
            case 2: f(std::integral_constant<int, 2>{}); return;
            case 3: f(std::integral_constant<int, 3>{}); return;
            case 4: f(std::integral_constant<int, 4>{}); return;
            default: f(std::integral_constant<int, 0>{});
        }
    }

    // bias + Σ_j weight_j ⊙ x_{t + j}; the last tap is of token t itself, which is row t + taps − 1.
    template <int K> KT_INLINE Vec<T> sum_of_taps(int64_t t, int64_t c) const {
        Vec<T> sum = load(bias_ + c);
        const int64_t taps = K ? K : p.taps;
        const T* x = x_ + t * WIDTH + c;
#pragma GCC unroll 4
        for (int64_t j = 0; j < taps; ++j) sum += load(weight_ + j * WIDTH + c) * load(x + j * WIDTH);
        return sum;
    }

    template <int K> void convolve(int64_t count) {
        by_lanes<T>(channels_, [&](int64_t c) {
            if (p.silu)
                for (int64_t t = 0; t < count; ++t) store(out_ + t * WIDTH + c, silu<T>(sum_of_taps<K>(t, c)));
            else
                for (int64_t t = 0; t < count; ++t) store(out_ + t * WIDTH + c, sum_of_taps<K>(t, c));
        });
    }

    // Slopes of x from those of the sums, y: x of token t is read by taps of t … t + taps − 1.
    template <int K> void spread(int64_t count) {
        const int64_t taps = K ? K : p.taps;
        by_lanes<T>(channels_, [&](int64_t c) {
            for (int64_t t = 0; t < count; ++t) {
                Vec<T> sum{};
                const T* y = y_ + t * WIDTH + c;
#pragma GCC unroll 4
                for (int64_t j = 0; j < taps; ++j)
                    sum += load(weight_ + (taps - 1 - j) * WIDTH + c) * load(y + j * WIDTH);
                store(out_ + t * WIDTH + c, sum);
            }
        });
    }

    template <int K> void slopes(int64_t count, double* d_weight) {
        const int64_t taps = K ? K : p.taps;
        by_lanes<T>(channels_, [&](int64_t c) {
            if (p.silu)
                for (int64_t t = 0; t < count; ++t) {
                    T* y = y_ + t * WIDTH + c;
                    store(y, load(y) * silu_slope<T>(sum_of_taps<K>(t, c)));
                }
            T lanes[LANES<T>];
            for (int64_t j = 0; j <= taps; ++j) {  // summed in T for a tile, in float64 over tiles
                Vec<T> sum{};
                for (int64_t t = 0; t < count; ++t) {
                    const Vec<T> y = load(y_ + t * WIDTH + c);
                    sum += j < taps ? y * load(x_ + (t + j) * WIDTH + c) : y;
                }
                store(lanes, sum);
                for (int64_t i = 0; i < std::min<int64_t>(LANES<T>, channels_ - c); ++i)
                    d_weight[j * p.channels + channel_ + c + i] += double(lanes[i]);
            }
        });
        spread<K>(count);
    }

    // Adds rows of the slope of the state after the call, from `first` on, to as many rows of out.
    void add_after(const ShortConvolutionGradient& g, int64_t first, int64_t count) {
        if (!g.d_state_after.data) return;
        const View part = from_element(g.d_state_after, channel_);
        for (int64_t i = 0; i < count; ++i) {
            if (first + i < 0 || first + i >= before) continue;
            read_token<T>(part, p.type, row_, first + i, channels_, T(1), scratch_);
            for (int64_t c = 0; c < channels_; ++c) out_[i * WIDTH + c] += scratch_[c];
        }
    }
};

template <class T> void run(const ShortConvolution& p, Control& control) {
    const int64_t strips = (p.channels + WIDTH - 1) / WIDTH;
    Spares<Strip<T>> spares;
    parallel(
        p.rows * strips, control.threads,
        [&](int64_t i) {
            if (control.stopped()) return;
            spares.with([&] { return std::make_unique<Strip<T>>(p); },
                        [&](Strip<T>& strip) { strip.forward(i / strips, i % strips * WIDTH, control); });
        },
        [&] { control.stopped(); });
}

template <class T> void run_backward(const ShortConvolution& p, const ShortConvolutionGradient& g, Control& control) {
    const int64_t strips = (p.channels + WIDTH - 1) / WIDTH, size = (p.taps + 1) * p.channels;
    // Row by row, so that the sum does not depend on the threads.
    std::vector<double> d_weight(std::size_t(p.rows * size), 0.0);
    Spares<Strip<T>> spares;
    parallel(
        p.rows * strips, control.threads,
        [&](int64_t i) {
            if (control.stopped()) return;
            double* own = d_weight.data() + i / strips * size;
            spares.with([&] { return std::make_unique<Strip<T>>(p); }, [&](Strip<T>& strip) {
                strip.backward(g, i / strips, i % strips * WIDTH, own, control);
            });
        },
        [&] { control.stopped(); });
    const int64_t weights = p.taps * p.channels;
    if (g.d_weight) std::fill(g.d_weight, g.d_weight + weights, 0.0);
    if (g.d_bias) std::fill(g.d_bias, g.d_bias + p.channels, 0.0);
    for (int64_t r = 0; r < p.rows; ++r) {
        const double* own = d_weight.data() + r * size;
        for (int64_t i = 0; i < weights && g.d_weight; ++i) g.d_weight[i] += own[i];
        for (int64_t i = 0; i < p.channels && g.d_bias; ++i) g.d_bias[i] += own[weights + i];
    }
}

}  // namespace

void short_convolution_wide(const ShortConvolution& p, Control& control);
void short_convolution_backward_wide(const ShortConvolution& p, const ShortConvolutionGradient& g, Control& control);

#if defined(KT_WIDE)

void short_convolution_wide(const ShortConvolution& p, Control& control) { run<double>(p, control); }

void short_convolution_backward_wide(const ShortConvolution& p, const ShortConvolutionGradient& g, Control& control) {
    run_backward<double>(p, g, control);
}

#else

void short_convolution(const ShortConvolution& p, Control& control) {
    p.type == Type::f64 ? short_convolution_wide(p, control) : run<float>(p, control);
}

void short_convolution_backward(const ShortConvolution& p, const ShortConvolutionGradient& g, Control& control) {
    p.type == Type::f64 ? short_convolution_backward_wide(p, g, control) : run_backward<float>(p, g, control);
}

#endif

}  // namespace KT_ISA
}  // namespace kt
