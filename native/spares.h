// Objects that cost much to make, for tasks that need one each: one is made where none is left, and kept
// for the next task. So there are as many as threads at work, however many the tasks.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "vec.h"

namespace kt {
namespace KT_ISA {

template <class Object> class Spares {
  public:
    // f(object), of one that make() has made.
    template <class Make, class F> void with(Make&& make, F&& f) {
        std::unique_ptr<Object> one;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!free_.empty()) {
                one = std::move(free_.back());
                free_.pop_back();
            }
        }
        if (!one) one = make();
        f(*one);
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(one));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Object>> free_;
};

}  // namespace KT_ISA
}  // namespace kt
