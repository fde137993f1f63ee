// The delta rule token by token in long double, with its gradient.
#pragma once

#include "memory.h"

namespace fuzz {

using Long = long double;
using Longs = std::vector<Long>;

// A call and its arrays. `state` is (rows, d, M).
struct DeltaCase {
    kt::DeltaRule p;  // sizes; `bind` adds the addresses
    Grid q, k, v, beta, log_decay, erase, read, mask, restart;
    std::vector<double> state;
    bool wild = false;  // numbers so large that only NaN can be compared

    Kind wide() const { return arithmetic(p.type); }
    kt::DeltaRule bind() const;
};

struct DeltaGradients {
    Longs q, k, v, erase, read, beta, log_decay, state;  // of one row
};

// One row: outputs, the final state, which of them are NaN, and how large numbers became.
struct DeltaTold {
    Longs output, state;              // (n, M), (d, M)
    std::vector<uint8_t> bad, spoilt; // of outputs (n, M), of columns of the state
    Longs size;                       // (n): the largest number up to there
};

class DeltaLoop {
  public:
    DeltaLoop(const DeltaCase& c, int64_t row);

    DeltaTold run();
    // The gradient of Σ output · d_output + Σ state · d_state; after `run`.
    DeltaGradients back(const Grid& d_output, const std::vector<double>& d_state);

  private:
    struct Token {
        Longs q, k, e, x, v, keep;
        Long beta = 1, root_q = 1, root_k = 1;
        bool hidden = false, fine = true, fine_q = true;
        std::vector<uint8_t> fine_v;
    };
    Token token(int64_t t) const;
    bool restarts(int64_t t) const { return c.restart.exists() && c.restart.get(row, t) != 0; }

    const DeltaCase& c;
    const int64_t row, d, M, n;
    std::vector<Longs> before;  // the state before each token
};

}  // namespace fuzz
