#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "pool.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kt {
namespace {

class Pool {
  public:
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            closing_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    void run(int64_t count, int threads, const std::function<void(int64_t)>& task,
             const std::function<void()>& waiting) {
        std::lock_guard<std::mutex> one_at_a_time(callers_);
        const int helpers = threads - 1;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (int(workers_.size()) < helpers) {
                const int number = int(workers_.size());
                workers_.emplace_back([this, number] { work(number); });
            }
            task_ = &task;
            count_ = count;
            next_.store(0, std::memory_order_relaxed);
            helpers_ = helpers;
            busy_.store(helpers);
            round_.fetch_add(1);
        }
        wake_.notify_all();
        take();
        awake([this] { return busy_.load() == 0; });
        std::unique_lock<std::mutex> lock(mutex_);
        while (!done_.wait_for(lock, std::chrono::milliseconds(50), [this] { return busy_.load() == 0; })) {
            if (!waiting) continue;
            lock.unlock();
            waiting();
            lock.lock();
        }
        task_ = nullptr;
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }

  private:
    // Waking a thread that sleeps can take a millisecond, so wait that long awake first, letting
    // others run meanwhile.
    template <class Ready> static void awake(Ready&& ready) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
        while (!ready() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }

    void take() {
        for (;;) {
            const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
            if (i >= count_) return;
            try {
                (*task_)(i);
            } catch (...) {  // out of memory, mostly: for the caller to see
                std::lock_guard<std::mutex> lock(mutex_);
                if (!error_) error_ = std::current_exception();
            }
        }
    }

    void work(int number) {
        uint64_t seen = 0;
        for (;;) {
            awake([&] { return round_.load() != seen; });
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return closing_ || (round_.load() != seen && number < helpers_); });
            if (closing_) return;
            seen = round_.load();
            lock.unlock();
            take();
            lock.lock();
            if (busy_.fetch_sub(1) == 1) done_.notify_one();
        }
    }

    std::mutex callers_, mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const std::function<void(int64_t)>* task_ = nullptr;
    std::atomic<int64_t> next_{0};
    int64_t count_ = 0;
    int helpers_ = 0;
    std::atomic<int> busy_{0};
    std::atomic<uint64_t> round_{0};
    bool closing_ = false;
    std::exception_ptr error_;
};

// Never destroyed: its threads may outlive static destructors, and after a fork they do not exist.
Pool* pool = nullptr;
std::mutex pool_mutex;
std::atomic<int> chosen{0};

Pool& the_pool() {
    std::lock_guard<std::mutex> lock(pool_mutex);
    if (!pool) {
        pool = new Pool;
#if defined(__unix__) || defined(__APPLE__)
        static bool registered = false;
        if (!registered) {
            registered = true;
            // The child has no workers and may hold locks of the parent: it starts afresh.
            pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                           [] {
                               pool = nullptr;
                               pool_mutex.unlock();
                           });
        }
#endif
    }
    return *pool;
}

}  // namespace

int default_threads() {
    if (const char* text = std::getenv("KERNELTRICK_NUM_THREADS")) {
        const int count = std::atoi(text);
        if (count > 0) return count;
    }
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count ? int(count) : 1;
}

int get_threads() {
    const int count = chosen.load();
    return count ? count : default_threads();
}

void set_threads(int count) { chosen.store(count); }

void parallel(int64_t count, int threads, const std::function<void(int64_t)>& task,
              const std::function<void()>& waiting) {
    if (int64_t(threads) > count) threads = int(count);
    if (threads <= 1) {
        for (int64_t i = 0; i < count; ++i) task(i);
        return;
    }
    the_pool().run(count, threads, task, waiting);
}

}  // namespace kt
