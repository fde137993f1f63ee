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

// Scratch memory comes in chunks, and a few are kept as well. The heap would give the pages at its end
// back to the system after every small call, which takes longer than the call.
constexpr std::size_t CHUNK_BYTES = std::size_t(1) << 20;
constexpr std::size_t KEPT_CHUNKS = 8;

void* take_chunk();  // at a cache line's beginning; throws bad_alloc
void give_chunk(void* chunk);

}  // namespace kt
