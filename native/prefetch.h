// Fetches lines of the next block while this one is computed.
#pragma once

#include "core.h"
#include "vec.h"

namespace kt {
namespace KT_ISA {

struct Prefetch {
    const char* from[5] = {};
    int64_t bytes = 0, at = 0;
    int streams = 0;

    // `count` tokens of a row from t, if they lie close together; all streams have one length.
    void add(const View& view, int64_t row, int64_t t, int64_t count, int64_t width, int64_t size) {
        if (count <= 0 || view.element != size || view.token != width * size || streams == 5) return;
        from[streams++] = view.at(row, t);
        bytes = std::max(bytes, count * width * size);
    }

    KT_INLINE void step(int lines) {  // a line too far is harmless: it is a hint
        for (int i = 0; i < lines && at < bytes; ++i, at += 64)
            for (int a = 0; a < streams; ++a) __builtin_prefetch(from[a] + at, 0, 3);
    }
};

}  // namespace KT_ISA
}  // namespace kt
