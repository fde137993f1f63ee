// φ of a block of tokens, features in rows and tokens in lanes: phi[r · C + j] is feature r of
// token j. Sums and maxima over features are then plain vertical loops.
#pragma once

#include "elementwise.h"
#include "lanes.h"

namespace kt {
namespace KT_ISA {

// sin and cos by x = n·π/2 + r; the library's where |x| is too large for that to be exact.
template <class T> KT_INLINE void sin_cos(Vec<T> x, Vec<T>& s, Vec<T>& c) {
    constexpr bool single = sizeof(T) == 4;
    const Vec<T> magic = splat(single ? T(12582912.0) : T(6755399441055744.0));
    Vec<T> shifted = x * T(0.63661977236758134308) + magic;
    Vec<T> n = shifted - magic;
    Vec<T> r, ps, pc, r2;
    if constexpr (single) {
        r = x - n * T(1.5703125);
        r = r - n * T(4.837512969970703125e-4);
        r = r - n * T(7.549789948768648e-8);
        r2 = r * r;
        ps = r2 * T(-1.9515295891e-4) + T(8.3321608736e-3);
        ps = ps * r2 + T(-1.6666654611e-1);
        pc = r2 * T(2.443315711809948e-5) + T(-1.388731625493765e-3);
        pc = pc * r2 + T(4.166664568298827e-2);
    } else {
        r = x - n * T(1.57079625129699707031);
        r = r - n * T(7.54978941586159635335e-8);
        r = r - n * T(5.39030285815811905290e-15);
        r2 = r * r;
        ps = r2 * T(1.58962301576546568060e-10) + T(-2.50507477628578072866e-8);
        ps = ps * r2 + T(2.75573136213857245213e-6);
        ps = ps * r2 + T(-1.98412698295895385996e-4);
        ps = ps * r2 + T(8.33333333332211858878e-3);
        ps = ps * r2 + T(-1.66666666666666307295e-1);
        pc = r2 * T(-1.13585365213876817300e-11) + T(2.08757008419747316778e-9);
        pc = pc * r2 + T(-2.75573141792967388112e-7);
        pc = pc * r2 + T(2.48015872888517045348e-5);
        pc = pc * r2 + T(-1.38888888888730564116e-3);
        pc = pc * r2 + T(4.16666666666665929218e-2);
    }
    Vec<T> sine = ps * (r2 * r) + r;
    Vec<T> cosine = pc * (r2 * r2) - r2 * T(0.5) + T(1);
    Ints<T> q = bits<T>(shifted);
    Ints<T> odd = -(q & 1);  // all ones where sine and cosine change places
    Ints<T> swapped_s = (bits<T>(cosine) & odd) | (bits<T>(sine) & ~odd);
    Ints<T> swapped_c = (bits<T>(sine) & odd) | (bits<T>(cosine) & ~odd);
    constexpr int top_bit = single ? 31 : 63;
    s = from_bits<T>(swapped_s ^ ((q >> 1 & 1) << top_bit));
    c = from_bits<T>(swapped_c ^ (((q + 1) >> 1 & 1) << top_bit));
    for (int i = 0; i < LANES<T>; ++i)  // lane by lane: a token must not change its neighbours' bits
        if (!(std::fabs(x[i]) < (single ? T(8192) : T(1e6)))) {
            s[i] = std::sin(x[i]);
            c[i] = std::cos(x[i]);
        }
}

// A feature of the quadratic map is coefficient · x_a · x_b, where x_0 = 1.
struct Monomial {
    int32_t a, b;
    double coefficient;
};

inline std::vector<Monomial> monomials(const Features& f) {
    std::vector<Monomial> all;
    const int32_t first = f.c0 > 0 || f.c1 > 0 ? 0 : 1;  // (q·k)² alone has no constant
    for (int32_t a = first; a <= f.inputs; ++a)
        for (int32_t b = a; b <= f.inputs; ++b) {
            double c = a == 0 && b == 0 ? f.c0 : a == 0 ? f.c1 : a == b ? f.c2 : 2 * f.c2;
            all.push_back({a, b, std::sqrt(c)});
        }
    return all;
}

// φ and its gradient for blocks of up to C tokens. `x` is tokens in lanes, d rows (after one row of
// ones for the quadratic map); `columns` is the number of lanes in use; `which` is the
// matrix of weights, where there are several.
template <class T> class Mapper {
  public:
    Mapper(const Features& f, int64_t C, Arena& arena) : f_(f), C_(C) {
        if (f.map == Map::quadratic) monomials_ = monomials(f);
        if (projected())
            scratch_ = arena.take<T>(f.columns * C + TILE_COLUMNS<T>);
        if (f.weight && projected()) {
            rows_ = arena.take<T>(C * round_up(f.columns, TILE_COLUMNS<T>));
            d_matrix_ = arena.take<T>(f.inputs * round_up(f.columns, TILE_COLUMNS<T>));
        }
    }

    bool quadratic() const { return f_.map == Map::quadratic; }
    bool projected() const {
        return hedgehog() || f_.map == Map::t2r || f_.map == Map::favor_positive ||
               f_.map == Map::favor_hyperbolic || f_.map == Map::favor_trig;
    }
    bool hedgehog() const {
        return f_.map == Map::hedgehog_softmax || f_.map == Map::hedgehog_exp ||
               f_.map == Map::hedgehog_separate;
    }

    // φ(x), and the log-scale of each token where the map has one (given ones come from outside).
    void phi(const T* x, int64_t columns, int64_t which, const double* positions, T* out,
             double* log_scale) const {
        switch (f_.map) {
            case Map::given: return each<IdentityMap<T>>(x, columns, out);
            case Map::elu: return each<EluMap<T, false>>(x, columns, out);
            case Map::relu: return each<ReluMap<T>>(x, columns, out);
            case Map::relu2: return each<Relu2Map<T>>(x, columns, out);
            case Map::square: return each<SquareMap<T>>(x, columns, out);
            case Map::exp: return shifted_exp(x, f_.inputs, columns, out, log_scale);
            case Map::cosformer: return cosformer(x, columns, positions, out);
            case Map::hedgehog_softmax:
            case Map::hedgehog_exp:
            case Map::hedgehog_separate: return hedgehog(x, columns, which, out, log_scale);
            case Map::t2r: return t2r(x, columns, which, out);
            case Map::favor_positive:
            case Map::favor_hyperbolic: return favor(x, columns, out, log_scale);
            case Map::favor_trig: return trig(x, columns, out, log_scale);
            case Map::quadratic: return panel(x, columns, 0, f_.count, out);
        }
    }

    // Features first … first + count of the quadratic map.
    void panel(const T* x, int64_t columns, int64_t first, int64_t count, T* out) const {
        for (int64_t r = 0; r < count; ++r) {
            const Monomial& one = monomials_[std::size_t(first + r)];
            const T *a = x + one.a * C_, *b = x + one.b * C_;
            const Vec<T> c = splat(T(one.coefficient));
            for (int64_t j = 0; j < columns; j += LANES<T>)
                store(out + r * C_ + j, load(a + j) * c * load(b + j));
        }
    }

    // dx from dφ, both in lanes; φ as `phi` made it. For the quadratic map dx is added to, over
    // panels. d_weight (d, p) and d_bias (p), float64, are added to where they are wanted.
    void back(const T* x, const T* phi, const T* d_phi, int64_t columns, int64_t which,
              const double* positions, T* dx, double* d_weight, double* d_bias) const {
        const int64_t d = f_.inputs, p = f_.columns;
        auto rows = [&](int64_t n, auto&& body) {
            for (int64_t r = 0; r < n; ++r)
                for (int64_t j = 0; j < columns; j += LANES<T>) body(r, j, r * C_ + j);
        };
        switch (f_.map) {
            case Map::given:
                return rows(d, [&](int64_t, int64_t, int64_t o) { store(dx + o, load(d_phi + o)); });
            case Map::elu:
                return rows(d, [&](int64_t, int64_t, int64_t o) {
                    store(dx + o, load(d_phi + o) * least(load(phi + o), splat(T(1))));  // eˣ or 1
                });
            case Map::relu:
                return rows(d, [&](int64_t, int64_t, int64_t o) {
                    store(dx + o, masked<T>(load(d_phi + o), load(phi + o) > Vec<T>{}));
                });
            case Map::relu2:
                return rows(d, [&](int64_t, int64_t, int64_t o) {
                    store(dx + o, load(d_phi + o) * most(load(x + o), Vec<T>{}) * T(2));
                });
            case Map::square:
                return rows(d, [&](int64_t, int64_t, int64_t o) {
                    store(dx + o, load(d_phi + o) * load(x + o) * T(2));
                });
            case Map::exp:  // x is the exponent: dx = φ·dφ, whatever φ is scaled by
                return rows(d, [&](int64_t, int64_t, int64_t o) {
                    store(dx + o, load(d_phi + o) * load(phi + o));
                });
            case Map::cosformer: {
                std::vector<T> turn = angles(positions, columns);
                return rows(d, [&](int64_t r, int64_t j, int64_t o) {
                    Vec<T> g = load(d_phi + o) * load(turn.data() + j) +
                               load(d_phi + (d + r) * C_ + j) * load(turn.data() + columns + j);
                    store(dx + o, masked<T>(g, load(x + o) > Vec<T>{}));
                });
            }
            default: break;
        }
        T* dy = scratch_;
        switch (f_.map) {
            case Map::hedgehog_softmax:
            case Map::hedgehog_exp:
            case Map::hedgehog_separate:
                for (int64_t j = 0; j < columns; j += LANES<T>) {
                    Vec<T> mean{}, other{};  // of xW and of −xW
                    for (int64_t r = 0; r < p && f_.map != Map::hedgehog_exp; ++r) {
                        mean += load(phi + r * C_ + j) * load(d_phi + r * C_ + j);
                        other += load(phi + (p + r) * C_ + j) * load(d_phi + (p + r) * C_ + j);
                    }
                    if (f_.map == Map::hedgehog_softmax) mean = other = mean + other;
                    for (int64_t r = 0; r < p; ++r) {
                        const int64_t a = r * C_ + j, b = (p + r) * C_ + j;
                        store(dy + a, load(phi + a) * (load(d_phi + a) - mean) -
                                          load(phi + b) * (load(d_phi + b) - other));
                    }
                }
                break;
            case Map::t2r:
                rows(p, [&](int64_t, int64_t, int64_t o) {
                    store(dy + o, masked<T>(load(d_phi + o), load(phi + o) > Vec<T>{}));
                });
                break;
            case Map::favor_positive:
                rows(p, [&](int64_t, int64_t, int64_t o) {
                    store(dy + o, load(phi + o) * load(d_phi + o));
                });
                break;
            case Map::favor_hyperbolic:
                rows(p, [&](int64_t r, int64_t j, int64_t o) {
                    const int64_t b = (p + r) * C_ + j;
                    store(dy + o, load(phi + o) * load(d_phi + o) - load(phi + b) * load(d_phi + b));
                });
                break;
            case Map::favor_trig:
                rows(p, [&](int64_t r, int64_t j, int64_t o) {
                    const int64_t b = (p + r) * C_ + j;
                    store(dy + o, load(phi + o) * load(d_phi + b) - load(phi + b) * load(d_phi + o));
                });
                break;
            default: break;
        }
        if (!f_.weight) {  // hedgehog before training: the weights are the identity
            rows(d, [&](int64_t, int64_t, int64_t o) { store(dx + o, load(dy + o)); });
            return;
        }
        const T* w = weight(which);
        product(w, p, int64_t(1), dy, C_, p, d, columns, dx);  // dx = W·dy
        if (f_.map == Map::favor_positive || f_.map == Map::favor_hyperbolic ||
            f_.map == Map::favor_trig) {
            const T sign = f_.map == Map::favor_trig ? T(1) : T(-1);  // of ‖x‖²/2 in the exponent
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> total{};
                for (int64_t r = 0; r < f_.count; ++r)
                    total += load(phi + r * C_ + j) * load(d_phi + r * C_ + j);
                total *= sign;
                for (int64_t r = 0; r < d; ++r)
                    store(dx + r * C_ + j, load(dx + r * C_ + j) + total * load(x + r * C_ + j));
            }
        }
        if (d_weight) {  // dW = x·dyᵀ
            const int64_t stride = round_up(p, TILE_COLUMNS<T>);
            for (int64_t j = 0; j < columns; ++j) std::fill(rows_ + j * stride + p, rows_ + (j + 1) * stride, T(0));
            to_rows(dy, C_, columns, p, rows_, stride);
            product(x, C_, int64_t(1), rows_, stride, columns, d, stride, d_matrix_);
            for (int64_t i = 0; i < d; ++i)
                for (int64_t r = 0; r < p; ++r) d_weight[i * p + r] += double(d_matrix_[i * stride + r]);
        }
        if (d_bias) {
            for (int64_t r = 0; r < p; ++r) {
                Vec<T> s{};
                for (int64_t j = 0; j < columns; j += LANES<T>) s += load(dy + r * C_ + j);
                d_bias[r] += double(sum<T>(s));
            }
        }
    }

    // dx += of a panel of the quadratic map; row 0 of x and dx belongs to the ones.
    void panel_back(const T* x, const T* d_phi, int64_t columns, int64_t first, int64_t count,
                    T* dx) const {
        for (int64_t r = 0; r < count; ++r) {
            const Monomial& one = monomials_[std::size_t(first + r)];
            const Vec<T> c = splat(T(one.coefficient));
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> g = load(d_phi + r * C_ + j) * c;
                const Vec<T> a = load(x + one.a * C_ + j), b = load(x + one.b * C_ + j);
                store(dx + one.a * C_ + j, load(dx + one.a * C_ + j) + g * b);
                store(dx + one.b * C_ + j, load(dx + one.b * C_ + j) + g * a);
            }
        }
    }

  private:
    const T* weight(int64_t which) const {
        return static_cast<const T*>(f_.weight) + which * f_.inputs * f_.columns;
    }

    template <class F> void each(const T* x, int64_t columns, T* out) const {
        for (int64_t r = 0; r < f_.inputs; ++r)
            for (int64_t j = 0; j < columns; j += LANES<T>)
                store(out + r * C_ + j, F::phi(load(x + r * C_ + j)));
    }

    void shifted_exp(const T* x, int64_t rows, int64_t columns, T* out, double* log_scale) const {
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            Vec<T> top = load(x + j);
            for (int64_t r = 1; r < rows; ++r) top = most(top, load(x + r * C_ + j));
            for (int64_t r = 0; r < rows; ++r)
                store(out + r * C_ + j, exp<false>(load(x + r * C_ + j) - top));
            save(top, j, log_scale);
        }
    }

    static void save(Vec<T> top, int64_t j, double* log_scale) {
        T lane[LANES<T>];
        store(lane, top);
        for (int a = 0; a < LANES<T>; ++a) log_scale[j + a] = double(lane[a]);
    }

    std::vector<T> angles(const double* positions, int64_t columns) const {
        std::vector<T> turn(std::size_t(2 * columns));
        const double period = 4 * f_.horizon;
        for (int64_t j = 0; j < columns; ++j) {
            double p = std::fmod(positions[j], period);
            if (p < 0) p += period;
            const double angle = p * (M_PI / (2 * f_.horizon));
            turn[std::size_t(j)] = T(std::cos(angle));
            turn[std::size_t(columns + j)] = T(std::sin(angle));
        }
        return turn;
    }

    void cosformer(const T* x, int64_t columns, const double* positions, T* out) const {
        const std::vector<T> turn = angles(positions, columns);
        for (int64_t r = 0; r < f_.inputs; ++r)
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> y = most(load(x + r * C_ + j), Vec<T>{});
                store(out + r * C_ + j, y * load(turn.data() + j));
                store(out + (f_.inputs + r) * C_ + j, y * load(turn.data() + columns + j));
            }
    }

    // y = Wᵀx, into out; without weights y = x.
    void project(const T* x, int64_t columns, int64_t which, T* out) const {
        if (!f_.weight) {
            std::memcpy(out, x, std::size_t(f_.inputs * C_) * sizeof(T));
            return;
        }
        product(weight(which), int64_t(1), f_.columns, x, C_, f_.inputs, f_.columns, columns, out);
    }

    void hedgehog(const T* x, int64_t columns, int64_t which, T* out, double* log_scale) const {
        const int64_t p = f_.columns;
        const bool separate = f_.map == Map::hedgehog_separate;
        project(x, columns, which, out);
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            Vec<T> top = load(out + j), low = top;
            for (int64_t r = 1; r < p; ++r) {
                const Vec<T> y = load(out + r * C_ + j);
                top = most(top, y);
                low = least(low, y);
            }
            if (!separate) {
                top = most(top, -low);
                low = -top;
            }
            Vec<T> total{}, other{};
            for (int64_t r = 0; r < p; ++r) {
                const Vec<T> y = load(out + r * C_ + j);
                const Vec<T> a = exp<false>(y - top), b = exp<false>(low - y);
                total += separate ? a : a + b;
                other += b;
                store(out + r * C_ + j, a);
                store(out + (p + r) * C_ + j, b);
            }
            if (f_.map == Map::hedgehog_exp) {
                save(top, j, log_scale);
                continue;
            }
            const Vec<T> share = T(1) / total, others = separate ? T(1) / other : share;
            for (int64_t r = 0; r < p; ++r) {
                store(out + r * C_ + j, load(out + r * C_ + j) * share);
                store(out + (p + r) * C_ + j, load(out + (p + r) * C_ + j) * others);
            }
        }
    }

    void t2r(const T* x, int64_t columns, int64_t which, T* out) const {
        const int64_t p = f_.columns;
        project(x, columns, which, out);
        const T* bias =
            f_.bias ? static_cast<const T*>(f_.bias) + which * p : nullptr;
        for (int64_t r = 0; r < p; ++r)
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> y = load(out + r * C_ + j);
                if (bias) y += bias[r];
                store(out + r * C_ + j, most(y, Vec<T>{}));
            }
    }

    // ‖x‖²/2 in float64: an error in it is a relative error of every weight.
    void half_norm(const T* x, int64_t columns, double* out) const {
        for (int64_t j = 0; j < columns; ++j) out[j] = 0;
        for (int64_t r = 0; r < f_.inputs; ++r)
            for (int64_t j = 0; j < columns; ++j) {
                const double y = double(x[r * C_ + j]);
                out[j] += y * y;
            }
        for (int64_t j = 0; j < columns; ++j) out[j] /= 2;
    }

    void favor(const T* x, int64_t columns, T* out, double* log_scale) const {
        const int64_t p = f_.columns;
        const bool both = f_.map == Map::favor_hyperbolic;
        const T share = T(1 / std::sqrt(double(f_.count)));
        project(x, columns, 0, out);
        half_norm(x, columns, log_scale);
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            Vec<T> top = load(out + j);
            if (both) top = most(top, -top);
            for (int64_t r = 1; r < p; ++r) {
                Vec<T> y = load(out + r * C_ + j);
                top = most(top, both ? most(y, -y) : y);
            }
            for (int64_t r = 0; r < p; ++r) {
                Vec<T> y = load(out + r * C_ + j);
                store(out + r * C_ + j, exp<false>(y - top) * share);
                if (both) store(out + (p + r) * C_ + j, exp<false>(-y - top) * share);
            }
            T lane[LANES<T>];
            store(lane, top);
            for (int a = 0; a < LANES<T>; ++a) log_scale[j + a] = double(lane[a]) - log_scale[j + a];
        }
    }

    void trig(const T* x, int64_t columns, T* out, double* log_scale) const {
        const int64_t p = f_.columns;
        const T share = T(1 / std::sqrt(double(p)));
        project(x, columns, 0, out);
        half_norm(x, columns, log_scale);
        for (int64_t r = 0; r < p; ++r)
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> s, c;
                sin_cos<T>(load(out + r * C_ + j), s, c);
                store(out + r * C_ + j, c * share);
                store(out + (p + r) * C_ + j, s * share);
            }
    }

    Features f_;
    int64_t C_;
    std::vector<Monomial> monomials_;
    T *scratch_ = nullptr, *rows_ = nullptr, *d_matrix_ = nullptr;
};

}  // namespace KT_ISA
}  // namespace kt
