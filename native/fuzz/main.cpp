// A fuzzer of the kernels, without Python. Every case is made from the seed and its number, and
// compared with a plain loop over tokens in long double. Of eight, five are of attention, two of the
// delta rule, and one of the short convolution or of the selective scan.
// -DKT_SANITIZE=… builds it, `make sanitize` runs it; after a failure it prints the options that
// repeat the case.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "../blocks.h"
#include "../pool.h"
#include "checks.h"
#include "delta.h"
#include "sequence.h"

namespace kt {
extern bool poison;  // scratch memory begins as NaN
}

namespace {

using namespace fuzz;

struct Options {
    uint64_t seed = 1;
    int64_t cases = 10000, first = 0;
    int threads = 3, callers = 1;
    const char* isa = nullptr;
    bool tell = false;  // what a case is before it runs, for those that end the program
};

const kt::Kernels& choose(const Options& options, Random& random) {
    if (options.isa) return *kt::find(options.isa);
    std::vector<const kt::Kernels*> found;
    for (const char* name : {"baseline", "avx2", "avx512"})
        if (const kt::Kernels* one = kt::find(name)) found.push_back(one);
    return *found[std::size_t(random.between(0, int64_t(found.size()) - 1))];
}

void run_case(const Options& options, int64_t number, std::string& told) {
    Random random(options.seed, uint64_t(number));
    const kt::Kernels& kernels = choose(options, random);
    if (number % 4 == 3) return run_delta_case(kernels, random, options.threads, options.tell, told);
    if (number % 16 == 5) return run_convolution_case(kernels, random, options.threads, options.tell, told);
    if (number % 16 == 13) return run_scan_case(kernels, random, options.threads, options.tell, told);
    Case c = make_case(random, number);
    const Problem& p = c.p;
    const bool small = p.rows * p.groups * (p.keys + p.queries) * p.features.count < 2000000;
    told = std::string(kernels.name) + " " + fuzz::story(c);
    if (options.tell) std::printf("%lld: %s\n", (long long)number, told.c_str()), std::fflush(stdout);
    const bool slopes = small && random.chance(0.25);
    c.keep_normalizer = c.keep_normalizer || slopes;
    const bool look = small && random.chance(0.2);
    const uint64_t before = look ? digest(c) : 0;
    const Result made = forward(c, kernels, 1, random);
    Dense x;
    Result stepped;
    const bool by_steps = small && steps(c) && p.keys < 20 && random.chance(0.5);
    if (by_steps) stepped = step_through(c, kernels, options.threads, random);
    if (small) {
        x = densely(c, c.single());
        // Steps with a log-scale are float64, the scaling of a token too: e^{|x|²/2} shows it.
        Dense wide;
        if (by_steps) wide = densely(c, c.single() && c.log_scale.empty());
        for (int64_t r = 0; r < p.rows; ++r) {
            compare_row(c, made, tell(c, x, r), r);
            if (!by_steps) continue;
            try {
                compare_row(c, stepped, tell(c, wide, r), r);
            } catch (const Failure& failure) {
                fail("by steps: %s", failure.what.c_str());
            }
        }
    }
    const int64_t check = small ? random.between(0, 3) : 0;
    if (check == 0 || options.threads > 3)
        check_threads(c, kernels, made, int(random.between(2, options.threads)), random);
    if (check == 1 || !small) check_alone(c, kernels, made, random);
    if (check <= 1) check_stateless(c, kernels, made, check == 0 ? options.threads : 1, random);
    if (check == 1) check_narrow(c, kernels, made, random);
    if (check >= 2) check_future(c, kernels, made, random);
    if (slopes) check_backward(c, kernels, made, x, options.threads, random);
    if (look && digest(c) != before) fail("the inputs were written");
}

// Blocks of memory that several callers take and give back are theirs alone.
void check_blocks(Random& random) {
    struct Taken {
        char* memory;
        int64_t bytes;
        char mark;
    };
    std::vector<Taken> taken;
    for (int i = 0; i < 200; ++i) {
        if (taken.size() < 4) {
            const int64_t bytes = random.between(1, 5) * random.pick<int64_t>({100, 1 << 20});
            char* memory = static_cast<char*>(kt::take_block(bytes));
            const char mark = char(random.next());
            memory[0] = memory[bytes - 1] = mark;
            taken.push_back({memory, bytes, mark});
            continue;
        }
        const Taken one = taken[std::size_t(random.between(0, 3))];
        taken.erase(std::find_if(taken.begin(), taken.end(),
                                 [&](const Taken& t) { return t.memory == one.memory; }));
        if (one.memory[0] != one.mark || one.memory[one.bytes - 1] != one.mark)
            fail("a block of %lld bytes was given twice", (long long)one.bytes);
        kt::give_block(one.memory, one.bytes);
    }
    for (const Taken& one : taken) kt::give_block(one.memory, one.bytes);
    if (kt::kept_bytes() > kt::KEPT_BYTES) fail("%lld bytes are kept", (long long)kt::kept_bytes());
}

// Little work wakes nobody; threads that lose time are left alone for a while, but not for ever.
void check_worth() {
    using std::chrono::milliseconds;
    if (kt::worth(1e4, 8) != 1) fail("small work is worth another thread");
    if (kt::worth(1e12, 8) != 8) fail("large work is not worth eight threads");
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
    if (!helped) fail("nobody came to help within a second");
    if (kt::worth(1e8, 2) != 1) fail("a loss of 60 ms is no reason against 3 ms that might be won");
    if (kt::worth(1e12, 2) != 2) fail("a loss of 60 ms is a reason against half a minute");
    for (int i = 0; kt::worth(1e8, 2) != 2; ++i) {
        if (i == 600) fail("a loss of 60 ms is not forgotten after a minute");
        std::this_thread::sleep_for(milliseconds(100));
    }
}

int usage() {
    std::fputs("usage: kt_fuzz [--cases N] [--seed S] [--first I] [--threads T] [--callers C] "
               "[--isa NAME] [--tell 1]\n",
               stderr);
    return 2;
}

// One of several callers at once, who take the cases between them.
void work(const Options& options, std::atomic<int64_t>& next, std::atomic<int64_t>& passed,
          std::atomic<bool>& failed) {
    for (int64_t i; !failed && (i = next.fetch_add(1)) < options.cases;) {
        const int64_t number = options.first + i;
        std::string story;
        try {
            run_case(options, number, story);
            if (options.callers > 1 && number % 16 == 0) {
                Random random(options.seed, ~uint64_t(number));
                check_blocks(random);
            }
        } catch (const Failure& failure) {
            failed = true;
            std::printf("case %lld: %s\n  %s\nrepeat: kt_fuzz --seed %llu --first %lld --cases 1 "
                        "--threads %d%s%s\n",
                        (long long)number, failure.what.c_str(), story.c_str(),
                        (unsigned long long)options.seed, (long long)number, options.threads,
                        options.isa ? " --isa " : "", options.isa ? options.isa : "");
            return;
        }
        if (++passed % 10000 == 0) {
            std::printf("%lld\n", (long long)passed);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) return usage();
        const char* value = argv[i + 1];
        if (name == "--cases")
            options.cases = std::atoll(value);
        else if (name == "--seed")
            options.seed = std::strtoull(value, nullptr, 10);
        else if (name == "--first")
            options.first = std::atoll(value);
        else if (name == "--threads")
            options.threads = std::max(2, std::atoi(value));
        else if (name == "--callers")
            options.callers = std::max(1, std::atoi(value));
        else if (name == "--isa")
            options.isa = value;
        else if (name == "--tell")
            options.tell = std::atoi(value) != 0;
        else
            return usage();
    }
    if (options.isa && !kt::find(options.isa)) {
        std::fprintf(stderr, "kt_fuzz: this machine and build have no %s\n", options.isa);
        return 2;
    }
    kt::poison = true;
    std::atomic<int64_t> next{0}, passed{0};
    std::atomic<bool> failed{false};
    try {
        check_worth();
    } catch (const Failure& failure) {
        failed = true;
        std::printf("threads: %s\n", failure.what.c_str());
    }
    std::vector<std::thread> callers;
    for (int i = 1; i < options.callers; ++i)
        callers.emplace_back([&] { work(options, next, passed, failed); });
    work(options, next, passed, failed);
    for (std::thread& caller : callers) caller.join();
    std::printf("%lld passed, %d failed\n", (long long)passed, failed ? 1 : 0);
    return failed ? 1 : 0;
}

