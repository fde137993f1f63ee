// XLA calls the core: one handler for all operators. Its attribute `call` is an array of int64 that
// engines/_xla_call.py writes:
//
//   the checksum of the lists, the operator, whether it is the gradient, arguments, results
//   buffers    of each argument and result: element, rank, dimensions
//   memories   count; of each: element, first and second argument, first and second result, cleared
//   pointers   count; of each: slot of the record, memory, bytes into it
//   numbers    count; of each: slot of the record, argument that holds it
//   offsets    count; of each: slot of the record, length, values
//   record     length; the slots of the call as in engines/calls
//
// Buffers must have the shapes that the call was made for. A memory is a buffer in the type that the core
// reads or writes; −1 stands for no buffer. A memory with an argument and a result is copied from one to
// the other first. Buffers of another type are converted on the way in and out: float32 and whole numbers
// to and from the core's float64 and int64, a pair of float32 being the sum of both. uint32 is plain memory.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost.h"
#include "pool.h"
#include "record.h"
#include "xla.h"

namespace kt::xla {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument("kerneltrick: " + why); }

int64_t width(int element) {
    switch (element) {
        case PRED: return 1;
        case F16: case BF16: return 2;
        case S32: case U32: case F32: return 4;
        case S64: case F64: return 8;
    }
    refuse("elements of type " + std::to_string(element) + " are unknown");
}

std::string text(int element, const int64_t* dims, int64_t rank) {
    std::string found = "type " + std::to_string(element) + " [";
    for (int64_t i = 0; i < rank; ++i) found += (i ? ", " : "") + std::to_string(dims[i]);
    return found + "]";
}

// Takes numbers from the attribute.
class Cursor {
  public:
    explicit Cursor(const Array& array) : at_(static_cast<const int64_t*>(array.data)), left_(int64_t(array.count)) {}
    int64_t one() { return *many(1); }
    const int64_t* many(int64_t count) {
        if (count < 0 || count > left_) refuse("the attribute `call` ends too early");
        const int64_t* found = at_;
        at_ += count;
        left_ -= count;
        return found;
    }
    void done() const {
        if (left_) refuse("the attribute `call` is too long");
    }

  private:
    const int64_t* at_;
    int64_t left_;
};

struct Plain {  // a buffer whose shape has been checked
    int element;
    char* data;
    int64_t count;
};

void checked(const Buffers& given, int64_t count, const char* kind, Cursor& call, std::vector<Plain>& found) {
    if (given.count != count)
        refuse("there are " + std::to_string(given.count) + " " + kind + "s, not " + std::to_string(count));
    for (int64_t i = 0; i < count; ++i) {
        const Buffer& b = *static_cast<Buffer*>(given.all[i]);
        if (given.kinds[i] != BUFFER || b.size < sizeof(Buffer)) refuse("a buffer of another interface");
        const int element = int(call.one());
        const int64_t rank = call.one();
        const int64_t* dims = call.many(rank);
        if (b.element != element || b.rank != rank || !std::equal(dims, dims + rank, b.dims))
            refuse(std::string(kind) + " " + std::to_string(i) + " is " + text(b.element, b.dims, b.rank) +
                   ", but the call was made for " + text(element, dims, rank));
        int64_t size = 1;
        for (int64_t axis = 0; axis < rank; ++axis) size *= dims[axis];
        found.push_back({element, static_cast<char*>(b.data), size});
    }
}

template <class From, class To> void convert(To* to, const Plain& from) {
    for (int64_t i = 0; i < from.count; ++i) to[i] = To(reinterpret_cast<const From*>(from.data)[i]);
}

template <class V> void widen(V* to, const Plain& from, const Plain* rest) {
    if (from.element == F32) convert<float>(to, from);
    else if (from.element == S32) convert<int32_t>(to, from);
    else convert<int64_t>(to, from);
    if (!rest) return;
    for (int64_t i = 0; i < rest->count; ++i) to[i] += V(reinterpret_cast<const float*>(rest->data)[i]);
}

// As hi + lo; a number beyond float32 has no rest.
void narrow(const Plain& to, const Plain* rest, const double* from) {
    float* hi = reinterpret_cast<float*>(to.data);
    for (int64_t i = 0; i < to.count; ++i) hi[i] = float(from[i]);
    if (!rest) return;
    float* lo = reinterpret_cast<float*>(rest->data);
    for (int64_t i = 0; i < to.count; ++i) {
        const double left = from[i] - double(hi[i]);
        lo[i] = left - left == 0 ? float(left) : 0;
    }
}

void narrow(const Plain& to, const int64_t* from) {
    int32_t* x = reinterpret_cast<int32_t*>(to.data);
    for (int64_t i = 0; i < to.count; ++i) x[i] = from[i] < INT32_MIN ? INT32_MIN : int32_t(from[i]);
}

// A buffer in the type that the core wants.
class Memory {
  public:
    Memory(Cursor& call, const std::vector<Plain>& in, const std::vector<Plain>& out) {
        element_ = int(call.one());
        const Plain* from = pick(in, call.one());
        const Plain* from_rest = pick(in, call.one());
        to_ = pick(out, call.one());
        to_rest_ = pick(out, call.one());
        const bool cleared = call.one() != 0;
        const Plain* one = to_ ? to_ : from;
        if (!one || (from && to_ && from->count != to_->count)) refuse("a memory without a buffer");
        if ((from_rest && from_rest->count != one->count) || (to_rest_ && to_rest_->count != one->count))
            refuse("the two parts of a number have different shapes");
        bytes_ = width(one->element) * one->count;
        if (direct(*one)) {
            data_ = one->data;
            if (to_ && from && from->data != to_->data) std::memcpy(data_, from->data, std::size_t(bytes_));
        } else {
            const bool known = one->element == F32 || one->element == S32 || (one->element == S64 && !to_);
            if (width(element_) != 8 || !known) refuse("no such conversion");
            bytes_ = 8 * one->count;
            own_.reset(new int64_t[std::size_t(one->count)]);
            data_ = reinterpret_cast<char*>(own_.get());
            if (from && element_ == F64) widen(reinterpret_cast<double*>(data_), *from, from_rest);
            if (from && element_ == S64) widen(own_.get(), *from, nullptr);
        }
        if (!from && cleared) std::memset(data_, 0, std::size_t(bytes_));
    }

    char* at(int64_t offset) const {
        if (offset < 0 || offset > bytes_) refuse("a pointer outside its buffer");
        return data_ + offset;
    }

    void store() const {
        if (!own_ || !to_) return;
        if (element_ == F64) narrow(*to_, to_rest_, reinterpret_cast<const double*>(data_));
        else narrow(*to_, own_.get());
    }

  private:
    bool direct(const Plain& buffer) const { return buffer.element == element_ || buffer.element == U32; }
    static const Plain* pick(const std::vector<Plain>& from, int64_t at) {
        if (at < 0) return nullptr;
        if (at >= int64_t(from.size())) refuse("no such buffer");
        return &from[std::size_t(at)];
    }

    int element_;
    const Plain *to_, *to_rest_;
    int64_t bytes_;
    char* data_;
    std::unique_ptr<int64_t[]> own_;
};

template <class F> void run(double cost, F&& work) {
    const int asked = asked_threads();
    Control control;
    control.threads = worth(cost, asked ? asked : default_threads());
    work(control);
}

template <class Call, class Gradient>
void run(const std::vector<int64_t>& record, bool backward, void (*Kernels::*forward)(const Call&, Control&),
         void (*Kernels::*gradient)(const Call&, const Gradient&, Control&)) {
    const std::size_t bytes = record.size() * sizeof(int64_t);
    if (backward) {
        const auto [call, grad] = parts<Call, Gradient>(record.data(), bytes);
        run(backward_cost(call), [&, &call = call, &grad = grad](Control& c) { (kernels().*gradient)(call, grad, c); });
    } else {
        const auto [call] = parts<Call>(record.data(), bytes);
        run(forward_cost(call), [&, &call = call](Control& c) { (kernels().*forward)(call, c); });
    }
}

void execute(const Frame& frame) {
    const Attributes& given = frame.attributes;
    const Array* found = nullptr;
    for (int64_t i = 0; i < given.count; ++i)
        if (given.kinds[i] == ARRAY && std::string(given.names[i]->data, given.names[i]->length) == "call")
            found = static_cast<const Array*>(given.all[i]);
    if (!found || found->element != S64) refuse("there is no attribute `call`");
    Cursor call(*found);
    if (call.one() != int64_t(INTERFACE)) refuse("the program was made by another version; compile it again");
    const int64_t op = call.one();
    const bool backward = call.one() != 0;
    const int64_t ins = call.one(), outs = call.one();
    std::vector<Plain> in, out;
    checked(frame.arguments, ins, "argument", call, in);
    checked(frame.results, outs, "result", call, out);

    std::vector<Memory> memories;
    const int64_t count = call.one();
    for (int64_t i = 0; i < count; ++i) memories.emplace_back(call, in, out);

    Cursor pointers = call;  // read again once the record is known
    call.many(3 * call.one());
    Cursor numbers = call;
    call.many(2 * call.one());
    Cursor offsets = call;
    for (int64_t left = call.one(); left > 0; --left) {
        call.one();
        call.many(call.one());
    }
    const int64_t length = call.one();
    const int64_t* values = call.many(length);
    call.done();
    std::vector<int64_t> record(values, values + length);
    const auto slot = [&](int64_t at) -> int64_t& {
        if (at < 0 || at >= length) refuse("no such slot");
        return record[std::size_t(at)];
    };
    for (int64_t left = pointers.one(); left > 0; --left) {
        int64_t& where = slot(pointers.one());
        const int64_t memory = pointers.one();
        if (memory < 0 || memory >= count) refuse("no such memory");
        where = reinterpret_cast<int64_t>(memories[std::size_t(memory)].at(pointers.one()));
    }
    for (int64_t left = numbers.one(); left > 0; --left) {
        int64_t& where = slot(numbers.one());
        const int64_t from = numbers.one();
        if (from < 0 || from >= ins || in[std::size_t(from)].count != 1) refuse("no such number");
        const Plain& x = in[std::size_t(from)];
        if (x.element != S32 && x.element != S64) refuse("a number that is not whole");
        where = x.element == S64 ? *reinterpret_cast<int64_t*>(x.data) : *reinterpret_cast<int32_t*>(x.data);
    }
    for (int64_t left = offsets.one(); left > 0; --left) {
        int64_t& where = slot(offsets.one());
        where = reinterpret_cast<int64_t>(offsets.many(offsets.one()));
    }
    if (op == 0)
        run<Problem, Gradient>(record, backward, &Kernels::forward, &Kernels::backward);
    else if (op == 1)
        run<DeltaRule, DeltaRuleGradient>(record, backward, &Kernels::delta_rule, &Kernels::delta_rule_backward);
    else
        refuse("operator " + std::to_string(op) + " is unknown");
    for (const Memory& memory : memories) memory.store();
}

Error* error(const Frame& frame, const char* message) {
    NewError made{sizeof(NewError), nullptr, message, INVALID_ARGUMENT};
    return frame.api->new_error(&made);
}

}  // namespace

Error* handle(Frame* frame) {
    for (Extension* x = frame->extensions; x; x = x->next) {
        if (x->kind != METADATA) continue;
        Metadata& asked = *reinterpret_cast<MetadataExtension*>(x)->metadata;
        asked.version.major = MAJOR;
        asked.version.minor = MINOR;
        asked.traits = 0;
        return nullptr;
    }
    if (frame->size < sizeof(Frame)) return error(*frame, "kerneltrick: a call of an older interface");
    if (frame->stage != EXECUTE) return nullptr;
    try {
        execute(*frame);
        return nullptr;
    } catch (const std::exception& e) {
        return error(*frame, e.what());
    } catch (...) {
        return error(*frame, "kerneltrick: the core failed");
    }
}

}  // namespace kt::xla
