// Memory for large results. A fresh page costs a fault and is cleared by the system, for a forward
// pass a third of its time; so blocks that are given back are kept for the next call of that size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kt {

constexpr int64_t KEPT_BYTES = int64_t(256) << 20;  // at most; the system may have their pages back

// Bytes at a cache line's beginning or better; what they hold is not defined. Throws bad_alloc.
void* take_block(int64_t bytes);
void give_block(void* block, int64_t bytes);

int64_t kept_bytes();

}  // namespace kt
