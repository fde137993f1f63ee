// A call as it crosses from Python: the fields of its list in engines/calls in order, eight bytes a number.
#pragma once

#include <cstring>
#include <stdexcept>
#include <tuple>

#include "operators.h"

namespace kt {

// Reads the fields of a call one after the other.
class Reader {
  public:
    Reader(const void* data, std::size_t bytes) : at_(static_cast<const char*>(data)), end_(at_ + bytes) {}

    void done() const {
        if (at_ != end_) throw std::runtime_error("a call of another size");
    }
    void operator()(int64_t& x) { x = next<int64_t>(); }
    void operator()(double& x) { x = next<double>(); }
    void operator()(bool& x) { x = next<int64_t>() != 0; }
    void operator()(Type& x) { x = Type(next<int64_t>()); }
    void operator()(Map& x) { x = Map(next<int64_t>()); }
    template <class V> void operator()(V*& x) { x = reinterpret_cast<V*>(next<int64_t>()); }
    void operator()(View& x) {
        (*this)(x.data);
        (*this)(x.offset);
        (*this)(x.token);
        (*this)(x.element);
    }

  private:
    template <class V> V next() {
        static_assert(sizeof(V) == 8);
        if (end_ - at_ < 8) throw std::runtime_error("a call of another size");
        V x;
        std::memcpy(&x, at_, 8);
        at_ += 8;
        return x;
    }

    const char *at_, *end_;
};

// A call and, where there is more than one struct, its gradient.
template <class... Part> std::tuple<Part...> parts(const void* data, std::size_t bytes) {
    std::tuple<Part...> made;
    Reader read(data, bytes);
    std::apply([&](auto&... part) { (each_field(part, read), ...); }, made);
    read.done();
    return made;
}

}  // namespace kt
