#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
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

using Nanoseconds = int64_t;

constexpr int MOST_THREADS = 1024;
constexpr double RATE = 16;  // multiply-adds per nanosecond that a thread does, nearly
// Work for which another thread is woken: that takes some 50 µs, and more on a virtual machine.
constexpr double SHARE = 1e5;  // nanoseconds
// How fast a loss is forgotten: threads that only ever lose cost this share of the time.
constexpr double FORGOTTEN = 1.0 / 32;

Nanoseconds now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// What this thread has worked, without the time in which others had its processor.
Nanoseconds worked() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
#endif
    return now();
}

// What waking threads has lost: time that calls took beyond the work in them, because callers waited for
// others and the machine had other work for these. It is forgotten as time goes by. Threads are woken
// for work that can win more, so the loss is bounded whatever the machine does.
class Losses {
  public:
    double owed() const {
        const double since = double(now() - when_.load()) * FORGOTTEN;
        return std::max(0.0, amount_.load() - since);
    }
    void add(double lost) {  // by one caller at a time
        if (lost == 0) return;
        amount_.store(owed() + lost);
        when_.store(now());
    }

  private:
    std::atomic<double> amount_{0};
    std::atomic<Nanoseconds> when_{0};
};
Losses losses;
std::atomic<bool> always{false};
thread_local double stake = INFINITY;  // what the call at hand can win, less what it has lost

// Waking a thread that sleeps can take a millisecond, so wait that long awake first, letting others
// run meanwhile.
template <class Ready> void awake(Ready&& ready) {
    const Nanoseconds until = now() + 1000000;
    while (!ready() && now() < until) std::this_thread::yield();
}

// Tasks 0 … count − 1, which whoever is there takes one by one.
struct Job {
    int64_t count;
    const std::function<void(int64_t)>& task;
    const std::function<void()>& waiting;
    std::atomic<int> room;  // for so many helpers
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int64_t> next{0}, done{0};
    std::atomic<Nanoseconds> helped{0};     // the work of others
    Nanoseconds started = 0, finished = 0;  // the caller's own share
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
    void lead() {
        started = now();
        take();
        finished = now();
    }
    void help() {
        if (room.fetch_sub(1) <= 0) return;
        const Nanoseconds before = worked();
        take();
        helped.fetch_add(worked() - before);
    }
};

class Pool {
  public:
    void run(Job& job) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            try {
                for (int n = int(workers_.size()); n < job.room; ++n)
                    workers_.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                // No more threads to be had: those that are there will do.
            }
            job_ = &job;
            round_.fetch_add(1);
        }
        wake_.notify_all();
        job.lead();
        std::unique_lock<std::mutex> lock(mutex_);
        job_ = nullptr;  // who has not come by now is not waited for
        lock.unlock();
        awake([this] { return inside_.load() == 0; });
        lock.lock();
        while (!done_.wait_for(lock, std::chrono::milliseconds(50), [this] { return inside_.load() == 0; })) {
            if (!job.waiting) continue;
            lock.unlock();
            job.waiting();
            lock.lock();
        }
    }

  private:
    void work() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
        for (;;) {
            awake([&] { return round_.load() != seen; });
            lock.lock();
            wake_.wait(lock, [&] { return round_.load() != seen; });
            seen = round_.load();
            if (Job* job = job_) {
                inside_.fetch_add(1);
                lock.unlock();
                job->help();
                lock.lock();
                if (inside_.fetch_sub(1) == 1) done_.notify_one();
            }
            lock.unlock();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    Job* job_ = nullptr;
    std::atomic<int> inside_{0};  // helpers that have come
    std::atomic<uint64_t> round_{0};
};

// PyTorch's threads, where it has some (GNU OpenMP): after a call of PyTorch they stay awake for ten
// milliseconds, in which threads of our own would have to share the processor with them.
using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
using Count = int (*)();
std::atomic<Parallel> openmp{nullptr};
std::atomic<Count> openmp_threads{nullptr};

void take_part(void* data) {
    Job& job = *static_cast<Job*>(data);
    if (std::this_thread::get_id() != job.caller) return job.help();
    job.lead();
    if (!job.waiting) return;
    auto finished = [&] { return job.done.load() == job.count; };
    for (awake(finished); !finished(); job.waiting()) {
        const Nanoseconds until = now() + 50000000;
        while (!finished() && now() < until) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

// Never destroyed: its threads may outlive static destructors, and after a fork they do not exist.
Pool* pool = nullptr;
std::mutex one_at_a_time;  // of the calls that have help; guards `pool`
std::atomic<int> chosen{0};

void run(Job& job) {
    const Parallel parallel = openmp.load();
    // OpenMP waits for all of a team, at work or not: on a busy machine too long. A team of another
    // size than the last one of PyTorch's would end threads, or start them.
    if (parallel && losses.owed() == 0 && job.room < openmp_threads.load()())
        return parallel(take_part, &job, 0, 0);
    if (!pool) pool = new Pool;
    pool->run(job);
}

#if defined(__unix__) || defined(__APPLE__)
// A child has no threads and may hold locks of its parent: it starts afresh, with threads of its own
// (GNU OpenMP does not survive a fork).
const int registered = pthread_atfork(nullptr, nullptr, [] {
    pool = nullptr;
    openmp.store(nullptr);
    new (&one_at_a_time) std::mutex;
});
#endif

// A whole number from 1 to MOST_THREADS at the beginning of a text; 0 if there is none.
int count_of(const char* text, bool alone) {
    char* end = nullptr;
    const long count = text ? std::strtol(text, &end, 10) : 0;
    if (count < 1 || count > MOST_THREADS || (alone && *end)) return 0;
    return int(count);
}

}  // namespace

int asked_threads() {
    if (const int count = chosen.load()) return count;
    const char* text = std::getenv("KERNELTRICK_NUM_THREADS");
    if (!text || !*text) return 0;
    if (const int count = count_of(text, true)) return count;
    throw std::invalid_argument(std::string("KERNELTRICK_NUM_THREADS is '") + text +
                                "'; it can be a whole number from 1 to " + std::to_string(MOST_THREADS));
}

void set_threads(int count) { chosen.store(count); }

int default_threads() {
    // It may be a list, for parallel regions within others: the first is ours.
    if (const int count = count_of(std::getenv("OMP_NUM_THREADS"), false)) return count;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count ? int(count) : 1;
}

int worth(double multiply_adds, int threads) {
    stake = INFINITY;
    if (always.load()) return threads;
    const double alone = multiply_adds / RATE;
    const int count = int(std::min(double(threads), alone / SHARE));
    if (count <= 1) return 1;
    stake = alone - alone / count;
    return stake > losses.owed() ? count : 1;
}

void wake_always(bool on) { always.store(on); }

void parallel(int64_t count, int threads, const std::function<void(int64_t)>& task,
              const std::function<void()>& waiting, double extra) {
    if (int64_t(threads) > count) threads = int(count);
    std::unique_lock<std::mutex> alone(one_at_a_time, std::defer_lock);
    if (threads <= 1 || stake < 0 || !alone.try_lock()) {
        for (int64_t i = 0; i < count; ++i) task(i);
        return;
    }
    Job job{count, task, waiting, {threads - 1}};
    const Nanoseconds before = now();
    run(job);
    const double all = double(job.finished - job.started + job.helped.load());
    const double lost = std::max(0.0, double(now() - before) - all * (1 - extra));
    losses.add(lost);
    stake -= lost;
    if (job.error) std::rethrow_exception(job.error);
}

bool share_threads() {
#if defined(__linux__)
    if (void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD)) {
        openmp_threads.store(reinterpret_cast<Count>(dlsym(library, "omp_get_max_threads")));
        if (openmp_threads.load())
            openmp.store(reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel")));
    }
#endif
    return openmp.load() != nullptr;
}

}  // namespace kt
