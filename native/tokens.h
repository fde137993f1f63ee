// Reading and writing tokens: strides, half precision, hidden tokens, NaN and inf.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "blocks.h"
#include "core.h"
#include "gemm.h"

namespace kt {
extern bool poison;  // tests fill scratch memory with NaN

namespace KT_ISA {

// Scratch memory of one task, freed with it: large pieces by themselves, the others out of chunks.
class Arena {
  public:
    Arena() = default;
    Arena(const Arena&) = delete;
    ~Arena() {
        for (void* chunk : chunks_) give_chunk(chunk);
    }

    template <class T> T* take(int64_t count) {
        const std::size_t bytes = (std::size_t(count > 0 ? count : 1) * sizeof(T) + 127) / 64 * 64;
        void* p = bytes > MOST ? alone(bytes) : piece(bytes);
        if (poison) std::memset(p, 0xFF, bytes);
        return static_cast<T*>(p);
    }

  private:
#if defined(__SANITIZE_ADDRESS__)
    static constexpr std::size_t MOST = 0;  // it sees who reads past a piece only if that is alone
#else
    static constexpr std::size_t MOST = CHUNK_BYTES / 4;
#endif

    void* alone(std::size_t bytes) {
        void* p = std::aligned_alloc(64, bytes);
        if (!p) throw std::bad_alloc();
        alone_.emplace_back(p);
        return p;
    }
    void* piece(std::size_t bytes) {
        if (bytes > left_) {
            chunks_.reserve(chunks_.size() + 1);  // what can fail, before there is a chunk to lose
            chunks_.push_back(take_chunk());
            left_ = CHUNK_BYTES;
        }
        left_ -= bytes;
        return static_cast<char*>(chunks_.back()) + left_;
    }

    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    std::vector<std::unique_ptr<void, Free>> alone_;
    std::vector<void*> chunks_;
    std::size_t left_ = 0;  // of the last chunk
};

inline float widen_half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t magnitude = h & 0x7FFF;
    uint32_t out;
    if (magnitude >= 0x7C00) {
        out = 0x7F800000 | (magnitude & 0x3FF) << 13;
    } else if (magnitude >= 0x0400) {
        out = (magnitude << 13) + 0x38000000;
    } else {
        const float small = float(magnitude) * 5.9604644775390625e-8f;  // 2⁻²⁴
        std::memcpy(&out, &small, 4);
    }
    out |= sign;
    float result;
    std::memcpy(&result, &out, 4);
    return result;
}

inline uint16_t narrow_half(float x) {
    uint32_t b;
    std::memcpy(&b, &x, 4);
    const uint16_t sign = uint16_t(b >> 16 & 0x8000);
    b &= 0x7FFFFFFF;
    if (b > 0x7F800000) return sign | 0x7E00;
    if (b >= 0x477FF000) return sign | 0x7C00;  // rounds beyond the largest half
    if (b < 0x38800000) {                       // subnormal: adding ½ rounds as the half would
        float y;
        std::memcpy(&y, &b, 4);
        y += 0.5f;
        std::memcpy(&b, &y, 4);
        return uint16_t(sign | (b - 0x3F000000));
    }
    return uint16_t(sign | ((b + 0xFFF + (b >> 13 & 1) - 0x38000000) >> 13));
}

inline float widen_bfloat(uint16_t h) {
    const uint32_t out = uint32_t(h) << 16;
    float result;
    std::memcpy(&result, &out, 4);
    return result;
}

inline uint16_t narrow_bfloat(float x) {
    uint32_t b;
    std::memcpy(&b, &x, 4);
    if ((b & 0x7FFFFFFF) > 0x7F800000) return uint16_t(b >> 16 | 0x40);
    return uint16_t((b + 0x7FFF + (b >> 16 & 1)) >> 16);
}

template <class T> KT_INLINE T read(const char* p, Type type) {
    switch (type) {
        case Type::f32: {
            float x;
            std::memcpy(&x, p, 4);
            return T(x);
        }
        case Type::f64: {
            double x;
            std::memcpy(&x, p, 8);
            return T(x);
        }
        default: {
            uint16_t x;
            std::memcpy(&x, p, 2);
            return T(type == Type::f16 ? widen_half(x) : widen_bfloat(x));
        }
    }
}

template <class T> KT_INLINE void write(char* p, Type type, T x) {
    switch (type) {
        case Type::f32: {
            const float y = float(x);
            std::memcpy(p, &y, 4);
            return;
        }
        case Type::f64: {
            const double y = double(x);
            std::memcpy(p, &y, 8);
            return;
        }
        default: {
            const uint16_t y = type == Type::f16 ? narrow_half(float(x)) : narrow_bfloat(float(x));
            std::memcpy(p, &y, 2);
        }
    }
}

template <class T> constexpr Type type_of = sizeof(T) == 4 ? Type::f32 : Type::f64;

inline int64_t size_of(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// Whether tokens can be used where they lie: the type of arithmetic, unit stride, aligned.
template <class T> inline bool direct(const View& view, Type type, int64_t row, int64_t width) {
    return type == type_of<T> && (view.element == int64_t(sizeof(T)) || width == 1) &&
           view.token % int64_t(sizeof(T)) == 0 &&
           reinterpret_cast<uintptr_t>(view.at(row, 0)) % sizeof(T) == 0;
}

template <class T> inline bool all_finite(const T* x, int64_t count) {
    Vec<T> check{};  // 0 · x is 0 for finite x and NaN otherwise
    int64_t i = 0;
    for (; i + LANES<T> <= count; i += LANES<T>) check += load(x + i) * T(0);
    T rest = sum<T>(check);
    for (; i < count; ++i) rest += x[i] * T(0);
    return rest == T(0);
}

// `width` numbers of a token into dst, times `factor`.
template <class T>
inline void read_token(const View& view, Type type, int64_t row, int64_t t, int64_t width, T factor,
                       T* dst) {
    const char* p = view.at(row, t);
    const int64_t step = view.element;
    if (step == 0 && width > 0) {  // one number for all of them
        std::fill(dst, dst + width, read<T>(p, type) * factor);
        return;
    }
    if (type == type_of<T> && step == int64_t(sizeof(T))) {
        std::memcpy(dst, p, std::size_t(width) * sizeof(T));
        if (factor != T(1))
            for (int64_t i = 0; i < width; ++i) dst[i] *= factor;
        return;
    }
    switch (type) {  // outside the loop, so that each loop is a plain one
        case Type::f32:
            for (int64_t i = 0; i < width; ++i) dst[i] = read<T>(p + i * step, Type::f32) * factor;
            return;
        case Type::f64:
            for (int64_t i = 0; i < width; ++i) dst[i] = read<T>(p + i * step, Type::f64) * factor;
            return;
        case Type::f16:
            for (int64_t i = 0; i < width; ++i) dst[i] = read<T>(p + i * step, Type::f16) * factor;
            return;
        case Type::bf16:
            for (int64_t i = 0; i < width; ++i) dst[i] = read<T>(p + i * step, Type::bf16) * factor;
            return;
    }
}

// The same; false if a number comes out that is not finite.
template <class T>
inline bool read_finite(const View& view, Type type, int64_t row, int64_t t, int64_t width, T factor,
                        T* dst) {
    if (!direct<T>(view, type, row, width) || width % LANES<T>) {
        read_token(view, type, row, t, width, factor, dst);
        return all_finite(dst, width);
    }
    const T* x = reinterpret_cast<const T*>(view.at(row, t));
    Vec<T> check{};
    for (int64_t i = 0; i < width; i += LANES<T>) {
        const Vec<T> y = load(x + i) * factor;
        check += y * T(0);
        store(dst + i, y);
    }
    return sum<T>(check) == T(0);
}

template <class T>
inline void write_token(const View& view, Type type, int64_t row, int64_t t, int64_t width,
                        const T* src) {
    char* p = view.at(row, t);
    const int64_t step = view.element;
    if (type == type_of<T> && step == int64_t(sizeof(T))) {
        std::memcpy(p, src, std::size_t(width) * sizeof(T));
        return;
    }
    switch (type) {
        case Type::f32:
            for (int64_t i = 0; i < width; ++i) write<T>(p + i * step, Type::f32, src[i]);
            return;
        case Type::f64:
            for (int64_t i = 0; i < width; ++i) write<T>(p + i * step, Type::f64, src[i]);
            return;
        case Type::f16:
            for (int64_t i = 0; i < width; ++i) write<T>(p + i * step, Type::f16, src[i]);
            return;
        case Type::bf16:
            for (int64_t i = 0; i < width; ++i) write<T>(p + i * step, Type::bf16, src[i]);
            return;
    }
}

// The tokens of a block, one side of it: x + i·stride for token i.
template <class T> struct Block {
    const T* x = nullptr;
    int64_t stride = 0;
    bool any_hidden = false, any_bad = false;
    std::vector<uint8_t> hidden;  // per token
    std::vector<uint8_t> bad;     // per token (q, k), or per token and column (v)
};

// Tokens t … t + n − 1 of a row, times `root`: where they lie if they can be used there, else copied
// into the buffer, with `fill` where they are hidden and zeros from `width` up to the stride.
template <class T>
void fetch(const View& view, Type type, int64_t row, int64_t t, int64_t n, int64_t width, int64_t stride,
           T root, T fill, const View& mask, int64_t mask_row, T* buffer, Block<T>& out) {
    out.any_hidden = out.any_bad = false;
    out.hidden.assign(std::size_t(n), 0);
    if (mask.data)
        for (int64_t i = 0; i < n; ++i)
            out.any_hidden |= (out.hidden[std::size_t(i)] = !*mask.at(mask_row, t + i)) != 0;
    if (!out.any_hidden && root == T(1) && stride == width && direct<T>(view, type, row, width)) {
        out.x = reinterpret_cast<const T*>(view.at(row, t));
        out.stride = view.token / int64_t(sizeof(T));
        return;
    }
    out.x = buffer;
    out.stride = stride;
    for (int64_t i = 0; i < n; ++i) {
        T* to = buffer + i * stride;
        if (out.hidden[std::size_t(i)]) {
            std::fill(to, to + width, fill);
        } else {
            read_token<T>(view, type, row, t + i, width, root, to);
        }
        std::fill(to + width, to + stride, T(0));
    }
}

// Whether tokens from … to − 1 of a block are finite.
template <class T> bool finite(const Block<T>& block, int64_t from, int64_t to, int64_t width) {
    if (to <= from) return true;
    if (block.stride == width) return all_finite(block.x + from * width, (to - from) * width);
    bool fine = true;
    for (int64_t i = from; i < to && fine; ++i) fine = all_finite(block.x + i * block.stride, width);
    return fine;
}

// Replaces what is not finite by `fill` and notes it: per token, or per token and column.
template <class T>
void clean(Block<T>& block, int64_t n, int64_t width, int64_t stride, T fill, bool by_column, T* buffer) {
    if (finite(block, 0, n, width)) return;
    if (block.x != buffer) {
        for (int64_t i = 0; i < n; ++i) {
            std::copy(block.x + i * block.stride, block.x + i * block.stride + width,
                      buffer + i * stride);
            std::fill(buffer + i * stride + width, buffer + (i + 1) * stride, T(0));
        }
        block.x = buffer;
        block.stride = stride;
    }
    block.bad.assign(std::size_t(by_column ? n * width : n), 0);
    block.any_bad = true;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t f = 0; f < width; ++f)
            if (!std::isfinite(buffer[i * stride + f])) {
                buffer[i * stride + f] = fill;
                block.bad[std::size_t(by_column ? i * width + f : i)] = 1;
            }
}

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

}  // namespace KT_ISA
}  // namespace kt
