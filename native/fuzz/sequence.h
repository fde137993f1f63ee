// The short convolution and the selective scan under the fuzzer.
#pragma once

#include "memory.h"

namespace fuzz {

// A case of one of them, compared with loops over tokens in long double; `told` is what it is.
void run_convolution_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& told);
void run_scan_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& told);

}  // namespace fuzz
