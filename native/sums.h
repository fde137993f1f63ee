// U = Σφ(k)vᵀ and Z = Σφ(k) of a row: the state between its blocks.
#pragma once

#include "sizes.h"

namespace kt {
namespace KT_ISA {

// Half a register of float32, which is as many numbers as a register of Wide<float> has.
typedef float Half __attribute__((vector_size(KT_VECTOR_BYTES / 2)));
constexpr int HALF = KT_VECTOR_BYTES / 8;

KT_INLINE void split(Vec<float> x, Half* half) { __builtin_memcpy(half, &x, sizeof x); }
KT_INLINE Vec<double> widen(Half x) { return __builtin_convertvector(x, Vec<double>); }

// x · keep; where T has no number as small as keep, x is forgotten even if it has overflowed.
template <class T> KT_INLINE Vec<double> faded(Vec<double> x, double keep) {
    x *= keep;
    return T(keep) == T(0) ? masked<double>(x, x - x == Vec<double>{}) : x;
}
template <class T> KT_INLINE double faded(double x, double keep) {
    x *= keep;
    return T(keep) == T(0) && !std::isfinite(x) ? 0 : x;
}

// wide += acc (all factors 1), or wide = wide·keep + acc·add; narrow gets the result.
template <class T>
KT_INLINE void accumulate(Wide<T>* wide, T* narrow, Vec<T> acc, bool scaled, double keep, double add) {
    if constexpr (sizeof(T) == 8) {
        Vec<double> x = load(wide);
        x = scaled ? faded<T>(x, keep) + acc * add : x + acc;
        store(wide, x);
        store(narrow, (Vec<T>)x);
    } else {
        Half part[2], out[2];
        split(acc, part);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            Vec<double> x = load(wide + i * HALF), y = widen(part[i]);
            x = scaled ? faded<T>(x, keep) + y * add : x + y;
            store(wide + i * HALF, x);
            out[i] = __builtin_convertvector(x, Half);
        }
        __builtin_memcpy(narrow, out, sizeof out);
    }
}

// narrow + rest += acc: what the sum loses by rounding is the new rest (Knuth's two-sum).
template <class T> KT_INLINE void accumulate_pair(T* narrow, T* rest, Vec<T> acc) {
    const Vec<T> x = load(narrow), y = acc + load(rest);
    const Vec<T> sum = x + y, added = sum - x;
    store(narrow, sum);
    store(rest, (x - (sum - added)) + (y - added));
}

// wide += a·b in float64.
template <class T> KT_INLINE void add_product(Wide<T>* wide, Vec<T> a, Vec<T> b) {
    if constexpr (sizeof(T) == 8) {
        store(wide, load(wide) + a * b);
    } else {
        Half x[2], y[2];
        split(a, x);
        split(b, y);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
            store(wide + i * HALF, load(wide + i * HALF) + widen(x[i]) * widen(y[i]));
    }
}

// What one block of a row adds to the sums, and then the sums before that block.
template <class T> struct Stop {
    std::vector<T> u, z;
    std::vector<uint8_t> bad;
    bool empty = false;
};

// In Wide<T>, and in the type of arithmetic to multiply with. Where sums are only ever added to
// (Sizes::pairs), U is not kept up: it is u + rest, two floats that add faster. A call that has no state
// begins with `empty` sums, which nobody looks at: not even zeros are written.
template <class T> struct Sums {
    Wide<T> *U = nullptr, *Z = nullptr;
    T *u = nullptr, *z = nullptr, *rest = nullptr;
    double ref = -INF;  // their log-scale
    std::vector<uint8_t> bad;
    bool any_bad = false;
    bool empty = false;  // all 0, whatever the memory holds

    Sums(const Sizes<T>& s, Arena& arena)
        : U(arena.take<Wide<T>>(s.m * s.Mp)), Z(arena.take<Wide<T>>(s.m)),
          u(arena.take<T>(s.m * s.Mp)), z(arena.take<T>(s.m)),
          rest(s.pairs ? arena.take<T>(s.m * s.Mp) : nullptr), bad(std::size_t(s.M + 1)) {}

    // The sums of a state, or none.
    void read(const Sizes<T>& s, const double* sums) {
        if ((empty = !sums)) return;
        for (int64_t r = 0; r < s.m; ++r) {
            for (int64_t c = 0; c < s.Mp; ++c) U[r * s.Mp + c] = c < s.M ? sums[r * (s.M + 1) + c] : 0;
            Z[r] = sums[r * (s.M + 1) + s.M];
        }
        narrow(s);
    }

    void write(const Sizes<T>& s, double* sums) {
        if (!sums) return;
        fill(s);
        for (int64_t r = 0; r < s.m; ++r) {
            for (int64_t c = 0; c < s.M; ++c) {
                const int64_t i = r * s.Mp + c;
                sums[r * (s.M + 1) + c] = rest ? double(u[i]) + double(rest[i]) : U[i];
            }
            sums[r * (s.M + 1) + s.M] = Z[r];
        }
    }

    // The state before row r, if there is one; a call that goes backwards through its tokens has none.
    void begin(const Sizes<T>& s, int64_t r) {
        if (s.p.reversed) return forget(s);
        empty = true;
        ref = -INF;
        set_bad(nullptr);
        if (!s.p.sums) return;
        read(s, s.p.sums + r * s.m * (s.M + 1));
        if (s.has_scale) ref = s.p.log_scale[r];
        set_bad(s.p.bad ? s.p.bad + r * (s.M + 1) : nullptr);
    }

    // And after it, if anybody wants it.
    void end(const Sizes<T>& s, int64_t r) {
        if (!s.p.sums) return;
        write(s, s.p.sums + r * s.m * (s.M + 1));
        if (s.has_scale) s.p.log_scale[r] = ref;
        if (s.p.bad) std::copy(bad.begin(), bad.end(), s.p.bad + r * (s.M + 1));
    }

    // u, z = U, Z in the type of arithmetic; row r times factor[r], or all times factor[0].
    void narrow(const Sizes<T>& s, const double* factor = nullptr, bool by_row = false) {
        for (int64_t r = 0; r < s.m && !empty; ++r) {
            const double f = factor ? factor[by_row ? r : 0] : 1;
            for (int64_t c = 0; c < s.Mp; ++c) u[r * s.Mp + c] = T(faded<T>(U[r * s.Mp + c], f));
            z[r] = T(faded<T>(Z[r], f));
        }
        for (int64_t i = 0; i < s.m * s.Mp && rest && !empty; ++i) rest[i] = T(U[i] - double(u[i]));
    }

    // U, Z times keep, of a feature or of all.
    void fade(const Sizes<T>& s, const double* keep) {
        for (int64_t f = 0; f < s.m; ++f) {
            const double kept = keep[s.by_feature ? f : 0];
            for (int64_t c = 0; c < s.Mp; ++c) {
                Wide<T>& value = U[f * s.Mp + c];
                value = faded<T>(value, kept);
            }
            Z[f] = faded<T>(Z[f], kept);
        }
    }

    // As before the first token.
    void forget(const Sizes<T>& s) {
        empty = true;
        fill(s);
        ref = -INF;
        set_bad(nullptr);
    }

    // Empty sums become zeros in memory, before something is added to them.
    void fill(const Sizes<T>& s) {
        if (!std::exchange(empty, false)) return;
        const int64_t size = s.m * s.Mp;
        rest ? (void)std::fill(rest, rest + size, T(0)) : std::fill(U, U + size, Wide<T>(0));
        std::fill(u, u + size, T(0));
        std::fill(Z, Z + s.m, Wide<T>(0));
        std::fill(z, z + s.m, T(0));
    }

    // f() with the sums that a stop has, to be read.
    template <class F> void with(Stop<T>& stop, F&& f) {
        T* const own[] = {u, z};
        u = stop.u.data();
        z = stop.z.data();
        empty = stop.empty;
        set_bad(stop.bad.data());
        f();
        u = own[0];
        z = own[1];
    }

    void set_bad(const uint8_t* flags) {
        any_bad = false;
        for (std::size_t c = 0; c < bad.size(); ++c) any_bad |= (bad[c] = flags ? flags[c] : 0) != 0;
    }
};

}  // namespace KT_ISA
}  // namespace kt
