// What must hold of a case.
#pragma once

#include "calls.h"
#include "oracle.h"

namespace fuzz {

// The bits of one row of an array, and of another row of the other.
template <class V>
void compare_part(const Array<V>& one, int64_t row, int64_t rows, const Array<V>& other,
                  int64_t other_row, const char* why, const char* name) {
    if (!one.exists || !rows) return;
    const int64_t n = one.count / rows;
    for (int64_t i = 0; i < n; ++i) {
        const double a = double(one[row * n + i]), b = double(other[other_row * n + i]);
        if (!same(a, b))
            fail("%s: %s%s is %.17g or %.17g", why, name, at_index({row, i}).c_str(), a, b);
    }
}

void compare_row(const Case& c, const Result& made, const Told& told, int64_t row);
void check_threads(const Case& c, const kt::Kernels& kernels, const Result& made, int threads,
                   Random& random);
void check_alone(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random);
void check_stateless(const Case& c, const kt::Kernels& kernels, const Result& made, int threads,
                     Random& random);
void check_narrow(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random);
void check_future(const Case& c, const kt::Kernels& kernels, const Result& made, Random& random);
void check_backward(const Case& c, const kt::Kernels& kernels, const Result& made, Dense& x, int threads,
                    Random& random);

}  // namespace fuzz
