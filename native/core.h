// What the kernels are given: plain arrays, sizes and strides. No Python here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace kt {

// The types, maps and fields of a call are listed once, in src/kerneltrick/engines/calls/. Each
// operator has a list of its own; those of attention are here, the others in operators.h.
enum class Type : int {
#define KT_TYPE(name) name,
#include "attention.def"
};

enum class Map : int {
#define KT_MAP(name) name,
#include "attention.def"
};

constexpr int64_t NO_TOKEN = INT64_MIN;

// Rows of tokens seen through strides, all in bytes; offset[row] is where a row begins.
struct View {
    char* data = nullptr;
    const int64_t* offset = nullptr;
    int64_t token = 0;
    int64_t element = 0;

    char* at(int64_t row, int64_t t) const { return data + offset[row] + t * token; }
};

struct Features {
#define KT_FEATURE(type, name, value) type name = value;
#include "attention.def"

    // The matrix of a head, of so many.
    int64_t query_weight(int64_t head, int64_t heads) const { return head * weight_heads / heads; }
    int64_t key_weight(int64_t head, int64_t heads) const {
        if (key_weight_heads == 0) return query_weight(head, heads);
        return weight_heads + head * key_weight_heads / heads;
    }
};

struct Problem {
    Features features;
#define KT_FIELD(type, name, value) type name = value;
#include "attention.def"

    // Where query t of a row is in arrays (rows · groups, n_q).
    int64_t slot(int64_t row, int64_t t) const { return row * queries + (reversed ? queries - 1 - t : t); }
};

struct Gradient {
#define KT_GRADIENT(type, name, value) type name = value;
#include "attention.def"
};

// Calls fn on every field of a call, in the order of the list.
template <class F> void each_field(Problem& p, F&& fn) {
#define KT_FEATURE(type, name, value) fn(p.features.name);
#define KT_FIELD(type, name, value) fn(p.name);
#include "attention.def"
}
template <class F> void each_field(Gradient& g, F&& fn) {
#define KT_GRADIENT(type, name, value) fn(g.name);
#include "attention.def"
}

// Lets a long call be interrupted: the caller's thread asks `poll` now and then, all heed `stop`.
struct Control {
    int threads = 1;
    bool (*poll)() = nullptr;  // true: stop
    std::atomic<bool> stop{false};
    std::thread::id caller = std::this_thread::get_id();
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();

    bool stopped() {
        if (poll && std::this_thread::get_id() == caller) {
            const auto now = std::chrono::steady_clock::now();
            if (now - last > std::chrono::milliseconds(50)) {
                last = now;
                if (poll()) stop = true;
            }
        }
        return stop.load(std::memory_order_relaxed);
    }
};

}  // namespace kt
