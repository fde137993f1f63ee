// The delta rule: sizes, and the tokens of a chunk as they are used.
#pragma once

#include <limits>

#include "lanes.h"
#include "operators.h"

namespace kt {
namespace KT_ISA {

constexpr int64_t CHUNK = 32;          // tokens solved at once: whole tiles, little above the diagonal
constexpr int64_t KEPT_TOKENS = 256;   // from one state that is kept for the gradient to the next
constexpr int64_t MARGIN = TILE_ROWS;  // rows after the last token, which a tile may read

// f(rows of a tile, first row) for tiles that cover an even number of rows, at least 4: of 6, then of 4.
template <class F> KT_INLINE void even_rows(int64_t rows, F&& f) {
    const int64_t fours = rows % 6 == 0 ? 0 : rows % 6 == 4 ? 1 : 2, sixes = (rows - 4 * fours) / 6;
    for (int64_t i = 0; i < sixes; ++i) f(std::integral_constant<int, 6>{}, 6 * i);
    for (int64_t i = 0; i < fours; ++i) f(std::integral_constant<int, 4>{}, 6 * sixes + 4 * i);
}
// The same, from the last tile to the first.
template <class F> KT_INLINE void even_rows_back(int64_t rows, F&& f) {
    const int64_t fours = rows % 6 == 0 ? 0 : rows % 6 == 4 ? 1 : 2, sixes = (rows - 4 * fours) / 6;
    for (int64_t i = fours; i-- > 0;) f(std::integral_constant<int, 4>{}, 6 * sixes + 4 * i);
    for (int64_t i = sixes; i-- > 0;) f(std::integral_constant<int, 6>{}, 6 * i);
}
inline int64_t even(int64_t rows) { return rows < 4 ? 4 : rows + rows % 2; }

template <class T> struct DeltaSizes {
    static constexpr int64_t W = TILE_COLUMNS<T>;  // columns of a panel
    const DeltaRule& p;
    const int64_t d, M;
    const int64_t dp, Mp;  // d and M in whole tiles
    const int64_t ds, Ms;  // numbers from one token to the next
    const int64_t dr;      // d in even rows
    const int64_t Cp = round_up(CHUNK, W);
    const int64_t rows;  // of buffers of tokens
    const bool by_token, by_feature;
    const bool erases, reads;  // x and e are given

    explicit DeltaSizes(const DeltaRule& p, int64_t rows = CHUNK + MARGIN)
        : p(p), d(p.inputs), M(p.width), dp(round_up(d, W)), Mp(round_up(M, W)), ds(apart(dp)),
          Ms(apart(Mp)), dr(even(d)), rows(rows),
          by_token(p.log_decay.data && p.decay_width == 1 && d > 0),
          by_feature(p.log_decay.data && p.decay_width > 1), erases(p.erase.data), reads(p.read.data) {}

    // Tokens whose distance is a power of 2 would push each other out of the cache.
    static int64_t apart(int64_t width) { return width % 64 ? width : width + W; }

    bool hidden(int64_t row, int64_t t) const { return p.mask.data && !*p.mask.at(row, t); }
    bool restarts(int64_t row, int64_t t) const { return p.restart.data && *p.restart.at(row, t); }

    // Tokens of the chunk that begins at t: to the next multiple of its length, counted from the beginning
    // of the text, or to the next restart.
    int64_t extent(int64_t row, int64_t t) const {
        const int64_t n = std::min(p.tokens - t, CHUNK - (p.start + t) % CHUNK);
        for (int64_t j = 1; j < n && p.restart.data; ++j)
            if (restarts(row, t + j)) return j;
        return n;
    }
};

// `width` numbers at p. Those that lie side by side are read in vectors.
template <class T> inline void read_numbers(const char* p, Type type, int64_t step, int64_t width, T* dst) {
    if (type == type_of<T> && step == int64_t(sizeof(T))) {
        std::memcpy(dst, p, std::size_t(width) * sizeof(T));
        return;
    }
    int64_t i = 0;
    if (type == Type::bf16 && step == 2) {
        for (; i < width; ++i) dst[i] = read<T>(p + 2 * i, Type::bf16);
        return;
    }
#if defined(__F16C__)
    if constexpr (sizeof(T) == 4)
        for (; type == Type::f16 && step == 2 && i + 8 <= width; i += 8)
            _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2 * i))));
#endif
    for (; i < width; ++i) dst[i] = read<T>(p + i * step, type);
}

// And written.
template <class T> inline void write_numbers(char* p, Type type, int64_t step, int64_t width, const T* src) {
    if (type == type_of<T> && step == int64_t(sizeof(T))) {
        std::memcpy(p, src, std::size_t(width) * sizeof(T));
        return;
    }
    int64_t i = 0;
    if (type == Type::bf16 && step == 2) {
        for (; i < width; ++i) {
            const float x = float(src[i]);
            uint32_t b;
            std::memcpy(&b, &x, 4);
            const uint32_t nan = (b >> 16) | 0x40, rounded = (b + 0x7FFF + (b >> 16 & 1)) >> 16;
            const uint16_t h = uint16_t((b & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
            std::memcpy(p + 2 * i, &h, 2);
        }
        return;
    }
#if defined(__F16C__)
    if constexpr (sizeof(T) == 4)
        for (; type == Type::f16 && step == 2 && i + 8 <= width; i += 8)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 2 * i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
#endif
    for (; i < width; ++i) write<T>(p + i * step, type, src[i]);
}

// A token in whole vectors: Σ x², and whether all of it is finite.
template <class T> struct Looked {
    T squares;
    bool finite;
};
template <class T> KT_INLINE Looked<T> look(const T* x, int64_t count, T* copy = nullptr) {
    Vec<T> squares{}, check{};
    for (int64_t i = 0; i < count; i += LANES<T>) {
        const Vec<T> y = load(x + i);
        squares += y * y;
        check += y * T(0);
        if (copy) store(copy + i, y);
    }
    return {sum<T>(squares), sum<T>(check) == T(0)};
}

template <class T> KT_INLINE void multiply(T* x, T factor, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES<T>) store(x + i, load(x + i) * factor);
}

// The tokens of a chunk, in rows of `ds` numbers (v: Ms), 0 where they are hidden, where a number is not
// finite, and after the last.
template <class T> class DeltaTokens {
  public:
    DeltaTokens(const DeltaSizes<T>& s, Arena& arena)
        : q(arena.take<T>(s.rows * s.ds)), k(arena.take<T>(s.rows * s.ds)),
          e(s.reads ? arena.take<T>(s.rows * s.ds) : k), x(s.erases ? arena.take<T>(s.rows * s.ds) : k),
          v(arena.take<T>(s.rows * s.Ms)), g(s.by_feature ? arena.take<T>(s.rows * s.ds) : nullptr),
          beta(arena.take<T>(s.rows)), decay(arena.take<double>(s.rows)), root_q(arena.take<T>(s.rows)),
          root_k(arena.take<T>(s.rows)), s(s), p(s.p), hidden(std::size_t(s.rows)), bad_q(std::size_t(s.rows)),
          from(std::size_t(s.Mp)) {}

    T *q, *k, *e, *x, *v;  // q times `scale`; x is minus the erase vector, where there is one
    T* g;                  // log-decays of features
    T* beta;
    double* decay;         // the log-decay of a token
    T *root_q, *root_k;    // what q and k were multiplied by, without `scale`
    int64_t count = 0;
    bool any = false;      // a token is not hidden
    bool any_bad = false;  // a number of one is not finite

    void load(int64_t row, int64_t t, int64_t n) {
        count = n;
        any = any_bad = false;
        std::fill(from.begin(), from.end(), n);
        for (int64_t i = 0; i < n; ++i) {
            hidden[std::size_t(i)] = s.hidden(row, t + i);
            bad_q[std::size_t(i)] = 0;
            if (hidden[std::size_t(i)])
                clear(i);
            else
                load_one(row, t, i);
            any = any || !hidden[std::size_t(i)];
        }
        for (int64_t i = n; i < std::min(n + MARGIN, s.rows); ++i) clear(i);
    }

    const DeltaSizes<T>& s;
    const DeltaRule& p;
    std::vector<uint8_t> hidden, bad_q;
    std::vector<int64_t> from;  // the first token from which a column is NaN, or `count`

  private:
    void clear(int64_t i) {
        for (T* y : {q, k, e, x, g})
            if (y) std::fill(y + i * s.ds, y + (i + 1) * s.ds, T(0));
        std::fill(v + i * s.Ms, v + (i + 1) * s.Ms, T(0));
        beta[i] = root_q[i] = root_k[i] = 0;
        decay[i] = 0;
    }

    Looked<T> fetch(const View& view, int64_t row, int64_t t, int64_t width, int64_t stride, T* to) {
        std::fill(to + width, to + stride, T(0));
        const char* at = view.at(row, t);
        const bool aligned = reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0;
        const bool plain = p.type == type_of<T> && view.element == int64_t(sizeof(T)) && width % LANES<T> == 0;
        if (aligned && plain) return look(reinterpret_cast<const T*>(at), width, to);
        read_numbers(at, p.type, view.element, width, to);
        return look(to, stride);
    }

    void load_one(int64_t row, int64_t t, int64_t i) {
        const int64_t ds = s.ds, kr = row / p.groups;
        const auto [qq, q_fine] = fetch(p.q, kr, t + i, s.d, ds, q + i * ds);
        const auto [kk, k_fine] = fetch(p.k, kr, t + i, s.d, ds, k + i * ds);
        bool fine = k_fine;
        root_q[i] = p.normalize ? T(1) / std::sqrt(qq + T(1e-6)) : T(1);
        root_k[i] = p.normalize ? T(1) / std::sqrt(kk + T(1e-6)) : T(1);
        const T factor = root_q[i] * T(p.scale);
        if (factor != T(1)) multiply(q + i * ds, factor, ds);
        if (p.normalize) multiply(k + i * ds, root_k[i], ds);
        if (s.reads) fine &= fetch(p.read, kr, t + i, s.d, ds, e + i * ds).finite;
        if (s.erases) {
            fine &= fetch(p.erase, kr, t + i, s.d, ds, x + i * ds).finite;
            multiply(x + i * ds, T(-1), ds);
        }
        beta[i] = p.beta.data ? read<T>(p.beta.at(row, t + i), type_of<T>) : T(1);
        fine &= std::isfinite(beta[i]);
        decay[i] = s.by_token ? double(read<T>(p.log_decay.at(row, t + i), type_of<T>)) : 0;
        fine &= std::isfinite(decay[i]);
        if (s.by_feature) {
            read_numbers(p.log_decay.at(row, t + i), type_of<T>, p.log_decay.element, s.d, g + i * ds);
            std::fill(g + i * ds + s.d, g + (i + 1) * ds, T(0));
            fine &= look(g + i * ds, ds).finite;
        }
        if (!fetch(p.v, row, t + i, s.M, s.Ms, v + i * s.Ms).finite) spoil_values(i);
        any_bad = any_bad || !fine || !q_fine;
        if (!q_fine) {
            bad_q[std::size_t(i)] = 1;
            std::fill(q + i * ds, q + (i + 1) * ds, T(0));
        }
        if (!fine) {
            for (int64_t& first : from) first = std::min(first, i);
            const uint8_t keep = bad_q[std::size_t(i)];
            clear(i);
            bad_q[std::size_t(i)] = keep;
        }
    }

    void spoil_values(int64_t i) {
        any_bad = true;
        for (int64_t c = 0; c < s.M; ++c)
            if (!std::isfinite(v[i * s.Ms + c])) {
                v[i * s.Ms + c] = 0;
                from[std::size_t(c)] = std::min(from[std::size_t(c)], i);
            }
    }
};

}  // namespace KT_ISA
}  // namespace kt
