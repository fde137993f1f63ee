// What the kernels are given: plain arrays, sizes and strides. No Python here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace kt {

// Calls are addresses, so the Python side must mean by each field what this file does: it knows the
// same number, and takes no core that has another. It is the CRC-32 of the declarations below up to
// Control, comments included; tests/test_native_config.py says what to write when they change.
constexpr uint32_t INTERFACE = 0xd596f10f;

enum class Type : int { f32, f64, f16, bf16 };

constexpr int64_t NO_TOKEN = INT64_MIN;

// The maps that are fused. `given` takes features as they come, with a log-scale per token or none.
enum class Map : int {
    given,
    elu,
    relu,
    relu2,
    exp,
    square,
    cosformer,
    hedgehog_softmax,
    hedgehog_exp,
    hedgehog_separate,
    t2r,
    favor_positive,
    favor_hyperbolic,
    favor_trig,
    quadratic,  // c0 + c1·t + c2·t² of t = q·k
};

// Rows of tokens seen through strides, all in bytes; offset[row] is where a row begins.
struct View {
    char* data = nullptr;
    const int64_t* offset = nullptr;
    int64_t token = 0;
    int64_t element = 0;

    char* at(int64_t row, int64_t t) const { return data + offset[row] + t * token; }
};

struct Features {
    Map map = Map::given;
    int64_t inputs = 0;     // d
    int64_t count = 0;      // m
    int64_t columns = 0;    // of the weights: m, or m/2 where each gives two features
    double root_scale = 1;  // q and k are multiplied by it
    double c0 = 0, c1 = 0, c2 = 0;  // quadratic
    double horizon = 0;             // cosformer
    // Weights (weight_heads + key_weight_heads, d, columns) and bias (weight_heads, columns) in the type
    // of arithmetic, which for a step with log-scales is float64. Without key_weight_heads keys have the
    // weights of queries, else the last ones.
    const void* weight = nullptr;
    const void* bias = nullptr;
    int64_t weight_heads = 1, key_weight_heads = 0;

    // The matrix of a head, of so many.
    int64_t query_weight(int64_t head, int64_t heads) const { return head * weight_heads / heads; }
    int64_t key_weight(int64_t head, int64_t heads) const {
        if (key_weight_heads == 0) return query_weight(head, heads);
        return weight_heads + head * key_weight_heads / heads;
    }
};

struct Problem {
    Type type = Type::f32;  // of q, k and v; arithmetic is float64 for f64, else float32
    Type output_type = Type::f32;
    int64_t rows = 0;       // leading indices × key heads
    int64_t heads = 1;      // key heads: row % heads is the head
    int64_t groups = 1;     // query heads per key head: query row = row · groups + g
    int64_t keys = 0, queries = 0;  // n, n_q
    int64_t width = 0;              // M
    bool causal = true;
    bool normalize = true;
    double zero_fill = 0;
    int64_t start = 0;  // absolute position of the first token
    int64_t chunk = 0;  // tokens per block; 0: chosen by cost
    bool reversed = false;  // the views go backwards through the tokens; the arrays below do not

    // Where query t of a row is in arrays (rows · groups, n_q).
    int64_t slot(int64_t row, int64_t t) const { return row * queries + (reversed ? queries - 1 - t : t); }
    Features features;

    View q, k, v, output;
    View mask, query_mask;      // bytes, 0 = hidden; data null: none
    View restart;               // bytes
    View log_decay;             // type of arithmetic
    int64_t decay_width = 0;    // 0, 1 or m
    View q_positions, k_positions;  // float64
    View q_scale, k_scale;          // float64 log-scales of given features

    // The state, contiguous per row, read and overwritten.
    double* sums = nullptr;         // (rows, m, M + 1): U, and Z as the last column
    int64_t sums_stride = 0;        // of a decoder: numbers from one of the m to the next, if not M + 1
    double* log_scale = nullptr;    // (rows), null if the map has none
    double* decay_total = nullptr;  // (rows, decay_width), null if there is no decay
    uint8_t* bad = nullptr;         // (rows, M + 1)

    // Keys near by have their exact weights e^{near_scale·q·k}: the last `window` tokens, and the first
    // `sinks` of a segment; the map's weights count e^{gain}, or with `relative` e^{gain + largest
    // exponent near by}. Hidden tokens are not counted.
    int64_t window = 0, sinks = 0;
    bool relative = false;
    double near_scale = 1;
    const double* gain = nullptr;  // (heads · groups), null for 0
    // Tokens that the state has kept: slots for sinks, then for the last tokens; in the types of k and v.
    // Of a decoder: a ring (ring.h) in the type of arithmetic, changed in place, `seen` with it (as
    // seen_after); near_keep is 2 where a token is not finite.
    View near_k, near_v, near_keep, near_positions;
    int64_t near_slots = 0;
    const int64_t* seen = nullptr;  // (rows): tokens of the segment before the call, hidden ones aside
    // Which tokens are kept after the call: (rows, near_slots_after), below 0: −1 − slot of those before,
    // or NO_TOKEN. Null if nobody asks.
    int64_t *near_after = nullptr, *seen_after = nullptr;
    int64_t near_slots_after = 0;

    uint8_t* zero = nullptr;      // (rows · groups, n_q): the normaliser is exactly 0
    // Kept for the gradient, (rows · groups, n_q); may be null. What the far part is divided by, in its
    // own units; what near weights are relative to, in logarithms, and divided by.
    double* normalizer = nullptr;
    double *near_reference = nullptr, *near_normalizer = nullptr;
    double* near_top = nullptr;  // the largest exponent near by, where far weights are relative to it
};

struct Gradient {
    View d_output;               // as output
    View d_q, d_k, d_v;          // written
    double* d_sums = nullptr;    // (rows, m, M + 1): of the final state in, of the first one out
    double* d_log_decay = nullptr;  // (rows, n, decay_width), null if not wanted
    double* d_weight = nullptr;     // as the weights, null if not wanted
    double* d_bias = nullptr;       // (weight_heads, columns)
    View d_near_k, d_near_v;        // of the tokens that the state has kept; written
    double* d_gain = nullptr;       // (rows · groups), null if not wanted
};

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

// One instruction set's kernels.
struct Kernels {
    const char* name;
    void (*forward)(const Problem&, Control&);
    void (*backward)(const Problem&, const Gradient&, Control&);
    void (*step)(const Problem&, int threads);  // one token for every row
};

const Kernels& kernels();             // the best this machine has, or the one asked for
const Kernels* find(const char* name);  // null if it was not built or the machine lacks it

}  // namespace kt
