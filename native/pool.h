// Threads: a small pool of our own, or those that PyTorch has already. The caller takes part; nothing
// exists until the first parallel call, and a forked child makes its own.
#pragma once

#include <cstdint>
#include <functional>

namespace kt {

// How many threads a call may use, by whom: set_threads, or else KERNELTRICK_NUM_THREADS (0: neither
// has said; throws invalid_argument if that is no such number) …
int asked_threads();
void set_threads(int count);
// … or else OMP_NUM_THREADS, or else the processors this process may run on.
int default_threads();

// As many of these threads as so many multiply-adds are worth, of the call that this thread is about to
// make: none is woken for little work, or where waking them has lost more time lately than could be won.
int worth(double multiply_adds, int threads);
void wake_always(bool always);  // for tests: whatever the work is worth

// From now on use the threads of GNU OpenMP, if this process has it loaded; whether it does.
bool share_threads();

// task(i) for i in 0 … count−1, each once, on up to `threads` threads; returns when all are done. A
// caller whose own share is done calls `waiting` now and then. Calls of several threads at once do not
// wait for each other: only one of them gets help. `extra` is the share of the work that one thread
// alone would not have.
void parallel(int64_t count, int threads, const std::function<void(int64_t)>& task,
              const std::function<void()>& waiting = {}, double extra = 0);

}  // namespace kt
