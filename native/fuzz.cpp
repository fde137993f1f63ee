// A fuzzer of the kernels, without Python. Every case is made from the seed and its number, and
// compared with a plain loop over tokens in long double. -DKT_SANITIZE=… builds it, `make sanitize`
// runs it; after a failure it prints the options that repeat the case.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "blocks.h"
#include "core.h"
#include "pool.h"

namespace kt {
extern bool poison;  // scratch memory begins as NaN
}

namespace {

using kt::Features;
using kt::Map;
using kt::Problem;
using kt::Type;
using Real = long double;

constexpr Real NONE = -std::numeric_limits<Real>::infinity();
constexpr double NOT = std::numeric_limits<double>::quiet_NaN();
constexpr double INF = std::numeric_limits<double>::infinity();

struct Failure {
    std::string what;
};

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

// splitmix64: the same numbers on every machine.
class Random {
  public:
    Random(uint64_t seed, uint64_t number) : state_(seed * 0xD1342543DE82EF95 + number) { next(); }

    uint64_t next() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        return z ^ z >> 31;
    }
    double uniform() { return double(next() >> 11) * 0x1p-53; }
    bool chance(double p) { return uniform() < p; }
    int64_t between(int64_t low, int64_t high) {
        return low + int64_t(next() % uint64_t(high - low + 1));
    }
    double normal() {  // nearly: four uniform numbers, of variance 1 together
        const uint64_t a = next(), b = next();
        const uint64_t sum = uint32_t(a) + (a >> 32) + uint32_t(b) + (b >> 32);
        return (double(sum) * 0x1p-32 - 2) * 1.7320508075688772;
    }
    template <class V> V pick(std::initializer_list<V> from) {
        return from.begin()[between(0, int64_t(from.size()) - 1)];
    }

  private:
    uint64_t state_;
};

// Memory of exactly so many bytes, so that the sanitizer sees the first byte beyond.
class Bytes {
  public:
    Bytes() = default;
    explicit Bytes(int64_t size, int fill = 0) : size_(std::max<int64_t>(size, 1)) {
        data_ = static_cast<char*>(::operator new(std::size_t(size_), std::align_val_t(64)));
        std::memset(data_, fill, std::size_t(size_));
    }
    Bytes(const Bytes& other) { *this = other; }
    Bytes(Bytes&& other) noexcept { swap(other); }
    Bytes& operator=(const Bytes& other) {
        if (this == &other) return *this;
        Bytes copy;
        if (other.data_) {
            copy = Bytes(other.size_);
            std::memcpy(copy.data_, other.data_, std::size_t(size_ = other.size_));
        }
        swap(copy);
        return *this;
    }
    Bytes& operator=(Bytes&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Bytes() { ::operator delete(data_, std::align_val_t(64)); }

    char* data() const { return data_; }
    int64_t size() const { return size_; }

  private:
    void swap(Bytes& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }
    char* data_ = nullptr;
    int64_t size_ = 0;
};

enum class Kind { f32, f64, f16, bf16, byte };  // the first four as kt::Type

Kind kind_of(Type type) { return Kind(int(type)); }
Kind arithmetic(Type type) { return type == Type::f64 ? Kind::f64 : Kind::f32; }
int64_t size_of(Kind kind) {
    return kind == Kind::byte ? 1 : kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2;
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

constexpr int GAP = 0xA5;  // what stands between and around elements that are written

// (rows, tokens, width) in memory with strides of any sort.
struct Grid {
    Bytes memory;
    std::vector<int64_t> offset;
    int64_t rows = 0, tokens = 0, width = 0, token = 0, element = 0;
    Kind kind = Kind::f32;

    bool exists() const { return !offset.empty(); }
    char* at(int64_t r, int64_t t, int64_t e) const {
        return memory.data() + offset[std::size_t(r)] + t * token + e * element;
    }
    double get(int64_t r, int64_t t, int64_t e = 0) const { return decode(at(r, t, e), kind); }
    void set(int64_t r, int64_t t, int64_t e, double x) const { encode(at(r, t, e), kind, x); }
    kt::View view() const {
        kt::View v;
        if (!exists()) return v;
        v.data = memory.data();
        v.offset = offset.data();
        v.token = token;
        v.element = element;
        return v;
    }
};

enum class For { reading, writing };

Grid make_grid(Random& random, int64_t rows, int64_t tokens, int64_t width, Kind kind, For use,
               bool plain = false) {
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

// A contiguous array with guard bands; `exists` false stands for a null pointer.
template <class V> struct Array {
    static constexpr int64_t GUARD = 128;
    Bytes memory;
    int64_t count = 0;
    bool exists = false;

    Array() = default;
    Array(int64_t n, int fill)
        : memory(n * int64_t(sizeof(V)) + 2 * GUARD, GAP), count(n), exists(true) {
        std::memset(memory.data() + GUARD, fill, std::size_t(n) * sizeof(V));
    }
    explicit Array(const std::vector<V>& from) : Array(int64_t(from.size()), 0) {
        if (count) std::memcpy(data(), from.data(), from.size() * sizeof(V));
    }
    V* data() const { return exists ? reinterpret_cast<V*>(memory.data() + GUARD) : nullptr; }
    V& operator[](int64_t i) const { return data()[i]; }
    void check(const char* name) const {
        for (int64_t i = 0; i < GUARD && exists; ++i)
            if (uint8_t(memory.data()[i]) != GAP ||
                uint8_t(memory.data()[memory.size() - 1 - i]) != GAP)
                fail("%s: written outside the array", name);
    }
};

struct Case {
    Problem p;  // sizes; `bind` adds the addresses
    Grid q, k, v, mask, query_mask, restart, log_decay, q_positions, k_positions, q_scale, k_scale;
    Bytes weight, bias;
    int64_t weight_offset = 0;
    std::vector<double> sums, log_scale, decay_total;
    std::vector<uint8_t> bad;
    bool keep_normalizer = false, wild = false, plain_output = false;

    bool single() const { return p.type != Type::f64; }
    template <class F> void each_grid(F&& f) {
        for (Grid* g : {&q, &k, &v, &mask, &query_mask, &restart, &log_decay, &q_positions,
                        &k_positions, &q_scale, &k_scale})
            f(*g);
    }
    bool hides(int64_t query_row, int64_t t) const {
        if (p.causal) return mask.exists() && mask.get(query_row / p.groups, t) == 0;
        return query_mask.exists() && query_mask.get(query_row, t) == 0;
    }
    int64_t which(int64_t row) const {
        return row % p.heads * p.features.weight_heads / p.heads;
    }
};

bool projected(Map map) { return map >= Map::hedgehog_softmax && map <= Map::favor_trig; }
bool favor(Map map) { return map >= Map::favor_positive && map <= Map::favor_trig; }

const char* name_of(Map map) {
    const char* names[] = {"given", "elu", "relu", "relu2", "exp", "square", "cosformer",
                           "hedgehog_softmax", "hedgehog_exp", "t2r", "favor_positive",
                           "favor_hyperbolic", "favor_trig", "quadratic"};
    return names[int(map)];
}

double strange(Random& random) {
    return random.pick<double>({NOT, INF, -INF, 1e-40, -1e-310, 6e-8, 0.0, -0.0, 1e30, -1e30, 3e38,
                                1e200, -1e200, 1e4, -1e4, 100, -95, -750, 65504});
}

void fill(Random& random, Grid& g, double size, double odd) {
    for (int64_t r = 0; r < g.rows; ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e)
                g.set(r, t, e, random.chance(odd) ? strange(random) : size * random.normal());
}

template <class F> void set_all(const Grid& g, F&& value) {
    for (int64_t r = 0; r < g.rows; ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e) g.set(r, t, e, value(r, t, e));
}

int64_t some_width(Random& random, int64_t low) {
    if (random.chance(0.4)) return random.pick<int64_t>({4, 8, 8, 16, 24, 32});
    return random.chance(0.7) ? random.between(low, 9) : random.between(low, 40);
}

Case make_case(Random& random, int64_t number) {
    Case c;
    Problem& p = c.p;
    kt::Features& f = p.features;
    p.type = random.pick<Type>({Type::f64, Type::f64, Type::f32, Type::f32, Type::f16, Type::bf16});
    p.output_type = p.type;
    const bool half = p.type == Type::f16 || p.type == Type::bf16;
    if (half && random.chance(0.5)) p.output_type = Type::f32;
    f.map = Map(random.between(0, int64_t(Map::quadratic)));
    const bool large = number % 9973 == 71, long_blocks = number % 9973 == 5071;
    if (large) f.map = random.pick<Map>({Map::given, Map::elu, Map::exp});
    if (long_blocks) f.map = Map::quadratic;
    const bool quadratic = f.map == Map::quadratic;
    p.heads = random.between(1, 3);
    p.groups = random.chance(0.6) ? 1 : random.between(2, 3);
    p.rows = p.heads * random.between(1, 2);
    p.causal = random.chance(0.75);
    p.normalize = random.chance(0.7);
    p.zero_fill = random.pick<double>({0, 0, 0.5, NOT});
    const double length = random.uniform();
    p.keys = length < 0.6    ? random.between(1, 14)
             : length < 0.92 ? random.between(15, 80)
                             : random.between(81, 200);
    p.queries = p.causal ? p.keys : random.between(1, random.chance(0.7) ? 14 : 90);
    if (random.chance(0.01)) p.keys = 0;
    if (random.chance(0.01) || (p.causal && p.keys == 0)) p.queries = 0;
    if (p.causal && p.queries == 0) p.keys = 0;
    f.inputs = some_width(random, 1);
    p.width = some_width(random, 0);
    if (quadratic && (f.inputs > 11 || p.keys > 80)) f.inputs = random.between(1, 9);
    if (quadratic && p.keys < 15 && random.chance(0.06))
        f.inputs = random.between(20, 23);  // several panels
    p.start = random.chance(0.4) ? 0 : random.between(0, 300);
    p.chunk = random.chance(0.5) ? 0 : random.pick<int64_t>({1, 2, 3, 5, 8, 16, 33, 64, 100});
    f.root_scale = random.chance(0.5) ? 1 : random.pick<double>({0.35, 0.5, 0.8409, 1.5});
    c.wild = random.chance(0.35);

    // Now and then a call so large that outputs are written around the cache, or that the quadratic
    // map takes its longer blocks.
    if (large) {
        p.heads = p.rows = 16;
        p.groups = 1;
        p.keys = p.queries = 2080;
        f.inputs = 8;
        p.width = 64;
    }
    if (long_blocks) {
        p.heads = p.rows = p.groups = 1;
        p.keys = p.queries = 2100;
        f.inputs = 40;
        p.width = 32;
        p.chunk = 0;
    }
    if (large || long_blocks) {
        p.type = p.output_type = Type::f32;
        c.plain_output = true;
        c.wild = false;
    }

    const int64_t d = f.inputs;
    f.count = f.columns = d;
    f.horizon = double(random.between(1, 400));
    switch (f.map) {
        case Map::cosformer: f.count = f.columns = 2 * d; break;
        case Map::quadratic: {
            const int form = int(random.between(0, 2));
            f.c0 = form == 0 ? 0 : form == 1 ? 1 : 2.25;
            f.c1 = form == 0 ? 0 : form == 1 ? 1 : 3;
            f.c2 = form == 1 ? 0.5 : 1;
            f.count = f.columns = form == 0 ? d * (d + 1) / 2 : (d + 1) * (d + 2) / 2;
            break;
        }
        case Map::hedgehog_softmax:
        case Map::hedgehog_exp:
        case Map::favor_hyperbolic:
        case Map::favor_trig:
        case Map::t2r:
        case Map::favor_positive: {
            const bool one = f.map == Map::t2r || f.map == Map::favor_positive;
            const bool identity = !favor(f.map) && !one && random.chance(0.3);
            if (!identity) f.columns = some_width(random, 1);
            f.count = one ? f.columns : 2 * f.columns;
            if (identity) break;
            if (!favor(f.map) && random.chance(0.5)) f.weight_heads = p.heads;
            const Kind kind = arithmetic(p.type);
            const int64_t size = f.weight_heads * d * f.columns;
            const double scale = random.pick<double>({0.3, 1, 2}) / std::sqrt(double(d));
            c.weight = Bytes(size * size_of(kind));
            for (int64_t i = 0; i < size; ++i)
                encode(c.weight.data() + i * size_of(kind), kind, scale * random.normal());
            if (f.map == Map::t2r && random.chance(0.6)) {
                c.bias = Bytes(f.weight_heads * f.columns * size_of(kind));
                for (int64_t i = 0; i < f.weight_heads * f.columns; ++i)
                    encode(c.bias.data() + i * size_of(kind), kind, random.normal());
            }
            break;
        }
        default: break;
    }
    const int64_t m = f.count, M = p.width;
    // Long and wide at once would be slow without testing more.
    while (!large && !long_blocks &&
           p.rows * p.groups * (p.keys + p.queries) * m * (M + 1) > 12000) {
        if (p.groups > 1)
            p.groups = 1;
        else if (p.rows > p.heads)
            p.rows = p.heads;
        else if (p.causal)
            p.keys = p.queries = p.keys / 2 + 1;
        else
            p.keys = p.keys / 2 + 1, p.queries = p.queries / 2 + 1;
        if (p.keys <= 4 && p.queries <= 4) break;
    }

    const int64_t query_rows = p.rows * p.groups, n = p.keys, n_q = p.queries;
    const Kind kind = kind_of(p.type), wide = arithmetic(p.type);
    const double odd = c.wild ? random.pick<double>({0.002, 0.01, 0.05}) : 0;
    const double size = random.pick<double>({0.3, 1, 1, 1, 3});
    auto grid = [&](int64_t rows, int64_t tokens, int64_t width, Kind of) {
        return make_grid(random, rows, tokens, width, of, For::reading, large);
    };
    c.q = grid(query_rows, n_q, d, kind);
    c.k = grid(p.rows, n, d, kind);
    c.v = grid(p.rows, n, M, kind);
    fill(random, c.q, size, random.chance(0.7) ? odd : 0);
    fill(random, c.k, size, random.chance(0.7) ? odd : 0);
    fill(random, c.v, random.pick<double>({1, 1, 20}), random.chance(0.7) ? odd : 0);
    auto byte = [&] { return random.chance(0.9) ? 1.0 : double(random.between(1, 127)); };
    if (random.chance(0.4)) {
        c.mask = grid(p.rows, n, 1, Kind::byte);
        const double hide = random.pick<double>({0.05, 0.3, 0.9});
        set_all(c.mask, [&](auto...) { return random.chance(hide) ? 0 : byte(); });
    }
    if (!p.causal && random.chance(0.4)) {
        c.query_mask = grid(query_rows, n_q, 1, Kind::byte);
        set_all(c.query_mask, [&](auto...) { return random.chance(0.3) ? 0 : byte(); });
    }
    if (p.causal && !long_blocks && random.chance(0.4)) {
        p.decay_width = quadratic || random.chance(0.6) ? 1 : m;
        c.log_decay = grid(p.rows, n, p.decay_width, wide);
        const double strength = random.pick<double>({0.01, 0.3, 5, 60, 1000});
        set_all(c.log_decay, [&](auto...) {
            return random.chance(0.1) ? 0 : -strength * random.uniform();
        });
    }
    if (p.causal && !long_blocks && random.chance(0.25)) {
        p.decay_width = std::max<int64_t>(p.decay_width, 1);  // a restart is a decay of −inf
        c.restart = grid(p.rows, n, 1, Kind::byte);
        const double often = random.pick<double>({0.03, 0.3});
        set_all(c.restart, [&](auto...) { return random.chance(often) ? byte() : 0; });
    }
    if (f.map == Map::cosformer && random.chance(0.5)) {
        auto where = [&](int64_t, int64_t t, int64_t) {
            return random.chance(0.8) ? double(t) : double(random.between(-100000, 100000));
        };
        c.q_positions = grid(query_rows, n_q, 1, Kind::f64);
        c.k_positions = grid(p.rows, n, 1, Kind::f64);
        set_all(c.q_positions, where);
        set_all(c.k_positions, where);
    }
    bool has_scale = f.map == Map::exp || f.map == Map::hedgehog_exp || favor(f.map);
    if (f.map == Map::given && !large && random.chance(0.4)) {
        has_scale = true;
        const double spread = random.pick<double>({1, 20, 300});
        c.q_scale = grid(query_rows, n_q, 1, Kind::f64);
        c.k_scale = grid(p.rows, n, 1, Kind::f64);
        set_all(c.q_scale, [&](auto...) { return spread * random.normal(); });
        set_all(c.k_scale, [&](auto...) { return spread * random.normal(); });
        if (c.mask.exists() && c.k_scale.token && c.mask.token)  // as the Python side does
            for (int64_t r = 0; r < p.rows; ++r)
                for (int64_t t = 0; t < n; ++t)
                    if (c.mask.get(r, t) == 0 && p.rows == 1) c.k_scale.set(r, t, 0, -INF);
    }

    const bool empty = random.chance(0.5);
    const std::size_t rows = std::size_t(p.rows), columns = std::size_t(M + 1);
    c.sums.assign(rows * std::size_t(m) * columns, 0);
    for (std::size_t i = 0; i < c.sums.size() && !empty; ++i)
        c.sums[i] = i % columns == columns - 1 ? 0.1 + std::fabs(random.normal()) : random.normal();
    if (has_scale)
        for (std::size_t r = 0; r < rows; ++r)
            c.log_scale.push_back(empty ? -INF
                                        : random.pick<double>({0, 5, 5, 80}) * random.normal());
    c.decay_total.resize(rows * std::size_t(p.decay_width));
    for (double& x : c.decay_total) x = random.chance(0.5) ? 0 : -random.uniform();
    c.bad.assign(rows * columns, 0);
    if (c.wild && random.chance(0.1))
        for (std::size_t r = 0; r < rows; ++r) {
            const bool all = random.chance(0.2);
            for (std::size_t i = 0; i < columns; ++i)
                c.bad[r * columns + i] = all || (i + 1 < columns && random.chance(0.2));
        }
    c.keep_normalizer = random.chance(0.5);
    return c;
}

Problem bind(const Case& c) {
    Problem p = c.p;
    p.q = c.q.view();
    p.k = c.k.view();
    p.v = c.v.view();
    p.mask = c.mask.view();
    p.query_mask = c.query_mask.view();
    p.restart = c.restart.view();
    p.log_decay = c.log_decay.view();
    p.q_positions = c.q_positions.view();
    p.k_positions = c.k_positions.view();
    p.q_scale = c.q_scale.view();
    p.k_scale = c.k_scale.view();
    const int64_t size = size_of(arithmetic(p.type)), columns = p.features.columns;
    if (c.weight.data())
        p.features.weight = c.weight.data() + c.weight_offset * p.features.inputs * columns * size;
    if (c.bias.data()) p.features.bias = c.bias.data() + c.weight_offset * columns * size;
    return p;
}

struct Result {
    Grid output;
    std::vector<uint8_t> hidden;  // (rows · groups, n_q): these have no normaliser
    Array<uint8_t> zero, bad;
    Array<double> normalizer, sums, log_scale, decay_total;
};

// A result before the call, and p with its addresses.
Result prepare(const Case& c, Problem& p, Random& random, bool plain) {
    Result made;
    const int64_t rows = p.rows * p.groups;
    made.output = make_grid(random, rows, p.queries, p.width, kind_of(p.output_type), For::writing,
                            plain);
    if (p.normalize) made.zero = Array<uint8_t>(rows * p.queries, 7);
    if (c.keep_normalizer) made.normalizer = Array<double>(rows * p.queries, 0xFF);
    made.sums = Array<double>(c.sums);
    if (!c.log_scale.empty()) made.log_scale = Array<double>(c.log_scale);
    if (p.decay_width) made.decay_total = Array<double>(c.decay_total);
    made.bad = Array<uint8_t>(c.bad);
    p.output = made.output.view();
    p.zero = made.zero.data();
    p.normalizer = made.normalizer.data();
    p.sums = made.sums.data();
    p.log_scale = made.log_scale.data();
    p.decay_total = made.decay_total.data();
    p.bad = made.bad.data();
    for (int64_t q = 0; q < rows; ++q)
        for (int64_t t = 0; t < p.queries; ++t) made.hidden.push_back(c.hides(q, t));
    return made;
}

void check_guards(const Result& made) {
    check_gaps(made.output, "output");
    made.zero.check("zero");
    made.normalizer.check("normalizer");
    made.sums.check("sums");
    made.log_scale.check("log_scale");
    made.decay_total.check("decay_total");
    made.bad.check("bad");
}

Result forward(const Case& c, const kt::Kernels& kernels, int threads, Random& random) {
    Problem p = bind(c);
    const Result made = prepare(c, p, random, c.plain_output && threads == 1);
    kt::Control control;
    control.threads = threads;
    kernels.forward(p, control);
    check_guards(made);
    return made;
}

bool steps(const Case& c) {  // what a decoder can be asked for
    return c.p.causal && c.p.rows && !c.mask.exists() && !c.restart.exists() &&
           !c.q_scale.exists() && !c.q_positions.exists();
}

// The same tokens one call at a time.
Result step_through(const Case& c, const kt::Kernels& kernels, int threads, Random& random) {
    Problem p = bind(c);
    Result made = prepare(c, p, random, false);
    made.normalizer.exists = false;
    const Array<uint8_t> zero(p.rows * p.groups, 7);
    p.keys = p.queries = 1;
    p.zero = zero.data();
    p.normalizer = nullptr;
    std::vector<double> wide;
    const float* weight = static_cast<const float*>(p.features.weight);
    if (weight && p.log_scale && c.single()) {
        const Features& f = p.features;
        wide.assign(weight, weight + f.weight_heads * f.inputs * f.columns);
        p.features.weight = wide.data();
    }
    for (int64_t t = 0; t < c.p.keys; ++t) {
        kernels.step(p, threads);
        for (int64_t q = 0; q < p.rows * p.groups && made.zero.exists; ++q)
            made.zero[q * c.p.queries + t] = zero[q];
        for (kt::View* view : {&p.q, &p.k, &p.v, &p.output, &p.log_decay})
            if (view->data) view->data += view->token;
        ++p.start;
    }
    zero.check("zero of a step");
    check_guards(made);
    return made;
}

// The same numbers, densely and as arithmetic sees them.
struct Dense {
    std::vector<Real> q, k, v, log_decay, weight, bias;
    std::vector<double> q_positions, k_positions, q_scale, k_scale;
    std::vector<uint8_t> hidden_k, hidden_q, bad_k, bad_q, restart;
};

Dense densely(const Case& c, bool single) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, n = p.keys, n_q = p.queries;
    const int64_t query_rows = p.rows * p.groups;
    Dense x;
    auto tokens = [&](const Grid& g, int64_t rows, int64_t count, std::vector<Real>& to,
                      std::vector<uint8_t>& bad) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t t = 0; t < count; ++t) {
                uint8_t strange_here = 0;
                for (int64_t e = 0; e < d; ++e) {
                    const double root = p.features.root_scale, raw = g.get(r, t, e);
                    const double y = single ? double(float(raw) * float(root)) : raw * root;
                    strange_here |= !std::isfinite(y);
                    to.push_back(Real(y));
                }
                bad.push_back(strange_here);
            }
    };
    tokens(c.q, query_rows, n_q, x.q, x.bad_q);
    tokens(c.k, p.rows, n, x.k, x.bad_k);
    for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t e = 0; e < p.width; ++e) x.v.push_back(Real(c.v.get(r, t, e)));
            for (int64_t e = 0; e < p.decay_width; ++e)
                x.log_decay.push_back(c.log_decay.exists() ? Real(c.log_decay.get(r, t, e)) : 0);
            x.hidden_k.push_back(c.mask.exists() && c.mask.get(r, t) == 0);
            x.restart.push_back(c.restart.exists() && c.restart.get(r, t) != 0);
            x.k_positions.push_back(c.k_positions.exists() ? c.k_positions.get(r, t)
                                                           : double(p.start + t));
            x.k_scale.push_back(c.k_scale.exists() ? c.k_scale.get(r, t) : 0);
        }
    for (int64_t r = 0; r < query_rows; ++r)
        for (int64_t t = 0; t < n_q; ++t) {
            x.hidden_q.push_back(c.hides(r, t));
            x.q_positions.push_back(c.q_positions.exists() ? c.q_positions.get(r, t)
                                                           : double(p.start + t));
            x.q_scale.push_back(c.q_scale.exists() ? c.q_scale.get(r, t) : 0);
        }
    const Kind kind = arithmetic(p.type);
    for (int64_t i = 0; c.weight.data() && i < c.weight.size() / size_of(kind); ++i)
        x.weight.push_back(Real(decode(c.weight.data() + i * size_of(kind), kind)));
    for (int64_t i = 0; c.bias.data() && i < c.bias.size() / size_of(kind); ++i)
        x.bias.push_back(Real(decode(c.bias.data() + i * size_of(kind), kind)));
    return x;
}

// What rounding may do, by the type of arithmetic.
struct Limits {
    Real error;        // relative to the sizes of what is added up
    Real tiny;         // absolute: subnormal numbers lose digits
    Real tiny_factor;  // the same of an output that is not normalised: e^{RANGE} times that
    Real low, high;    // normalisers below, and numbers above, are not compared
};

Limits limits_of(bool single) {
    if (single) return {1e-5L, 1e-33L, 1e-24L, 1e-18L, 1e18L};
    return {1e-13L, 1e-290L, 1e-218L, 1e-180L, 1e180L};
}

// φ of one token: e^{log_scale}·value, and the size against which the error of each is measured.
struct Phi {
    std::vector<Real> value, size;
    Real log_scale = 0;
    bool risky = false;  // beyond the range of the arithmetic
};

void compute_phi(const Case& c, const Dense& x, const Real* token, int64_t which, double position,
                 double scale, Phi& out) {
    const kt::Features& f = c.p.features;
    const Limits limits = limits_of(c.single());
    const int64_t d = f.inputs, m = f.count, p = f.columns;
    std::vector<Real>&y = out.value, &size = out.size;
    y.assign(std::size_t(m), 0);
    size.assign(std::size_t(m), 0);
    out.log_scale = 0;
    Real stretch = 0;  // an exponent or an angle so large has so much larger an error
    if (projected(f.map))
        for (int64_t r = 0; r < p; ++r) {
            Real sum = 0, total = 0;
            if (x.weight.empty()) sum = total = token[r];
            for (int64_t i = 0; i < d && !x.weight.empty(); ++i) {
                const Real term = x.weight[std::size_t((which * d + i) * p + r)] * token[i];
                sum += term;
                total += std::fabs(term);
            }
            if (!x.bias.empty()) {
                sum += x.bias[std::size_t(which * p + r)];
                total += std::fabs(x.bias[std::size_t(which * p + r)]);
            }
            y[std::size_t(r)] = sum;
            size[std::size_t(r)] = total;
            stretch = std::max(stretch, std::fabs(total));
        }
    Real half_norm = 0;
    for (int64_t i = 0; i < d && favor(f.map); ++i) half_norm += token[i] * token[i] / 2;
    auto exponentials = [&](Real share) {  // of y, all of them
        Real top = NONE;
        for (Real e : y) top = std::max(top, e);
        for (Real& e : y) e = std::exp(e - top) * share;
        out.log_scale = top;
    };
    auto mirrored = [&] {
        for (int64_t r = 0; r < p; ++r) y[std::size_t(p + r)] = -y[std::size_t(r)];
    };
    switch (f.map) {
        case Map::given:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i];
            out.log_scale = Real(scale);
            break;
        case Map::elu:
            for (int64_t i = 0; i < d; ++i)
                y[std::size_t(i)] = token[i] > 0 ? token[i] + 1 : std::exp(token[i]);
            break;
        case Map::relu:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i] > 0 ? token[i] : 0;
            break;
        case Map::relu2:
            for (int64_t i = 0; i < d; ++i)
                y[std::size_t(i)] = token[i] > 0 ? token[i] * token[i] : 0;
            break;
        case Map::square:
            for (int64_t i = 0; i < d; ++i) y[std::size_t(i)] = token[i] * token[i];
            break;
        case Map::exp:
            for (int64_t i = 0; i < d; ++i) {
                y[std::size_t(i)] = token[i];
                stretch = std::max(stretch, std::fabs(token[i]));
            }
            exponentials(1);
            break;
        case Map::cosformer: {
            const Real angle = std::fmod(Real(position), 4 * Real(f.horizon)) / Real(f.horizon) *
                               std::acos(Real(-1)) / 2;
            for (int64_t i = 0; i < d; ++i) {
                const Real part = token[i] > 0 ? token[i] : 0;
                y[std::size_t(i)] = part * std::cos(angle);
                y[std::size_t(d + i)] = part * std::sin(angle);
                size[std::size_t(i)] = size[std::size_t(d + i)] = part;
            }
            break;
        }
        case Map::hedgehog_softmax:
        case Map::hedgehog_exp: {
            mirrored();
            exponentials(1);
            if (f.map == Map::hedgehog_exp) break;
            Real total = 0;
            for (Real e : y) total += e;
            for (Real& e : y) e /= total;
            out.log_scale = 0;
            break;
        }
        case Map::t2r:
            for (Real& e : y) e = e > 0 ? e : 0;
            break;
        case Map::favor_hyperbolic: mirrored(); [[fallthrough]];
        case Map::favor_positive:
            exponentials(1 / std::sqrt(Real(m)));
            out.log_scale -= half_norm;
            break;
        case Map::favor_trig:
            for (int64_t r = 0; r < p; ++r) {
                const Real angle = y[std::size_t(r)], share = 1 / std::sqrt(Real(p));
                y[std::size_t(r)] = std::cos(angle) * share;
                y[std::size_t(p + r)] = std::sin(angle) * share;
                size[std::size_t(r)] = size[std::size_t(p + r)] = share;
            }
            out.log_scale = half_norm;
            break;
        case Map::quadratic: {
            std::size_t at = 0;
            for (int64_t a = f.c1 > 0 ? 0 : 1; a <= d; ++a)
                for (int64_t b = a; b <= d; ++b) {
                    const Real left = a ? token[a - 1] : 1, right = b ? token[b - 1] : 1;
                    const double square = !b ? f.c0 : !a ? f.c1 : a == b ? f.c2 : 2 * f.c2;
                    y[at++] = std::sqrt(Real(square)) * left * right;
                }
            break;
        }
    }
    if (favor(f.map)) stretch += half_norm * (c.single() ? 1e-8L : 1);
    if (f.map == Map::t2r) stretch = 0;
    out.risky = !(stretch * limits.error < 0.01L);
    const bool own = f.map == Map::t2r || f.map == Map::cosformer || f.map == Map::favor_trig;
    for (std::size_t i = 0; i < y.size(); ++i) {
        size[i] = (own ? size[i] : std::fabs(y[i])) * (1 + stretch);
        out.risky = out.risky || !(size[i] < limits.high);
    }
}

// One output row of the plain loop.
struct Line {
    std::vector<Real> sum, size;     // (M + 1): Σ weight·v and Σ weight, and Σ of their sizes
    std::vector<uint8_t> bad;        // (M + 1)
    Real log_scale = 0;              // they count e^{log_scale}
    Real top = 1;                    // the largest value so far
    Real error = 0;                  // relative: of the arithmetic, and of sums of large exponents
    bool hidden = false, whole = false, risky = false;
};

struct Told {
    std::vector<Line> lines;  // (groups, n_q)
    std::vector<Real> U, size;
    Real log_scale = NONE;
    std::vector<uint8_t> bad;
    std::vector<double> decay_total;
    Real top = 1, error = 0, reach = 0;  // reach: of log-scales
    bool risky = false;
};

// The loops that take the time; plain enough to go unchecked.
#define KT_UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))

KT_UNCHECKED void add_row(Real* to, const Real* from, Real factor, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

KT_UNCHECKED void mix_row(Real* to, Real old, const Real* from, Real own, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = to[i] * old + from[i] * own;
}

KT_UNCHECKED Real largest_of(const Real* x, int64_t count) {
    Real top = 0;
    for (int64_t i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
    return top;
}

Told tell(const Case& c, const Dense& x, int64_t row) {
    const Problem& p = c.p;
    const int64_t d = p.features.inputs, m = p.features.count, w = p.width + 1, n = p.keys;
    const bool scaled = !c.log_scale.empty();
    const Limits limits = limits_of(c.single());
    Told s;
    s.error = limits.error;
    const std::size_t size = std::size_t(m * w);
    for (std::size_t i = 0; i < size; ++i) s.U.push_back(Real(c.sums[std::size_t(row) * size + i]));
    for (Real u : s.U) s.size.push_back(std::fabs(u));
    if (scaled) s.log_scale = Real(c.log_scale[std::size_t(row)]);
    if (s.log_scale > NONE) s.reach = std::fabs(s.log_scale);
    s.bad.assign(c.bad.begin() + row * w, c.bad.begin() + (row + 1) * w);
    s.decay_total.assign(c.decay_total.begin() + row * p.decay_width,
                         c.decay_total.begin() + (row + 1) * p.decay_width);
    s.lines.resize(std::size_t(p.groups * p.queries));
    Phi phi;
    std::vector<Real> value(std::size_t(w), 0), magnitude(std::size_t(w), 0);
    auto read = [&](int64_t g, int64_t t) {
        Line& line = s.lines[std::size_t(g * p.queries + t)];
        const std::size_t at = std::size_t((row * p.groups + g) * p.queries + t);
        line.hidden = x.hidden_q[at];
        if (line.hidden) return;
        line.whole = x.bad_q[at];
        line.bad = s.bad;
        line.sum.assign(std::size_t(w), 0);
        line.size.assign(std::size_t(w), 0);
        if (line.whole) return;
        compute_phi(c, x, x.q.data() + int64_t(at) * d, c.which(row), x.q_positions[at],
                    x.q_scale[at], phi);
        for (int64_t f = 0; f < m; ++f) {
            add_row(line.sum.data(), s.U.data() + f * w, phi.value[std::size_t(f)], w);
            add_row(line.size.data(), s.size.data() + f * w, phi.size[std::size_t(f)], w);
        }
        line.log_scale = scaled ? phi.log_scale + (s.log_scale > NONE ? s.log_scale : 0) : 0;
        line.risky = s.risky || phi.risky;
        line.top = s.top;
        line.error = s.error + 1e-15L * (s.reach + std::fabs(line.log_scale));
        for (Real e : line.size) line.risky = line.risky || !(e < limits.high);
    };
    for (int64_t t = 0; t < n; ++t) {
        const std::size_t at = std::size_t(row * n + t);
        const Real* decay = x.log_decay.data() + int64_t(at) * p.decay_width;
        const Real* values = x.v.data() + int64_t(at) * p.width;
        for (int64_t f = 0; f < p.decay_width; ++f)
            s.decay_total[std::size_t(f)] += x.restart[at]    ? -INF
                                             : x.hidden_k[at] ? 0
                                                              : double(decay[f]);
        if (x.restart[at]) {
            std::fill(s.U.begin(), s.U.end(), 0);
            std::fill(s.size.begin(), s.size.end(), 0);
            std::fill(s.bad.begin(), s.bad.end(), 0);
            s.log_scale = NONE;
            s.risky = false;
        } else if (p.decay_width && !x.hidden_k[at]) {
            Real slowest = 0;
            if (scaled) slowest = *std::max_element(decay, decay + p.decay_width);
            if (scaled) s.log_scale += slowest;
            s.error -= 4e-16L * *std::min_element(decay, decay + p.decay_width);
            for (int64_t f = 0; f < m; ++f) {
                const Real factor = std::exp(decay[p.decay_width > 1 ? f : 0] - slowest);
                mix_row(s.U.data() + f * w, factor, value.data(), 0, w);
                mix_row(s.size.data() + f * w, factor, value.data(), 0, w);
            }
        }
        if (!x.hidden_k[at]) {
            for (int64_t e = 0; e < w; ++e)
                s.bad[std::size_t(e)] |= x.bad_k[at] || (e < p.width && !std::isfinite(values[e]));
            if (!x.bad_k[at]) {
                compute_phi(c, x, x.k.data() + int64_t(at) * d, c.which(row), x.k_positions[at],
                            x.k_scale[at], phi);
                s.risky = s.risky || phi.risky;
                s.reach = std::max(s.reach, std::fabs(phi.log_scale));
                Real old = 1, own = 1;
                if (scaled) {
                    const Real top = std::max(s.log_scale, phi.log_scale);
                    old = s.log_scale > NONE ? std::exp(s.log_scale - top) : 0;
                    own = std::exp(phi.log_scale - top);
                    s.log_scale = top;
                }
                Real largest = 0, top = 0;
                for (int64_t e = 0; e < w; ++e) {
                    Real one = e < p.width ? values[e] : 1;
                    if (s.bad[std::size_t(e)]) one = 0;
                    value[std::size_t(e)] = one;
                    magnitude[std::size_t(e)] = std::fabs(one);
                    largest = std::max(largest, std::fabs(one));
                }
                s.top = std::max(s.top, largest);
                for (int64_t f = 0; f < m; ++f) {
                    const Real a = phi.value[std::size_t(f)], b = phi.size[std::size_t(f)];
                    mix_row(s.U.data() + f * w, old, value.data(), a * own, w);
                    mix_row(s.size.data() + f * w, old, magnitude.data(), b * own, w);
                    top = std::max(top, b * largest);  // before it is known how little it counts
                }
                top = std::max(top, largest_of(s.size.data(), m * w));
                s.risky = s.risky || !(top < limits.high);
            }
        }
        for (int64_t g = 0; g < p.groups && p.causal; ++g) read(g, t);
    }
    for (int64_t g = 0; g < p.groups && !p.causal; ++g)
        for (int64_t t = 0; t < p.queries; ++t) read(g, t);
    return s;
}

double half_error(Kind kind, Real x) {
    if (kind == Kind::f16) return double(std::fabs(x)) * 0x1p-11 + 0x1p-25;
    return kind == Kind::bf16 ? double(std::fabs(x)) * 0x1p-8 + 1e-40 : 0;
}

void compare_line(const Case& c, const Result& made, const Line& line, int64_t q, int64_t t) {
    const Problem& p = c.p;
    const Limits limits = limits_of(c.single());
    const Kind kind = made.output.kind;
    const int64_t at = q * p.queries + t;
    const int flag = p.normalize ? int(made.zero[at]) : 0;
    auto where = [&](int64_t e) {
        return "output" + at_index({q, t, e});
    };
    if (flag > 1) fail("zero[%lld] was not written", (long long)at);
    if (line.hidden) {
        for (int64_t e = 0; e < p.width; ++e)
            if (made.output.get(q, t, e) != 0)
                fail("%s of a hidden token is not 0", where(e).c_str());
        if (flag) fail("zero[%lld] is set for a hidden token", (long long)at);
        return;
    }
    const Real den = line.sum.empty() ? 0 : line.sum.back(), den_size = line.size.back();
    const bool spoilt = line.whole || line.bad.back();
    const bool certain = std::fabs(den) > std::max(limits.low, 50 * line.error * den_size);
    const bool nothing = den_size == 0 && !line.risky;
    if (p.normalize && spoilt && flag) fail("zero[%lld] is set for a NaN row", (long long)at);
    if (p.normalize && !spoilt && !line.risky && (nothing || certain) && flag != int(nothing))
        fail("zero[%lld] is %d, the normaliser is %Lg", (long long)at, flag, den);
    if (made.normalizer.exists && c.log_scale.empty() && !p.decay_width && !spoilt && !line.risky) {
        const Real expected = p.normalize ? den : 1, got = Real(made.normalizer[at]);
        if (!(std::fabs(got - expected) <= line.error * den_size + limits.tiny))
            fail("normalizer[%lld] is %Lg, not %Lg", (long long)at, got, expected);
    }
    const bool beyond = !p.normalize && line.log_scale > (c.single() ? 41 : 414);  // of e^…
    for (int64_t e = 0; e < p.width; ++e) {
        const double got = made.output.get(q, t, e);
        if (line.whole || line.bad[std::size_t(e)]) {
            if (!std::isnan(got)) fail("%s is %g, not NaN", where(e).c_str(), got);
            continue;
        }
        if (line.risky || beyond) continue;
        if (p.normalize && nothing) {
            const double expected = rounded(rounded(p.zero_fill, arithmetic(p.type)), kind);
            if (got != expected && !(std::isnan(got) && std::isnan(expected)))
                fail("%s is %g, not the fill %g", where(e).c_str(), got, expected);
            continue;
        }
        if (p.normalize && !certain) {
            // Too small to compare, but nothing cancels: a mean of finite values is finite.
            if (kind != Kind::f16 && !flag && !std::isfinite(got) && std::fabs(den) > den_size / 2)
                fail("%s is %g, the normaliser is %Lg", where(e).c_str(), got, den);
            continue;
        }
        const Real sum = line.sum[std::size_t(e)], size = line.size[std::size_t(e)];
        Real expected, allowed;
        if (p.normalize) {
            expected = sum / den;
            allowed = line.error * (size + std::fabs(expected) * den_size) / std::fabs(den) +
                      limits.tiny * line.top * (1 + size + den_size) / std::fabs(den);
        } else {
            const Real factor = std::exp(line.log_scale);
            expected = sum * factor;
            allowed = line.error * size * factor +
                      limits.tiny_factor * line.top * (1 + size) * (1 + factor);
        }
        if (std::fabs(expected) > (kind == Kind::f16 ? 6e4L : limits.high * 1e12L)) continue;
        allowed += Real(half_error(kind, std::fabs(expected) + allowed));
        if (!(std::fabs(Real(got) - expected) <= allowed))
            fail("%s is %.17g, not %.17Lg (± %.2Lg)", where(e).c_str(), got, expected, allowed);
    }
}

void compare_state(const Case& c, const Result& made, const Told& told, int64_t row) {
    const Problem& p = c.p;
    const Limits limits = limits_of(c.single());
    const int64_t m = p.features.count, w = p.width + 1;
    for (int64_t e = 0; e < w; ++e)
        if (made.bad[row * w + e] != told.bad[std::size_t(e)])
            fail("bad[%lld, %lld] is %d", (long long)row, (long long)e, int(made.bad[row * w + e]));
    for (int64_t f = 0; f < p.decay_width; ++f) {
        const double got = made.decay_total[row * p.decay_width + f];
        const double expected = told.decay_total[std::size_t(f)];
        if (got != expected && !(std::fabs(got - expected) <= 1e-12 * std::fabs(expected)))
            fail("decay_total%s is %g, not %g", at_index({row, f}).c_str(), got, expected);
    }
    if (told.risky || told.bad.back()) return;
    Real factor = 1;
    if (!c.log_scale.empty()) {
        const Real got = Real(made.log_scale[row]);
        if (told.log_scale == NONE || got == NONE) {
            if (got != told.log_scale) fail("log_scale[%lld] is %Lg", (long long)row, got);
            factor = 0;
        } else {
            factor = std::exp(got - told.log_scale);
        }
    }
    for (int64_t i = 0; i < m * w; ++i) {
        if (told.bad[std::size_t(i % w)]) continue;
        const Real got = Real(made.sums[row * m * w + i]), expected = told.U[std::size_t(i)];
        if (factor == 0 && got != 0) fail("sums%s of nothing", at_index({row, i}).c_str());
        const Real size = told.size[std::size_t(i)];
        const Real allowed = (told.error + 1e-15L * told.reach) * size +
                             limits.tiny * told.top * (1 + size);
        if (!(std::fabs(got * factor - expected) <= allowed))
            fail("sums%s is %.17Lg, not %.17Lg (± %.2Lg)", at_index({row, i}).c_str(), got * factor,
                 expected, allowed);
    }
}

void compare_row(const Case& c, const Result& made, const Told& told, int64_t row) {
    const Problem& p = c.p;
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t t = 0; t < p.queries; ++t) {
            const Line& line = told.lines[std::size_t(g * p.queries + t)];
            compare_line(c, made, line, row * p.groups + g, t);
        }
    compare_state(c, made, told, row);
}

bool same(double a, double b) {
    return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// The bits of `count` query tokens: row `other_row` of the other result.
void compare_bits(const Result& one, int64_t row, int64_t width_one, const Result& other,
                  int64_t other_row, int64_t width_other, int64_t count, const char* why) {
    for (int64_t t = 0; t < count; ++t) {
        for (int64_t e = 0; e < one.output.width; ++e) {
            const double a = one.output.get(row, t, e), b = other.output.get(other_row, t, e);
            if (!same(a, b))
                fail("%s: output[%lld, %lld, %lld] is %.17g or %.17g", why, (long long)row,
                     (long long)t, (long long)e, a, b);
        }
        const int64_t i = row * width_one + t, j = other_row * width_other + t;
        if (one.zero.exists && one.zero[i] != other.zero[j])
            fail("%s: zero[%lld, %lld]", why, (long long)row, (long long)t);
        if (one.normalizer.exists && !one.hidden[std::size_t(i)] &&
            !same(one.normalizer[i], other.normalizer[j]))
            fail("%s: normalizer[%lld, %lld] is %.17g or %.17g", why, (long long)row, (long long)t,
                 one.normalizer[i], other.normalizer[j]);
    }
}

template <class V>
void compare_part(const Array<V>& one, int64_t row, int64_t rows, const Array<V>& other,
                  int64_t other_row, const char* why, const char* name) {
    if (!one.exists || !rows) return;
    const int64_t n = one.count / rows;
    for (int64_t i = 0; i < n; ++i) {
        const double a = double(one[row * n + i]), b = double(other[other_row * n + i]);
        if (!same(a, b))
            fail("%s: %s%s is %.17g or %.17g", why, name, at_index({row, i}).c_str(), a, b);
    }
}

void compare_states(const Result& one, int64_t row, int64_t rows, const Result& other,
                    int64_t other_row, const char* why) {
    compare_part(one.sums, row, rows, other.sums, other_row, why, "sums");
    compare_part(one.log_scale, row, rows, other.log_scale, other_row, why, "log_scale");
    compare_part(one.decay_total, row, rows, other.decay_total, other_row, why, "decay_total");
    compare_part(one.bad, row, rows, other.bad, other_row, why, "bad");
}

void check_threads(const Case& c, const kt::Kernels& kernels, const Result& made, int threads,
                   Random& random) {
    const Result other = forward(c, kernels, threads, random);
    const std::string why = "threads 1 and " + std::to_string(threads);
    for (int64_t q = 0; q < c.p.rows * c.p.groups; ++q)
        compare_bits(made, q, c.p.queries, other, q, c.p.queries, c.p.queries, why.c_str());
    for (int64_t r = 0; r < c.p.rows; ++r) compare_states(made, r, c.p.rows, other, r, why.c_str());
}

// Rows `first` … of a grid, elsewhere in memory and with other strides.
Grid moved(Random& random, const Grid& g, int64_t first, int64_t count) {
    if (!g.exists()) return Grid();
    Grid to = make_grid(random, count, g.tokens, g.width, g.kind, For::writing);
    set_all(to, [&](int64_t r, int64_t t, int64_t e) { return g.get(first + r, t, e); });
    return to;
}

void check_alone(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    if (!c.p.rows) return;
    const int64_t r = random.between(0, c.p.rows - 1), groups = c.p.groups;
    Case one = c;
    one.p.rows = one.p.heads = one.p.features.weight_heads = 1;
    one.weight_offset = c.which(r);
    for (Grid Case::*g : {&Case::k, &Case::v, &Case::mask, &Case::restart, &Case::log_decay,
                          &Case::k_positions, &Case::k_scale})
        one.*g = moved(random, c.*g, r, 1);
    for (Grid Case::*g : {&Case::q, &Case::query_mask, &Case::q_positions, &Case::q_scale})
        one.*g = moved(random, c.*g, r * groups, groups);
    auto part = [&](auto& x) {
        const std::ptrdiff_t n = std::ptrdiff_t(x.size()) / c.p.rows;
        x = std::decay_t<decltype(x)>(x.begin() + r * n, x.begin() + (r + 1) * n);
    };
    part(one.sums);
    part(one.log_scale);
    part(one.decay_total);
    part(one.bad);
    const Result other = forward(one, kernels, 1, random);
    for (int64_t g = 0; g < groups; ++g)
        compare_bits(made, r * groups + g, c.p.queries, other, g, c.p.queries, c.p.queries,
                     "row alone");
    compare_states(made, r, c.p.rows, other, 0, "row alone");
}

// A half-precision output is the float32 one, rounded to nearest.
void check_narrow(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    const Kind kind = made.output.kind;
    if (kind != Kind::f16 && kind != Kind::bf16) return;
    Case wide = c;
    wide.p.output_type = Type::f32;
    const Result other = forward(wide, kernels, 1, random);
    set_all(other.output, [&](int64_t q, int64_t t, int64_t e) {
        const double x = other.output.get(q, t, e), got = made.output.get(q, t, e);
        if (!same(got, rounded(x, kind)))
            fail("output%s is %g, %.9g rounded", at_index({q, t, e}).c_str(), got, x);
        return x;
    });
}

// Outputs up to token t must not know what comes after it, nor whether anything does.
void check_future(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random) {
    if (!c.p.causal || c.p.keys < 2) return;
    const int64_t t = random.between(0, c.p.keys - 2);
    Case other = c;
    const bool shorter = random.chance(0.3);
    if (shorter) {
        other.p.keys = other.p.queries = t + 1;
    } else {
        const double share = random.pick<double>({0.02, 0.3, 1});
        other.each_grid([&](Grid& g) {
            if (!g.exists() || g.token == 0) return;
            for (int64_t r = 0; r < g.rows; ++r)
                for (int64_t i = t + 1; i < g.tokens; ++i)
                    for (int64_t e = 0; e < g.width; ++e) {
                        if (!random.chance(share)) continue;
                        double x = strange(random);
                        if (&g == &other.log_decay) x = -random.pick<double>({0, 1, 50, 1e4, 1e30});
                        if (g.kind == Kind::byte) x = double(random.between(0, 1));
                        if (&g == &other.q_positions || &g == &other.k_positions)
                            x = random.normal() * 1e4;
                        if (&g == &other.q_scale || &g == &other.k_scale) x = random.normal() * 1e3;
                        g.set(r, i, e, x);
                    }
        });
    }
    const Result changed = forward(other, kernels, 1, random);
    const std::string why = (shorter ? "without" : "with other") + std::string(" tokens after ") +
                            std::to_string(t);
    for (int64_t q = 0; q < c.p.rows * c.p.groups; ++q)
        compare_bits(made, q, c.p.queries, changed, q, other.p.queries, t + 1, why.c_str());
}

struct Slopes {
    Grid d_output, d_q, d_k, d_v;
    std::vector<double> d_final;
    Array<double> d_sums, d_log_decay, d_weight, d_bias;
};

Slopes backward(const Case& c, const kt::Kernels& kernels, const Result& made, const Grid& d_output,
                const std::vector<double>& d_final, int threads, Random& random) {
    Problem p = bind(c);
    const kt::Features& f = p.features;
    Slopes s;
    s.d_output = d_output;
    s.d_final = d_final;
    const Kind kind = kind_of(p.type);
    s.d_q = make_grid(random, p.rows * p.groups, p.queries, f.inputs, kind, For::writing);
    s.d_k = make_grid(random, p.rows, p.keys, f.inputs, kind, For::writing);
    s.d_v = make_grid(random, p.rows, p.keys, p.width, kind, For::writing);
    s.d_sums = Array<double>(d_final);
    if (c.log_decay.exists())
        s.d_log_decay = Array<double>(p.rows * p.keys * p.decay_width, 0xFF);
    if (f.weight && !favor(f.map)) {
        s.d_weight = Array<double>(f.weight_heads * f.inputs * f.columns, 0);
        if (f.bias) s.d_bias = Array<double>(f.weight_heads * f.columns, 0);
    }
    const Array<double> sums(c.sums), log_scale(c.log_scale);
    p.output = made.output.view();
    p.normalizer = made.normalizer.data();
    p.sums = sums.data();
    if (!c.log_scale.empty()) p.log_scale = log_scale.data();
    kt::Gradient g;
    g.d_output = s.d_output.view();
    g.d_q = s.d_q.view();
    g.d_k = s.d_k.view();
    g.d_v = s.d_v.view();
    g.d_sums = s.d_sums.data();
    g.d_log_decay = s.d_log_decay.data();
    g.d_weight = s.d_weight.data();
    g.d_bias = s.d_bias.data();
    kt::Control control;
    control.threads = threads;
    kernels.backward(p, g, control);
    check_gaps(s.d_q, "d_q");
    check_gaps(s.d_k, "d_k");
    check_gaps(s.d_v, "d_v");
    s.d_sums.check("d_sums");
    s.d_log_decay.check("d_log_decay");
    s.d_weight.check("d_weight");
    s.d_bias.check("d_bias");
    if (std::memcmp(sums.data(), c.sums.data(), c.sums.size() * sizeof(double)))
        fail("backward: sums were written");
    return s;
}

// Σ d_output·output + Σ d_sums·sums of a row, the scale of the sums being held.
struct Loss {
    Real value = 0, size = 0;
    bool usable = true;
};

Loss loss_of(const Case& c, const Dense& x, const Slopes& s, int64_t row, Real held) {
    const Problem& p = c.p;
    const Told told = tell(c, x, row);
    Loss loss;
    auto add = [&](Real term) {
        loss.value += term;
        loss.size += std::fabs(term);
    };
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t t = 0; t < p.queries; ++t) {
            const Line& line = told.lines[std::size_t(g * p.queries + t)];
            if (line.hidden) continue;
            const Real den = line.sum.back();
            const bool none = p.normalize && den == 0;
            loss.usable = loss.usable && !line.risky && line.log_scale < 60;
            if (p.normalize && !none && std::fabs(den) < std::max(1e-10L, 1e-2L * line.size.back()))
                loss.usable = false;
            for (int64_t e = 0; e < p.width && !none; ++e) {
                const Real factor = p.normalize ? 1 / den : std::exp(line.log_scale);
                const double d = s.d_output.get(row * p.groups + g, t, e);
                add(line.sum[std::size_t(e)] * factor * Real(d));
            }
        }
    const std::size_t size = told.U.size();
    const Real factor = !c.log_scale.empty() && held > NONE ? std::exp(told.log_scale - held) : 1;
    for (std::size_t i = 0; i < size; ++i)
        add(told.U[i] * factor * Real(s.d_final[std::size_t(row) * size + i]));
    loss.usable = loss.usable && !told.risky;
    return loss;
}

void check_slope(const Case& c, Dense& x, const Slopes& s, const std::vector<int64_t>& rows,
                 const std::vector<Real>& held, Real* coordinate, Real factor, Real got,
                 Real largest, const std::string& name) {
    const Real before = *coordinate;
    Real slope = 0, size = 0;
    // A corner of ReLU may lie within a step, but not within all of them.
    for (Real step : {1e-5L, 1e-6L, 1e-7L}) {
        slope = size = 0;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            *coordinate = before + step;
            const Loss up = loss_of(c, x, s, rows[i], held[i]);
            *coordinate = before - step;
            const Loss down = loss_of(c, x, s, rows[i], held[i]);
            *coordinate = before;
            if (!up.usable || !down.usable) return;
            slope += (up.value - down.value) / (2 * step) * factor;
            size += up.size;
        }
        const Real top = std::max(largest, std::fabs(slope));
        const Real allowed = c.single() ? 1e-3L * (top + size) : 1e-5L * top + 1e-9L * size;
        if (std::fabs(got - slope) <= allowed + limits_of(c.single()).tiny_factor) return;
    }
    fail("%s is %.12Lg, by differences %.12Lg (largest %.3Lg)", name.c_str(), got, slope, largest);
}

void check_backward(const Case& c, const kt::Kernels& kernels, const Result& made, Dense& x,
                    int threads, Random& random) {
    const Problem& p = c.p;
    const kt::Features& f = p.features;
    const int64_t d = f.inputs, m = f.count, w = p.width + 1, n = p.keys;
    Grid d_output = make_grid(random, p.rows * p.groups, p.queries, p.width, made.output.kind,
                              For::reading);
    fill(random, d_output, 1, 0);
    std::vector<double> d_final(c.sums.size());
    if (random.chance(0.5))
        for (double& e : d_final) e = random.normal();
    const Slopes s = backward(c, kernels, made, d_output, d_final, 1, random);
    if (random.chance(0.2)) {
        const Slopes other = backward(c, kernels, made, d_output, d_final, threads, random);
        auto grids = [&](const Grid& a, const Grid& b, const char* name) {
            set_all(a, [&](int64_t r, int64_t t, int64_t e) {
                if (!same(a.get(r, t, e), b.get(r, t, e)))
                    fail("threads: %s%s", name, at_index({r, t, e}).c_str());
                return a.get(r, t, e);
            });
        };
        grids(s.d_q, other.d_q, "d_q");
        grids(s.d_k, other.d_k, "d_k");
        grids(s.d_v, other.d_v, "d_v");
        compare_part(s.d_sums, 0, 1, other.d_sums, 0, "threads", "d_sums");
        compare_part(s.d_log_decay, 0, 1, other.d_log_decay, 0, "threads", "d_log_decay");
        compare_part(s.d_weight, 0, 1, other.d_weight, 0, "threads", "d_weight");
        compare_part(s.d_bias, 0, 1, other.d_bias, 0, "threads", "d_bias");
    }
    const int64_t work = p.groups * (n + p.queries) * m * w;
    if (c.wild || !p.rows || !n || !p.queries || work > 8000) return;
    if (p.type == Type::f16 || p.type == Type::bf16) return;

    const int64_t r = random.between(0, p.rows - 1);
    const int64_t q = r * p.groups + random.between(0, p.groups - 1);
    std::vector<int64_t> all;
    std::vector<Real> held;
    for (int64_t i = 0; i < p.rows; ++i)
        if (i == r || (s.d_weight.exists && c.which(i) == c.which(r))) {
            all.push_back(i);
            held.push_back(c.log_scale.empty() ? NONE : Real(made.log_scale[i]));
            if (!loss_of(c, x, s, i, held.back()).usable) return;
        }
    const std::size_t mine = std::size_t(std::find(all.begin(), all.end(), r) - all.begin());
    const std::vector<int64_t> one = {r};
    const std::vector<Real> held_one = {held[mine]};
    auto try_grid = [&](const Grid& g, int64_t row, int64_t width, std::vector<Real>& of,
                        Real factor, const char* name) {
        if (!width) return;
        Real largest = 0;
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < width; ++e) {
                if (!std::isfinite(g.get(row, t, e)))
                    fail("%s%s is not finite", name, at_index({row, t, e}).c_str());
                largest = std::max(largest, Real(std::fabs(g.get(row, t, e))));
            }
        const int64_t t = random.between(0, g.tokens - 1), e = random.between(0, width - 1);
        check_slope(c, x, s, one, held_one, &of[std::size_t((row * g.tokens + t) * width + e)],
                    factor, Real(g.get(row, t, e)), largest, name + at_index({row, t, e}));
    };
    const Real root = Real(f.root_scale);
    try_grid(s.d_q, q, d, x.q, root, "d_q");
    try_grid(s.d_k, r, d, x.k, root, "d_k");
    try_grid(s.d_v, r, p.width, x.v, 1, "d_v");
    auto try_array = [&](const Array<double>& a, int64_t first, int64_t count, Real* of,
                         const std::vector<int64_t>& rows, const std::vector<Real>& scales,
                         const char* name) {
        if (!a.exists || !count) return;
        Real largest = 0;
        for (int64_t i = first; i < first + count; ++i) {
            if (!std::isfinite(a[i])) fail("%s[%lld] is not finite", name, (long long)i);
            largest = std::max(largest, Real(std::fabs(a[i])));
        }
        const int64_t i = first + random.between(0, count - 1);
        check_slope(c, x, s, rows, scales, of + i, 1, Real(a[i]), largest,
                    name + at_index({i}));
    };
    const int64_t steps = n * p.decay_width, matrix = d * f.columns;
    try_array(s.d_log_decay, r * steps, steps, x.log_decay.data(), one, held_one, "d_log_decay");
    try_array(s.d_weight, c.which(r) * matrix, matrix, x.weight.data(), all, held, "d_weight");
    try_array(s.d_bias, c.which(r) * f.columns, f.columns, x.bias.data(), all, held, "d_bias");
    // The state is not among the dense numbers: its slope is that of a copy of the case.
    Case shifted = c;
    const int64_t at = r * m * w + random.between(0, m * w - 1);
    Real largest = limits_of(c.single()).tiny_factor, ends[2];
    for (int64_t i = r * m * w; i < (r + 1) * m * w; ++i)
        largest = std::max(largest, Real(std::fabs(s.d_sums[i])));
    const bool nothing = !c.log_scale.empty() && c.log_scale[std::size_t(r)] == -INF;
    for (int side = 0; side < 2 && !nothing; ++side) {
        shifted.sums[std::size_t(at)] = c.sums[std::size_t(at)] + (side ? 0x1p-20 : -0x1p-20);
        const Loss loss = loss_of(shifted, x, s, r, held[mine]);
        if (!loss.usable) return;
        ends[side] = loss.value;
        largest += loss.size * (c.single() ? 1 : 1e-4L);
    }
    if (nothing) return;
    const double here = c.sums[std::size_t(at)];
    const Real span = Real(here + 0x1p-20) - Real(here - 0x1p-20);
    const Real slope = (ends[1] - ends[0]) / span;
    if (!(std::fabs(Real(s.d_sums[at]) - slope) <= (c.single() ? 1e-3L : 1e-5L) * largest))
        fail("d_sums[%lld] is %.12g, by differences %.12Lg", (long long)at, s.d_sums[at], slope);
}

uint64_t digest(Case& c) {
    uint64_t hash = 14695981039346656037u;
    c.each_grid([&](Grid& g) {
        for (int64_t i = 0; g.exists() && i < g.memory.size(); ++i)
            hash = (hash ^ uint8_t(g.memory.data()[i])) * 1099511628211u;
    });
    return hash;
}

struct Options {
    uint64_t seed = 1;
    int64_t cases = 10000, first = 0;
    int threads = 3, callers = 1;
    const char* isa = nullptr;
};

const kt::Kernels& choose(const Options& options, Random& random) {
    if (options.isa) return *kt::find(options.isa);
    std::vector<const kt::Kernels*> found;
    for (const char* name : {"baseline", "avx2", "avx512"})
        if (const kt::Kernels* one = kt::find(name)) found.push_back(one);
    return *found[std::size_t(random.between(0, int64_t(found.size()) - 1))];
}

void run_case(const Options& options, int64_t number, std::string& story) {
    Random random(options.seed, uint64_t(number));
    const kt::Kernels& kernels = choose(options, random);
    Case c = make_case(random, number);
    const Problem& p = c.p;
    const bool small = p.rows * p.groups * (p.keys + p.queries) * p.features.count < 2000000;
    const char* types[] = {"f32", "f64", "f16", "bf16"};
    char text[400];
    std::snprintf(text, sizeof text,
                  "%s %s %s→%s rows %lld heads %lld groups %lld n %lld n_q %lld d %lld m %lld "
                  "M %lld weights %lld chunk %lld start %lld%s%s%s%s%s%s decay %lld%s",
                  kernels.name, name_of(p.features.map), types[int(p.type)],
                  types[int(p.output_type)], (long long)p.rows, (long long)p.heads,
                  (long long)p.groups, (long long)p.keys, (long long)p.queries,
                  (long long)p.features.inputs, (long long)p.features.count, (long long)p.width,
                  (long long)p.features.weight_heads, (long long)p.chunk, (long long)p.start,
                  p.causal ? " causal" : "", p.normalize ? " normalized" : "",
                  c.mask.exists() ? " mask" : "", c.restart.exists() ? " restart" : "",
                  c.log_scale.empty() ? "" : " scaled", c.wild ? " wild" : "",
                  (long long)p.decay_width, c.q_scale.exists() ? " given scales" : "");
    story = text;
    const bool slopes = small && random.chance(0.25);
    c.keep_normalizer = c.keep_normalizer || slopes;
    const bool look = small && random.chance(0.2);
    const uint64_t before = look ? digest(c) : 0;
    const Result made = forward(c, kernels, 1, random);
    Dense x;
    Result stepped;
    const bool by_steps = small && steps(c) && p.keys < 20 && random.chance(0.5);
    if (by_steps) stepped = step_through(c, kernels, options.threads, random);
    if (small) {
        x = densely(c, c.single());
        // Steps with a log-scale are float64, the scaling of a token too: e^{|x|²/2} shows it.
        Dense wide;
        if (by_steps) wide = densely(c, c.single() && c.log_scale.empty());
        for (int64_t r = 0; r < p.rows; ++r) {
            compare_row(c, made, tell(c, x, r), r);
            if (!by_steps) continue;
            try {
                compare_row(c, stepped, tell(c, wide, r), r);
            } catch (const Failure& failure) {
                fail("by steps: %s", failure.what.c_str());
            }
        }
    }
    const int64_t check = small ? random.between(0, 3) : 0;
    if (check == 0 || options.threads > 3)
        check_threads(c, kernels, made, int(random.between(2, options.threads)), random);
    if (check == 1 || !small) check_alone(c, kernels, made, random);
    if (check == 1) check_narrow(c, kernels, made, random);
    if (check >= 2) check_future(c, kernels, made, random);
    if (slopes) check_backward(c, kernels, made, x, options.threads, random);
    if (look && digest(c) != before) fail("the inputs were written");
}

// Blocks of memory that several callers take and give back are theirs alone.
void check_blocks(Random& random) {
    struct Taken {
        char* memory;
        int64_t bytes;
        char mark;
    };
    std::vector<Taken> taken;
    for (int i = 0; i < 200; ++i) {
        if (taken.size() < 4) {
            const int64_t bytes = random.between(1, 5) * random.pick<int64_t>({100, 1 << 20});
            char* memory = static_cast<char*>(kt::take_block(bytes));
            const char mark = char(random.next());
            memory[0] = memory[bytes - 1] = mark;
            taken.push_back({memory, bytes, mark});
            continue;
        }
        const Taken one = taken[std::size_t(random.between(0, 3))];
        taken.erase(std::find_if(taken.begin(), taken.end(),
                                 [&](const Taken& t) { return t.memory == one.memory; }));
        if (one.memory[0] != one.mark || one.memory[one.bytes - 1] != one.mark)
            fail("a block of %lld bytes was given twice", (long long)one.bytes);
        kt::give_block(one.memory, one.bytes);
    }
    for (const Taken& one : taken) kt::give_block(one.memory, one.bytes);
    if (kt::kept_bytes() > kt::KEPT_BYTES) fail("%lld bytes are kept", (long long)kt::kept_bytes());
}

// Little work wakes nobody; threads that lose time are left alone for a while, but not for ever.
void check_worth() {
    using std::chrono::milliseconds;
    if (kt::worth(1e4, 8) != 1) fail("small work is worth another thread");
    if (kt::worth(1e12, 8) != 8) fail("large work is not worth eight threads");
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> helped{false};
    kt::parallel(2, 2, [&](int64_t) {
        if (std::this_thread::get_id() != caller) {
            helped = true;
            std::this_thread::sleep_for(milliseconds(60));  // as though others had the processor
        } else {
            for (int i = 0; i < 1000 && !helped; ++i) std::this_thread::sleep_for(milliseconds(1));
        }
    });
    if (!helped) fail("nobody came to help within a second");
    if (kt::worth(1e8, 2) != 1) fail("a loss of 60 ms is no reason against 3 ms that might be won");
    if (kt::worth(1e12, 2) != 2) fail("a loss of 60 ms is a reason against half a minute");
    for (int i = 0; kt::worth(1e8, 2) != 2; ++i) {
        if (i == 600) fail("a loss of 60 ms is not forgotten after a minute");
        std::this_thread::sleep_for(milliseconds(100));
    }
}

int usage() {
    std::fputs("usage: kt_fuzz [--cases N] [--seed S] [--first I] [--threads T] [--callers C] "
               "[--isa NAME]\n",
               stderr);
    return 2;
}

// One of several callers at once, who take the cases between them.
void work(const Options& options, std::atomic<int64_t>& next, std::atomic<int64_t>& passed,
          std::atomic<bool>& failed) {
    for (int64_t i; !failed && (i = next.fetch_add(1)) < options.cases;) {
        const int64_t number = options.first + i;
        std::string story;
        try {
            run_case(options, number, story);
            if (options.callers > 1 && number % 16 == 0) {
                Random random(options.seed, ~uint64_t(number));
                check_blocks(random);
            }
        } catch (const Failure& failure) {
            failed = true;
            std::printf("case %lld: %s\n  %s\nrepeat: kt_fuzz --seed %llu --first %lld --cases 1 "
                        "--threads %d%s%s\n",
                        (long long)number, failure.what.c_str(), story.c_str(),
                        (unsigned long long)options.seed, (long long)number, options.threads,
                        options.isa ? " --isa " : "", options.isa ? options.isa : "");
            return;
        }
        if (++passed % 10000 == 0) {
            std::printf("%lld\n", (long long)passed);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) return usage();
        const char* value = argv[i + 1];
        if (name == "--cases")
            options.cases = std::atoll(value);
        else if (name == "--seed")
            options.seed = std::strtoull(value, nullptr, 10);
        else if (name == "--first")
            options.first = std::atoll(value);
        else if (name == "--threads")
            options.threads = std::max(2, std::atoi(value));
        else if (name == "--callers")
            options.callers = std::max(1, std::atoi(value));
        else if (name == "--isa")
            options.isa = value;
        else
            return usage();
    }
    if (options.isa && !kt::find(options.isa)) {
        std::fprintf(stderr, "kt_fuzz: this machine and build have no %s\n", options.isa);
        return 2;
    }
    kt::poison = true;
    std::atomic<int64_t> next{0}, passed{0};
    std::atomic<bool> failed{false};
    try {
        check_worth();
    } catch (const Failure& failure) {
        failed = true;
        std::printf("threads: %s\n", failure.what.c_str());
    }
    std::vector<std::thread> callers;
    for (int i = 1; i < options.callers; ++i)
        callers.emplace_back([&] { work(options, next, passed, failed); });
    work(options, next, passed, failed);
    for (std::thread& caller : callers) caller.join();
    std::printf("%lld passed, %d failed\n", (long long)passed, failed ? 1 : 0);
    return failed ? 1 : 0;
}
