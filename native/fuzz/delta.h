// The delta rule under the fuzzer.
#pragma once

#include "memory.h"

namespace fuzz {

// A case of the delta rule, compared with a loop over tokens in long double; `told` is what it is.
void run_delta_case(const kt::Kernels& kernels, Random& random, int threads, bool tell, std::string& told);

}  // namespace fuzz
