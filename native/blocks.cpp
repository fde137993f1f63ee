#include "blocks.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kt {
namespace {

constexpr int64_t HUGE = int64_t(2) << 20;
constexpr std::align_val_t LINE{64}, LARGE{std::size_t(HUGE)};

struct Kept {
    void* memory;
    int64_t bytes;
};
std::deque<Kept> kept;  // the oldest first
int64_t total = 0;
std::vector<void*> chunks;  // the one used last is the last
std::mutex mutex;

#if defined(__unix__) || defined(__APPLE__)
// A child must not be born in the middle of another thread's change.
const int registered =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
#endif

// Sizes in steps of a huge page, so that blocks of nearly one size serve each other.
int64_t rounded(int64_t bytes) { return (bytes + HUGE - 1) / HUGE * HUGE; }

void release(const Kept& block) { ::operator delete(block.memory, LARGE); }

}  // namespace

void* take_block(int64_t bytes) {
    if (bytes < HUGE) return ::operator new(std::size_t(std::max<int64_t>(bytes, 1)), LINE);
    bytes = rounded(bytes);
    {
        std::lock_guard<std::mutex> lock(mutex);
        for (auto it = kept.rbegin(); it != kept.rend(); ++it)
            if (it->bytes == bytes) {  // the newest is the likeliest to have its pages still
                void* memory = it->memory;
                kept.erase(std::next(it).base());
                total -= bytes;
                return memory;
            }
    }
    void* memory = ::operator new(std::size_t(bytes), LARGE);
#if defined(__linux__)
    madvise(memory, std::size_t(bytes), MADV_HUGEPAGE);  // a wish: a refusal costs only time
#endif
    return memory;
}

void give_block(void* memory, int64_t bytes) {
    if (bytes < HUGE) return ::operator delete(memory, LINE);
    bytes = rounded(bytes);
    if (bytes > KEPT_BYTES) return ::operator delete(memory, LARGE);
#if defined(__linux__) && defined(MADV_FREE)
    madvise(memory, std::size_t(bytes), MADV_FREE);  // who is short of memory may take the pages
#endif
    std::lock_guard<std::mutex> lock(mutex);
    kept.push_back({memory, bytes});
    total += bytes;
    while (total > KEPT_BYTES) {
        release(kept.front());
        total -= kept.front().bytes;
        kept.pop_front();
    }
}

int64_t kept_bytes() {
    std::lock_guard<std::mutex> lock(mutex);
    return total;
}

void* take_chunk() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (!chunks.empty()) {
            void* chunk = chunks.back();
            chunks.pop_back();
            return chunk;
        }
        chunks.reserve(KEPT_CHUNKS);  // so that giving one back cannot fail
    }
    return ::operator new(CHUNK_BYTES, LINE);
}

void give_chunk(void* chunk) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (chunks.size() < KEPT_CHUNKS) return chunks.push_back(chunk);
    }
    ::operator delete(chunk, LINE);
}

}  // namespace kt
