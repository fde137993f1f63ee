// Random numbers, and memory of the kinds that calls are made of: strides of any sort, half types, gaps
// and guards that tell when a kernel writes where it should not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "../operators.h"

namespace fuzz {

constexpr double NOT = std::numeric_limits<double>::quiet_NaN();
constexpr double INF = std::numeric_limits<double>::infinity();

struct Failure {
    std::string what;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
std::string at_index(std::initializer_list<int64_t> indices);

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

inline Kind kind_of(kt::Type type) { return Kind(int(type)); }
inline Kind arithmetic(kt::Type type) { return type == kt::Type::f64 ? Kind::f64 : Kind::f32; }
inline int64_t size_of(Kind kind) {
    return kind == Kind::byte ? 1 : kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2;
}

double decode(const char* p, Kind kind);
void encode(char* p, Kind kind, double x);
double rounded(double x, Kind kind);
bool same(double a, double b);  // to the bit, or both NaN

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
               bool plain = false);
void check_gaps(const Grid& g, const char* name);

template <class F> void set_all(const Grid& g, F&& value) {
    for (int64_t r = 0; r < g.rows; ++r)
        for (int64_t t = 0; t < g.tokens; ++t)
            for (int64_t e = 0; e < g.width; ++e) g.set(r, t, e, value(r, t, e));
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

}  // namespace fuzz
