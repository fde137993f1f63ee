#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "pool.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kt {
namespace {

// Waking a thread that sleeps can take a millisecond, so wait that long awake first, letting others
// run meanwhile.
template <class Ready> void awake(Ready&& ready) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (!ready() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

// Tasks 0 … count − 1, which whoever is there takes one by one.
struct Job {
    int64_t count;
    const std::function<void(int64_t)>& task;
    const std::function<void()>& waiting;
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex{};
    std::exception_ptr error{};

    void take() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count; done.fetch_add(1)) {
            try {
                task(i);
            } catch (...) {  // out of memory, mostly: for the caller to see
                std::lock_guard<std::mutex> lock(mutex);
                if (!error) error = std::current_exception();
            }
        }
    }
};

class Pool {
  public:
    void run(Job& job, int helpers) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (int(workers_.size()) < helpers) {
                const int number = int(workers_.size());
                workers_.emplace_back([this, number] { work(number); });
            }
            job_ = &job;
            helpers_ = helpers;
            busy_.store(helpers);
            round_.fetch_add(1);
        }
        wake_.notify_all();
        job.take();
        awake([this] { return busy_.load() == 0; });
        std::unique_lock<std::mutex> lock(mutex_);
        while (!done_.wait_for(lock, std::chrono::milliseconds(50), [this] { return busy_.load() == 0; })) {
            if (!job.waiting) continue;
            lock.unlock();
            job.waiting();
            lock.lock();
        }
    }

  private:
    void work(int number) {
        uint64_t seen = 0;
        for (;;) {
            awake([&] { return round_.load() != seen; });
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return round_.load() != seen && number < helpers_; });
            seen = round_.load();
            Job& job = *job_;
            lock.unlock();
            job.take();
            lock.lock();
            if (busy_.fetch_sub(1) == 1) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    Job* job_ = nullptr;
    int helpers_ = 0;
    std::atomic<int> busy_{0};
    std::atomic<uint64_t> round_{0};
};

// PyTorch's threads, where it has some (GNU OpenMP): after a call of PyTorch they stay awake for ten
// milliseconds, in which threads of our own would have to share the processor with them.
using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
std::atomic<Parallel> openmp{nullptr};

void take_part(void* data) {
    Job& job = *static_cast<Job*>(data);
    job.take();
    if (std::this_thread::get_id() != job.caller || !job.waiting) return;
    auto finished = [&] { return job.done.load() == job.count; };
    for (awake(finished); !finished(); job.waiting()) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
        while (!finished() && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

// Never destroyed: its threads may outlive static destructors, and after a fork they do not exist.
Pool* pool = nullptr;
std::mutex pool_mutex;
std::mutex one_at_a_time;  // of the calls that need more than one thread
std::atomic<int> chosen{0};

void run(Job& job, int threads) {
    std::lock_guard<std::mutex> alone(one_at_a_time);
    if (Parallel parallel = openmp.load()) {
        parallel(take_part, &job, unsigned(threads), 0);
        return;
    }
    {
        std::lock_guard<std::mutex> lock(pool_mutex);
        if (!pool) pool = new Pool;
    }
    pool->run(job, threads - 1);
}

#if defined(__unix__) || defined(__APPLE__)
// A child has no threads and may hold locks of its parent: it starts afresh, with threads of its own
// (GNU OpenMP does not survive a fork).
const int registered = pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); }, [] {
    pool = nullptr;
    openmp.store(nullptr);
    pool_mutex.unlock();
    new (&one_at_a_time) std::mutex;
});
#endif

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
    Job job{count, task, waiting};
    run(job, threads);
    if (job.error) std::rethrow_exception(job.error);
}

bool share_threads() {
#if defined(__linux__)
    void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library) openmp.store(reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel")));
#endif
    return openmp.load() != nullptr;
}

}  // namespace kt
