#include "memory.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace fuzz {

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw Failure{text};
}

std::string at_index(std::initializer_list<int64_t> indices) {
    std::string text = "[";
    for (int64_t i : indices) text += (text.size() > 1 ? ", " : "") + std::to_string(i);
    return text + "]";
}

struct Half {
    int digits, bits, bias;  // of the significand, of its stored part, of the exponent
};
constexpr Half HALF{11, 10, 15}, BFLOAT{8, 7, 127};

double decode_half(uint16_t word, Half h) {
    const int field = (word & 0x7FFF) >> h.bits, top = 0x7FFF >> h.bits;
    const int rest = word & ((1 << h.bits) - 1);
    double x;
    if (field == top)
        x = rest ? NOT : INF;
    else
        x = std::ldexp(field ? rest + (1 << h.bits) : rest, std::max(field, 1) - h.bias - h.bits);
    return word & 0x8000 ? -x : x;
}

uint16_t encode_half(double x, Half h) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const uint16_t top = uint16_t((0x7FFF >> h.bits) << h.bits);
    x = std::fabs(x);
    if (std::isnan(x)) return uint16_t(top | 1 << (h.bits - 1));
    if (x == 0) return sign;
    int exponent;
    std::frexp(x, &exponent);
    exponent = std::max(exponent - h.digits, 1 - h.bias - h.bits);
    if (std::isinf(x)) return sign | top;
    const double whole = std::nearbyint(std::ldexp(x, -exponent));  // to even
    // A whole number of 2^digits carries into the exponent by itself.
    const double word = whole + double(exponent - (1 - h.bias - h.bits)) * (1 << h.bits);
    return uint16_t(sign | (word >= top ? top : uint16_t(word)));
}

double decode(const char* p, Kind kind) {
    if (kind == Kind::byte) return uint8_t(*p);
    if (kind == Kind::f64) {
        double x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    if (kind == Kind::f32) {
        float x;
        std::memcpy(&x, p, sizeof x);
        return double(x);
    }
    uint16_t x;
    std::memcpy(&x, p, sizeof x);
    return decode_half(x, kind == Kind::f16 ? HALF : BFLOAT);
}

void encode(char* p, Kind kind, double x) {
    if (kind == Kind::byte) {
        *p = char(int(x));
    } else if (kind == Kind::f64) {
        std::memcpy(p, &x, sizeof x);
    } else if (kind == Kind::f32) {
        const float y = std::fabs(x) > 3.4028235677973364e38 ? float(x > 0 ? INF : -INF) : float(x);
        std::memcpy(p, &y, sizeof y);
    } else {
        const uint16_t y = encode_half(x, kind == Kind::f16 ? HALF : BFLOAT);
        std::memcpy(p, &y, sizeof y);
    }
}

double rounded(double x, Kind kind) {
    char word[8];
    encode(word, kind, x);
    return decode(word, kind);
}

bool same(double a, double b) {
    return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

Grid make_grid(Random& random, int64_t rows, int64_t tokens, int64_t width, Kind kind, For use,
               bool plain) {
    Grid g;
    g.rows = rows;
    g.tokens = tokens;
    g.width = width;
    g.kind = kind;
    const int64_t size = size_of(kind), guard = use == For::writing ? 128 : 0;
    const int64_t count[3] = {rows, tokens, width};
    int64_t stride[3];
    int order[3] = {2, 1, 0};  // innermost first
    plain = plain || random.chance(0.45);
    if (!plain)
        for (int i = 2; i > 0; --i)
            if (random.chance(0.4)) std::swap(order[i], order[random.between(0, i)]);
    int64_t step = size, lowest = 0, highest = 0;
    for (int axis : order) {
        if (!plain && random.chance(0.3)) step += random.pick<int64_t>({1, 2, 5}) * size;
        if (!plain && random.chance(0.05)) step += random.between(1, 7);  // not even aligned
        stride[axis] = step;
        step *= std::max<int64_t>(count[axis], 1);
        if (!plain && random.chance(0.12)) stride[axis] *= -1;
        if (!plain && use == For::reading && random.chance(0.08)) {  // broadcast
            step = std::max<int64_t>(step / std::max<int64_t>(count[axis], 1), size);
            stride[axis] = 0;
        }
        const int64_t reach = stride[axis] * (std::max<int64_t>(count[axis], 1) - 1);
        (reach < 0 ? lowest : highest) += reach;
    }
    const int64_t shift = guard + (!plain && random.chance(0.15) ? random.between(1, 63) : 0);
    g.memory = Bytes(shift + highest - lowest + size + guard, use == For::writing ? GAP : 0);
    g.token = stride[1];
    g.element = stride[2];
    for (int64_t r = 0; r < std::max<int64_t>(rows, 1); ++r)
        g.offset.push_back(shift - lowest + r * stride[0]);
    if (use == For::writing)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t t = 0; t < tokens; ++t)
                for (int64_t e = 0; e < width; ++e)
                    std::memset(g.at(r, t, e), 0xFF, std::size_t(size));  // NaN
    return g;
}

void check_gaps(const Grid& g, const char* name) {
    std::vector<uint8_t> owned(std::size_t(g.memory.size()), 0);
    for (int64_t r = 0; r < g.rows; ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e)
                std::memset(owned.data() + (g.at(r, t, e) - g.memory.data()), 1,
                            std::size_t(size_of(g.kind)));
    for (int64_t i = 0; i < g.memory.size(); ++i)
        if (!owned[std::size_t(i)] && uint8_t(g.memory.data()[i]) != GAP)
            fail("%s: byte %lld outside its elements was written", name, (long long)i);
}

}  // namespace fuzz
