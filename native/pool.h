// Threads: a small pool of our own, or those that PyTorch has already. The caller takes part; nothing
// exists until the first parallel call, and a forked child makes its own.
#pragma once

#include <functional>

namespace kt {

int default_threads();
int get_threads();
void set_threads(int count);

// From now on use the threads of GNU OpenMP, if this process has it loaded; whether it does.
bool share_threads();

// task(i) for i in 0 … count−1, each once, on up to `threads` threads; returns when all are done. A
// caller whose own share is done calls `waiting` now and then.
void parallel(int64_t count, int threads, const std::function<void(int64_t)>& task,
              const std::function<void()>& waiting = {});

}  // namespace kt
