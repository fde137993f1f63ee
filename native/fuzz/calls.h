// Calls of the kernels on a case, with what they write.
#pragma once

#include "cases.h"

namespace fuzz {

struct Result {
    Grid output;
    std::vector<uint8_t> hidden;  // (rows · groups, n_q): these have no normaliser
    Array<uint8_t> zero, bad;
    Array<double> normalizer, sums, log_scale, decay_total, near_reference, near_normalizer, near_top;
    Array<int64_t> near_after, seen_after;
    Grid ring_k, ring_v, ring_keep, ring_positions;  // of a decoder: its near tokens (native/ring.h)
};

// `state` false: the call has none, which must begin empty, and nobody asks for the one after it.
Result forward(const Case& c, const kt::Kernels& kernels, int threads, Random& random, bool state = true);

// Whether a decoder can be asked for the case, and the same tokens one call at a time.
bool steps(const Case& c);
Result step_through(const Case& c, const kt::Kernels& kernels, int threads, Random& random);

struct Slopes {
    Grid d_output, d_q, d_k, d_v, d_near_k, d_near_v;
    std::vector<double> d_final;
    Array<double> d_sums, d_log_decay, d_weight, d_bias, d_gain;
};

Slopes backward(const Case& c, const kt::Kernels& kernels, const Result& made, const Grid& d_output,
                const std::vector<double>& d_final, int threads, Random& random, bool state = true);

}  // namespace fuzz
