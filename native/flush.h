// Numbers that are too small to be normal count as 0 while one of these lives, in this thread. A processor
// takes a hundred times longer for a product with such a number, and decays make many of them.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace kt {
namespace KT_ISA {

#if defined(__SSE2__)
using Mode = unsigned;
constexpr Mode FLUSH = 0x8040;  // results, and what is read
inline Mode get_mode() { return _mm_getcsr(); }
inline void set_mode(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
using Mode = uint64_t;
constexpr Mode FLUSH = Mode(1) << 24;
inline Mode get_mode() {
    Mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
inline void set_mode(Mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
using Mode = unsigned;
constexpr Mode FLUSH = 0;
inline Mode get_mode() { return 0; }
inline void set_mode(Mode) {}
#endif

class Flush {
  public:
    explicit Flush(bool wanted) : before(get_mode()) {
        if (wanted) set_mode(before | FLUSH);
    }
    ~Flush() { set_mode(before); }
    Flush(const Flush&) = delete;
    Flush& operator=(const Flush&) = delete;

  private:
    const Mode before;
};

}  // namespace KT_ISA
}  // namespace kt
