// Runs recorded calls again, without Python: under ThreadSanitizer, beside pages that nobody may touch,
// and on other processors. tools/sanitize.py records them from calls whose results were compared with the
// float64 reference; here their results must be those that were recorded. -DKT_SANITIZE=… builds it.
//
// A call is, in words of eight bytes: MAGIC, operator, kind, which of ISAS alone can repeat it or −1, the
// number of bytes of the call as
// engines/_core_call.py packs it and these; the number of pieces of memory and of each its type (a letter
// of NumPy's, 'E' for bfloat16), how far its numbers may be from those of another compiler or processor as
// a share of the largest, what is left over when its address is divided by 64, its size, whether the call
// changes it, what it holds before and, if it changes, after; the number of addresses in the
// call, and of each its place there, the piece and where in it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../blocks.h"
#include "../cost.h"
#include "../pool.h"
#include "../record.h"
#include "pool_checks.h"

namespace {

constexpr double LEAST = 1e-37;  // an output may round to 0 elsewhere
constexpr double CANCELLED = 1e-2;  // of the largest number of a call: what sums of such terms leave over
constexpr int64_t MAGIC = 0x4b54524550303031;
constexpr const char* OPERATORS[] = {"attention", "delta_rule", "short_convolution", "selective_scan"};
constexpr const char* ISAS[] = {"baseline", "avx2", "avx512"};
constexpr const char* KINDS[] = {"forward", "backward", "step"};

struct Piece {
    char type;
    double share;
    int64_t beside_line, size;
    bool changes;
    std::string before, after;
};

struct Address {
    int64_t place, piece, offset;
};

struct Call {
    int64_t number = 0, op = 0, kind = 0, isa = -1;
    std::string record;
    std::vector<Piece> pieces;
    std::vector<Address> addresses;

    std::string name() const {
        return "call " + std::to_string(number) + ", " + OPERATORS[op] + " " + KINDS[kind];
    }
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Reads one call after another; several threads may ask.
class Calls {
  public:
    explicit Calls(const std::string& path) : file_(path, std::ios::binary) {
        if (!file_) fail("cannot read " + path);
    }

    bool next(Call& call) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (file_.peek() == EOF) return false;
        if (word() != MAGIC) fail("this is no file of recorded calls, or another version's");
        call = Call();
        call.number = count_++;
        call.op = word();
        call.kind = word();
        call.isa = word();
        call.record = bytes(word());
        call.pieces.resize(std::size_t(word()));
        for (Piece& piece : call.pieces) {
            piece.type = char(word<int64_t>());
            piece.share = word<double>();
            piece.beside_line = word();
            piece.size = word();
            piece.changes = word() != 0;
            piece.before = bytes(piece.size);
            if (piece.changes) piece.after = bytes(piece.size);
        }
        call.addresses.resize(std::size_t(word()));
        for (Address& address : call.addresses) address = {word(), word(), word()};
        return true;
    }

  private:
    template <class T = int64_t> T word() {
        T x = 0;
        file_.read(reinterpret_cast<char*>(&x), 8);
        return x;
    }
    std::string bytes(int64_t size) {
        std::string found(std::size_t(size), 0);
        file_.read(&found[0], size);
        if (!file_) fail("the file of calls ends too early");
        return found;
    }

    std::ifstream file_;
    std::mutex mutex_;
    int64_t count_ = 0;
};

// Memory between two pages that nobody may touch: it ends, or begins, where one of them begins or ends.
class Guarded {
  public:
    Guarded(const Piece& piece, bool at_end) : size_(piece.size) {
        const int64_t page = sysconf(_SC_PAGESIZE), room = (size_ + 63 + page) / page * page;
        whole_ = room + 2 * page;
        base_ = static_cast<char*>(mmap(nullptr, std::size_t(whole_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (base_ == MAP_FAILED || mprotect(base_ + page, std::size_t(room), PROT_READ | PROT_WRITE) != 0)
            fail("no memory");
        // Arrays of the core's own begin on a cache line, and stay there; others begin anywhere.
        const int64_t start = piece.beside_line == 0 ? 64 : 16;
        data_ = base_ + page + (at_end ? (room - size_) / start * start : 0);
        if (at_end && piece.beside_line != 0) data_ = base_ + page + (room - size_) / 8 * 8;
        std::memcpy(data_, piece.before.data(), std::size_t(size_));
    }
    Guarded(const Guarded&) = delete;
    ~Guarded() { munmap(base_, std::size_t(whole_)); }

    char* data() const { return data_; }
    std::string content() const { return std::string(data_, std::size_t(size_)); }

  private:
    char *base_, *data_;
    int64_t size_, whole_;
};

using Memory = std::vector<std::unique_ptr<Guarded>>;

// Runs the call on memory of its own and returns what is in it afterwards.
std::vector<std::string> run(const Call& call, const kt::Kernels& kernels, int threads, bool at_end) {
    Memory memory;
    for (const Piece& piece : call.pieces) memory.push_back(std::make_unique<Guarded>(piece, at_end));
    std::string record = call.record;
    for (const Address& address : call.addresses) {
        const char* x = memory[std::size_t(address.piece)]->data() + address.offset;
        std::memcpy(&record[std::size_t(8 * address.place)], &x, 8);
    }
    kt::Control control;
    control.threads = threads;
    const auto forward = [&](auto* like, auto function, auto step) {
        using Struct = std::remove_pointer_t<decltype(like)>;
        auto [p] = kt::parts<Struct>(record.data(), record.size());
        if (call.kind == 0)
            (kernels.*function)(p, control);
        else
            step(p);
    };
    const auto backward = [&](auto* like, auto* slopes, auto function) {
        using Struct = std::remove_pointer_t<decltype(like)>;
        using Slopes = std::remove_pointer_t<decltype(slopes)>;
        auto [p, g] = kt::parts<Struct, Slopes>(record.data(), record.size());
        (kernels.*function)(p, g, control);
    };
    const auto none = [](auto&) { fail("this operator has no step"); };
    using kt::Kernels;
    if (call.op == 0 && call.kind == 1)
        backward((kt::Problem*)nullptr, (kt::Gradient*)nullptr, &Kernels::backward);
    else if (call.op == 0)
        forward((kt::Problem*)nullptr, &Kernels::forward, [&](auto& p) { kernels.step(p, threads); });
    else if (call.op == 1 && call.kind == 1)
        backward((kt::DeltaRule*)nullptr, (kt::DeltaRuleGradient*)nullptr, &Kernels::delta_rule_backward);
    else if (call.op == 1)
        forward((kt::DeltaRule*)nullptr, &Kernels::delta_rule, [&](auto& p) { kernels.delta_rule_step(p, threads); });
    else if (call.op == 2 && call.kind == 1)
        backward((kt::ShortConvolution*)nullptr, (kt::ShortConvolutionGradient*)nullptr,
                 &Kernels::short_convolution_backward);
    else if (call.op == 2)
        forward((kt::ShortConvolution*)nullptr, &Kernels::short_convolution, none);
    else if (call.kind == 1)
        backward((kt::SelectiveScan*)nullptr, (kt::SelectiveScanGradient*)nullptr, &Kernels::selective_scan_backward);
    else
        forward((kt::SelectiveScan*)nullptr, &Kernels::selective_scan, none);
    std::vector<std::string> found;
    for (std::size_t i = 0; i < memory.size(); ++i)
        found.push_back(memory[i]->content());
    return found;
}

double half(uint16_t bits, int fraction, int bias) {
    const int exponents = 15 - fraction, exponent = (bits >> fraction) & ((1 << exponents) - 1);
    const double sign = bits >> 15 ? -1 : 1, rest = bits & ((1 << fraction) - 1);
    if (exponent == (1 << exponents) - 1)
        return rest ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    return sign * std::ldexp(exponent ? rest + (1 << fraction) : rest, std::max(exponent, 1) - bias - fraction);
}

std::vector<double> numbers(const Piece& piece, const std::string& content) {
    std::vector<double> found;
    const auto each = [&](auto zero, auto value) {
        using T = decltype(zero);
        for (std::size_t at = 0; at + sizeof(T) <= content.size(); at += sizeof(T)) {
            T x;
            std::memcpy(&x, content.data() + at, sizeof(T));
            found.push_back(value(x));
        }
    };
    const auto plain = [](auto x) { return double(x); };
    if (piece.type == 'd') each(double(), plain);
    else if (piece.type == 'f') each(float(), plain);
    else if (piece.type == 'e') each(uint16_t(), [](uint16_t x) { return half(x, 10, 15); });
    else if (piece.type == 'E') each(uint16_t(), [](uint16_t x) { return half(x, 7, 127); });
    else each(char(), plain);
    return found;
}

double largest_of(const Piece& piece, const std::string& content) {
    double found = 0;
    for (const double x : numbers(piece, content))
        if (std::isfinite(x)) found = std::max(found, std::fabs(x));
    return found;
}

void compare(const Call& call, const std::vector<std::string>& found) {
    double largest = 0;
    for (const Piece& piece : call.pieces)
        if (piece.changes && std::isfinite(piece.share)) largest = std::max(largest, largest_of(piece, piece.after));
    for (std::size_t i = 0; i < found.size(); ++i) {
        const Piece& piece = call.pieces[i];
        const std::string& after = piece.changes ? piece.after : piece.before;
        if (found[i] == after || std::isinf(piece.share)) continue;
        const std::vector<double> x = numbers(piece, found[i]), truth = numbers(piece, after);
        const double allowed = piece.share * (largest_of(piece, after) + CANCELLED * largest) + LEAST;
        for (std::size_t at = 0; at < x.size(); ++at) {
            const bool same = std::isfinite(truth[at]) ? std::fabs(x[at] - truth[at]) <= allowed
                              : std::isnan(truth[at])  ? std::isnan(x[at])
                                                       : x[at] == truth[at];
            if (same) continue;
            char text[200];
            std::snprintf(text, sizeof text, ": piece %zu (%c), number %zu is %.9g and was %.9g, may be off by %.3g", i,
                          piece.type, at, x[at], truth[at], allowed);
            fail(call.name() + text);
        }
    }
}

void check(const Call& call, int threads) {
    for (int i = 0; i < 3; ++i) {
        const char* isa = ISAS[i];
        const kt::Kernels* kernels = kt::find(isa);
        if (!kernels) continue;
        const auto alone = run(call, *kernels, 1, true);
        if (call.isa < 0 || call.isa == i) compare(call, alone);
        if (threads > 1 && run(call, *kernels, threads, false) != alone)
            fail(call.name() + ": other bits by " + std::to_string(threads) + " threads, " + isa);
    }
}

int usage() {
    std::fputs("usage: kt_replay FILE [--threads T] [--callers C] [--first I]\n", stderr);
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc % 2) return usage();
    int threads = 3, callers = 1;
    int64_t first = 0;
    for (int i = 2; i < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--threads") threads = std::max(1, std::atoi(argv[i + 1]));
        else if (name == "--callers") callers = std::max(1, std::atoi(argv[i + 1]));
        else if (name == "--first") first = std::atoll(argv[i + 1]);
        else return usage();
    }
    std::atomic<int64_t> passed{0}, failed{0};
    const auto guarded = [&](auto&& work) {
        try {
            work();
        } catch (const std::exception& error) {
            ++failed;
            std::printf("%s\n", error.what());
            std::fflush(stdout);
        }
    };
    guarded([] { pool_checks::check_worth(); });
    guarded([&] {
        Calls calls(argv[1]);
        const auto work = [&] {
            Call call;
            while (!failed && calls.next(call)) {
                if (call.number < first) continue;
                guarded([&] { check(call, threads); });
                if (callers > 1 && call.number % 16 == 0) guarded([&] { pool_checks::check_blocks(uint64_t(call.number)); });
                if (++passed % 1000 == 0) std::printf("%lld calls\n", (long long)passed), std::fflush(stdout);
            }
        };
        std::vector<std::thread> others;
        for (int i = 1; i < callers; ++i) others.emplace_back(work);
        work();
        for (std::thread& other : others) other.join();
    });
    std::printf("%lld passed, %lld failed\n", (long long)passed, (long long)failed);
    return failed || !passed ? 1 : 0;
}
