// What the threads and the memory of the core promise, which no single call shows.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../blocks.h"
#include "../pool.h"

namespace pool_checks {

inline void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

// Blocks of memory that several callers take and give back are theirs alone.
inline void check_blocks(uint64_t seed) {
    struct Taken {
        char* memory;
        int64_t bytes;
        char mark;
    };
    std::mt19937_64 random(seed);
    std::vector<Taken> taken;
    for (int i = 0; i < 200; ++i) {
        if (taken.size() < 4) {
            const int64_t bytes = int64_t(1 + random() % 5) * (random() % 2 ? 100 : 1 << 20);
            char* memory = static_cast<char*>(kt::take_block(bytes));
            const char mark = char(random());
            memory[0] = memory[bytes - 1] = mark;
            taken.push_back({memory, bytes, mark});
            continue;
        }
        const std::size_t which = random() % 4;
        const Taken one = taken[which];
        taken.erase(taken.begin() + std::ptrdiff_t(which));
        require(one.memory[0] == one.mark && one.memory[one.bytes - 1] == one.mark, "a block was given twice");
        kt::give_block(one.memory, one.bytes);
    }
    for (const Taken& one : taken) kt::give_block(one.memory, one.bytes);
    require(kt::kept_bytes() <= kt::KEPT_BYTES, "more bytes are kept than should be");
}

// Little work wakes nobody; threads that lose time are left alone for a while, but not for ever.
inline void check_worth() {
    using std::chrono::milliseconds;
    require(kt::worth(1e4, 8) == 1, "small work is worth another thread");
    require(kt::worth(1e12, 8) == 8, "large work is not worth eight threads");
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
    require(helped, "nobody came to help within a second");
    require(kt::worth(1e8, 2) == 1, "a loss of 60 ms is no reason against 3 ms that might be won");
    require(kt::worth(1e12, 2) == 2, "a loss of 60 ms is a reason against half a minute");
    for (int i = 0; kt::worth(1e8, 2) != 2; ++i) {
        require(i < 600, "a loss of 60 ms is not forgotten after a minute");
        std::this_thread::sleep_for(milliseconds(100));
    }
}

}  // namespace pool_checks
