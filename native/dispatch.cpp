#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "operators.h"

namespace kt {

#ifdef KT_POISON
bool poison = true;
#else
bool poison = false;
#endif

namespace baseline {
extern const Kernels table;
}
#if defined(KT_HAVE_AVX2)
namespace avx2 {
extern const Kernels table;
}
#endif
#if defined(KT_HAVE_AVX512)
namespace avx512 {
extern const Kernels table;
}
#endif

const Kernels* find(const char* name) {
#if defined(KT_HAVE_AVX512)
    if (!std::strcmp(name, "avx512") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &avx512::table;
#endif
#if defined(KT_HAVE_AVX2)
    if (!std::strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2::table;
#endif
    return std::strcmp(name, "baseline") ? nullptr : &baseline::table;
}

const Kernels& kernels() {
    if (const char* name = std::getenv("KERNELTRICK_ISA"))
        if (*name) {
            const Kernels* asked = find(name);
            return asked ? *asked : baseline::table;  // the binding has refused other names
        }
    static const Kernels* best = [] {
        for (const char* name : {"avx512", "avx2"})
            if (const Kernels* found = find(name)) return found;
        return &baseline::table;
    }();
    return *best;
}

}  // namespace kt
