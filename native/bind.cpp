// The one file that knows Python. A call arrives as bytes: the fields of its list in engines/calls
// in order, eight bytes a number. engines/_core_call.py makes them, and holds the arrays while the call runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "blocks.h"
#include "cost.h"
#include "operators.h"
#include "pool.h"
#include "record.h"
#include "tensors.h"
#include "xla.h"

namespace nb = nanobind;

namespace {

// Collects the fields of a call as numbers of Python's.
class Writer {
  public:
    nb::list values;

    void operator()(int64_t x) { values.append(x); }
    void operator()(double x) { values.append(x); }
    void operator()(bool x) { values.append(int64_t(x)); }
    void operator()(kt::Type x) { values.append(int64_t(x)); }
    void operator()(kt::Map x) { values.append(int64_t(x)); }
    void operator()(const void* x) { values.append(reinterpret_cast<intptr_t>(x)); }
    void operator()(const kt::View& x) {
        (*this)(static_cast<const void*>(x.data));
        (*this)(static_cast<const void*>(x.offset));
        (*this)(x.token);
        (*this)(x.element);
    }
};

template <class... Part> std::tuple<Part...> parts(const nb::bytes& call) {
    return kt::parts<Part...>(call.data(), call.size());
}

bool interrupted() {  // called on the thread of the Python caller, without the GIL
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

// PyTorch's setting, which may change at any time; 0 where PyTorch is not loaded.
int torch_threads() {
    PyObject* name = PyUnicode_FromString("torch");
    PyObject* torch = name ? PyImport_GetModule(name) : nullptr;
    PyObject* count = torch ? PyObject_CallMethod(torch, "get_num_threads", nullptr) : nullptr;
    const long found = count ? PyLong_AsLong(count) : 0;
    Py_XDECREF(count);
    Py_XDECREF(torch);
    Py_XDECREF(name);
    if (PyErr_Occurred()) PyErr_Clear();  // it is being imported, or is another's
    return found > 0 ? int(found) : 0;
}

int threads() {
    if (const int count = kt::asked_threads()) return count;
    if (const int count = torch_threads()) return count;
    return kt::default_threads();
}

template <class F> void run(double cost, F&& work) {
    kt::Control control;
    control.threads = kt::worth(cost, threads());
    control.poll = interrupted;
    {
        nb::gil_scoped_release release;
        work(control);
    }
    if (control.stop) throw nb::python_error();
}

using Runs = std::map<std::string, std::function<void(const char*, std::size_t)>>;

// What runs a call, by the name of its operator.
Runs& runs() {
    static Runs all;
    return all;
}

// The functions of an operator: NAME_defaults, of every field in the order of the list, NAME_forward and
// NAME_backward.
template <class Call, class Gradient>
void bind(nb::module_& m, const std::string& name, void (*kt::Kernels::*forward)(const Call&, kt::Control&),
          void (*kt::Kernels::*backward)(const Call&, const Gradient&, kt::Control&)) {
    m.def((name + "_defaults").c_str(), [] {
        Call call;
        Gradient gradient;
        Writer write;
        kt::each_field(call, write);
        kt::each_field(gradient, write);
        return write.values;
    });
    runs()[name] = [forward](const char* data, std::size_t size) {
        const auto [call] = kt::parts<Call>(data, size);
        run(kt::forward_cost(call), [&, &call = call](kt::Control& c) { (kt::kernels().*forward)(call, c); });
    };
    m.def((name + "_forward").c_str(), [name](const nb::bytes& bytes) {
        runs().at(name)(static_cast<const char*>(bytes.data()), bytes.size());
    });
    m.def((name + "_backward").c_str(), [backward](const nb::bytes& bytes) {
        const auto [call, gradient] = parts<Call, Gradient>(bytes);
        run(kt::backward_cost(call), [&, &call = call, &gradient = gradient](kt::Control& c) {
            (kt::kernels().*backward)(call, gradient, c);
        });
    });
}

// A call that comes again with other memory.
class Repeated {
  public:
    // `fields` are the places of the addresses that change, counted in fields of eight bytes.
    Repeated(const std::string& operation, const nb::bytes& call, std::vector<int64_t> fields)
        : run_(runs().at(operation)), call_(call.c_str(), call.size()), fields_(std::move(fields)) {
        for (const int64_t field : fields_)
            if (field < 0 || std::size_t(8 * (field + 1)) > call_.size()) throw std::runtime_error("no such field");
    }

    // `addresses` has eight bytes for each of these fields.
    void run(const nb::bytes& addresses) const {
        if (addresses.size() != 8 * fields_.size()) throw std::runtime_error("addresses for other fields");
        std::string call = call_;  // several threads may repeat a call
        const char* from = addresses.c_str();
        for (const int64_t field : fields_) {
            std::memcpy(call.data() + 8 * field, from, 8);
            from += 8;
        }
        run_(call.data(), call.size());
    }

  private:
    const std::function<void(const char*, std::size_t)>& run_;
    std::string call_;
    std::vector<int64_t> fields_;
};

// Reads tensors of the given types by the exchange interface of their library.
class TensorReader {
  public:
    TensorReader(nb::capsule interface, nb::tuple types) : types_(std::move(types)), negative_("is_neg") {
        if (std::strcmp(interface.name() ? interface.name() : "", kt::dlpack::CAPSULE) != 0)
            throw nb::type_error("not an exchange interface of DLPack");
        interface_ = static_cast<const kt::dlpack::Interface*>(interface.data());
    }

    bool usable() const { return interface_->major == kt::dlpack::MAJOR && interface_->describe; }

    // What a call of the core depends on but for its values, and the addresses, eight bytes each: shapes,
    // strides and types of the tensors, of which some may be None. None if one is not as the core can have it.
    nb::object read(const nb::tuple& tensors) const {
        std::string layout, addresses;
        for (const nb::handle x : tensors) {
            kt::dlpack::Tensor found = {};
            if (!x.is_none() && !describe(x, found)) return nb::none();
            const int64_t address = reinterpret_cast<intptr_t>(found.data) + int64_t(found.byte_offset);
            addresses.append(reinterpret_cast<const char*>(&address), 8);
            const int64_t type = x.is_none() ? -1 : found.axes * 65536 + found.kind * 256 + found.bits;
            layout.append(reinterpret_cast<const char*>(&type), 8);
            layout.append(reinterpret_cast<const char*>(found.shape), 8 * std::size_t(found.axes));
            layout.append(reinterpret_cast<const char*>(found.strides), 8 * std::size_t(found.axes));
        }
        return nb::make_tuple(nb::bytes(layout.data(), layout.size()), nb::bytes(addresses.data(), addresses.size()));
    }

  private:
    bool describe(nb::handle x, kt::dlpack::Tensor& found) const {
        bool known = false;
        for (const nb::handle type : types_) known |= type.is(x.type());
        if (!known) return false;
        if (interface_->describe(x.ptr(), &found) != 0) {  // such as a sparse one
            PyErr_Clear();
            return false;
        }
        if (found.device != kt::dlpack::CPU || found.lanes != 1 || (found.axes && (!found.shape || !found.strides)))
            return false;
        PyObject* negative = PyObject_CallMethodNoArgs(x.ptr(), negative_.ptr());  // a bit that DLPack does not show
        if (!negative) PyErr_Clear();
        Py_XDECREF(negative);
        return negative == Py_False;
    }

    nb::tuple types_;
    nb::str negative_;
    const kt::dlpack::Interface* interface_;
};

// The memory of a contiguous array of a known size.
struct Memory {
    Py_buffer buffer = {};
    explicit Memory(nb::handle array) {
        if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
            PyErr_Clear();  // it is not contiguous: as if it were empty
            buffer = {};
        }
    }
    Memory(nb::handle array, int64_t bytes) : Memory(array) {
        if (buffer.len != bytes) throw std::runtime_error("an array of another size than the decoder's");
    }
    Memory(const Memory&) = delete;
    ~Memory() {
        if (buffer.obj) PyBuffer_Release(&buffer);
    }
    int64_t bytes() const { return buffer.obj ? int64_t(buffer.len) : -1; }
    char* data() const { return static_cast<char*>(buffer.buf); }
};

// Where the memory of an array begins, whatever its strides.
uintptr_t address_of(nb::handle array) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDED_RO) != 0) throw nb::python_error();
    const uintptr_t found = reinterpret_cast<uintptr_t>(buffer.buf);
    PyBuffer_Release(&buffer);
    return found;
}

// A decoder's call, made once: what changes from step to step are the addresses of q, k, v and output,
// and the state. Steps must not overlap; attention/_decode.py sees to that.
class Decoder {
  public:
    explicit Decoder(const nb::bytes& call) : p_(std::get<0>(parts<kt::Problem>(call))) {
        const int64_t size = p_.type == kt::Type::f64 ? 8 : p_.type == kt::Type::f32 ? 4 : 2;
        q_.resize(std::size_t(p_.rows * p_.groups));
        k_.resize(std::size_t(p_.rows));
        v_.resize(std::size_t(p_.rows));
        out_.resize(q_.size());
        decay_.resize(k_.size());
        set(p_.q, q_, p_.features.inputs * size, size);
        set(p_.k, k_, p_.features.inputs * size, size);
        set(p_.v, v_, p_.width * size, size);
        set(p_.output, out_, p_.width * size, size);
        const int64_t wide = p_.type == kt::Type::f64 ? 8 : 4;
        set(p_.log_decay, decay_, p_.decay_width * wide, wide);
    }

    // The token at `position`; false if a normaliser is exactly 0.
    bool step(int64_t position, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
              nb::object decay) const {
        Memory mq(q, bytes(p_.q, q_)), mk(k, bytes(p_.k, k_)), mv(v, bytes(p_.v, v_)),
            mo(out, bytes(p_.output, out_));
        std::optional<Memory> md;
        std::vector<uint8_t> zero(q_.size());
        kt::Problem p = p_;
        p.start = position;
        p.q.data = mq.data();
        p.k.data = mk.data();
        p.v.data = mv.data();
        p.output.data = mo.data();
        p.zero = zero.data();
        if (!decay.is_none()) {
            md.emplace(decay, bytes(p.log_decay, decay_));
            p.log_decay.data = md->data();
        }
        const double cost = kt::step_cost(p);
        if (cost < 2e4) {  // letting others have the interpreter would take as long
            kt::kernels().step(p, 1);
        } else {
            const int count = kt::worth(cost, threads());
            nb::gil_scoped_release release;
            kt::kernels().step(p, count);
        }
        return std::all_of(zero.begin(), zero.end(), [](uint8_t z) { return z == 0; });
    }

  private:
    static void set(kt::View& view, std::vector<int64_t>& offsets, int64_t row, int64_t element) {
        for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = int64_t(i) * row;
        view.offset = offsets.data();
        view.token = row;
        view.element = element;
    }
    static int64_t bytes(const kt::View& view, const std::vector<int64_t>& offsets) {
        return view.token * int64_t(offsets.size());
    }

    kt::Problem p_;
    std::vector<int64_t> q_, k_, v_, out_, decay_;
};

// A decoder's call of the delta rule, made once. A step gets contiguous arrays: q, k, erase and read
// (rows / groups, d), v and out (rows, M), beta (rows), log_decay (rows, decay_width). The state is that
// of the call, changed in place when the next step or `finish` comes. Steps must not overlap.
class DeltaDecoder {
  public:
    explicit DeltaDecoder(const nb::bytes& call) : p_(std::get<0>(parts<kt::DeltaRule>(call))) {
        const int64_t keys = p_.rows / p_.groups, wide = p_.type == kt::Type::f64 ? 8 : 4;
        p_.tokens = 1;
        const int64_t size = size_of(p_.type);
        inputs_ = {{&kt::DeltaRule::q, keys, p_.inputs, size},        {&kt::DeltaRule::k, keys, p_.inputs, size},
                   {&kt::DeltaRule::v, p_.rows, p_.width, size},      {&kt::DeltaRule::beta, p_.rows, 1, wide},
                   {&kt::DeltaRule::output, p_.rows, p_.width, size_of(p_.output_type)},
                   {&kt::DeltaRule::log_decay, p_.rows, p_.decay_width, wide},
                   {&kt::DeltaRule::erase, keys, p_.inputs, size},    {&kt::DeltaRule::read, keys, p_.inputs, size}};
        for (Input& input : inputs_) {
            input.offsets.resize(std::size_t(input.rows));
            for (int64_t i = 0; i < input.rows; ++i) input.offsets[std::size_t(i)] = i * input.width * input.size;
            p_.*input.view = kt::View{nullptr, input.offsets.data(), input.width * input.size, input.size};
        }
        p_.type == kt::Type::f64 ? begin(doubles_) : begin(floats_);
    }
    DeltaDecoder(const DeltaDecoder&) = delete;

    // False, and nothing has changed, if an array has not the memory that a step needs or a log-decay is
    // not finite or above 0.
    bool step(nb::handle q, nb::handle k, nb::handle v, nb::handle beta, nb::handle out, nb::handle log_decay,
              nb::handle erase, nb::handle read) const {
        kt::DeltaRule p = p_;
        std::optional<Memory> memory[8];
        const nb::handle arrays[8] = {q, k, v, beta, out, log_decay, erase, read};
        for (int i = 0; i < 8; ++i) {
            if (arrays[i].is_none()) continue;
            const Input& input = inputs_[std::size_t(i)];
            memory[i].emplace(arrays[i]);
            if (memory[i]->bytes() != input.rows * input.width * input.size) return false;
            (p.*input.view).data = memory[i]->data();
        }
        const int64_t decays = p.rows * p.decay_width;
        if (p.log_decay.data && !(p.type == kt::Type::f64 ? decaying<double>(p.log_decay.data, decays)
                                                           : decaying<float>(p.log_decay.data, decays)))
            return false;
        run(p);
        return true;
    }

    // Change the state by the last token too.
    void finish() const { run(p_); }

  private:
    struct Input {
        kt::View kt::DeltaRule::*view;
        int64_t rows, width, size;  // in bytes, of a number
        std::vector<int64_t> offsets = {};
    };
    static int64_t size_of(kt::Type type) {
        return type == kt::Type::f64 ? 8 : type == kt::Type::f32 ? 4 : 2;
    }
    template <class T> static bool decaying(const void* numbers, int64_t count) {
        const T* x = static_cast<const T*>(numbers);
        return std::all_of(x, x + count, [](T y) { return y <= 0 && y >= std::numeric_limits<T>::lowest(); });
    }

    // Nothing is pending: the state is multiplied by 1, and 0 is added.
    template <class T> void begin(std::vector<T>& pending) {
        const int64_t size = 3 * p_.inputs + 2 * p_.width;
        pending.assign(std::size_t(p_.rows * size), T(0));
        for (int64_t r = 0; r < p_.rows; ++r) std::fill_n(pending.begin() + r * size, p_.inputs, T(1));
        p_.pending = pending.data();
    }
    static void run(const kt::DeltaRule& p) {
        const int count = kt::worth(kt::step_cost(p), threads());
        nb::gil_scoped_release release;
        kt::kernels().delta_rule_step(p, count);
    }

    kt::DeltaRule p_;
    std::vector<Input> inputs_;
    std::vector<float> floats_;
    std::vector<double> doubles_;
};

// A block of memory that Python sees as a writable buffer of bytes.
class Block {
  public:
    explicit Block(int64_t bytes) : bytes_(bytes), memory_(kt::take_block(bytes)) {}
    Block(const Block&) = delete;
    ~Block() { kt::give_block(memory_, bytes_); }

    static int buffer(PyObject* self, Py_buffer* view, int flags) {
        const Block* block = nb::inst_ptr<Block>(self);
        return PyBuffer_FillInfo(view, self, block->memory_, Py_ssize_t(block->bytes_), 0, flags);
    }

  private:
    int64_t bytes_;
    void* memory_;
};

PyType_Slot block_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Block::buffer)}, {0, nullptr}};

}  // namespace

NB_MODULE(_core, m) {
    // What a program has not let go of when it ends, such as a graph of PyTorch's, is no leak of ours.
    nb::set_leak_warnings(false);
    m.attr("INTERFACE") = kt::INTERFACE;
    nb::class_<Block>(m, "Block", nb::type_slots(block_slots)).def(nb::init<int64_t>());
    m.def("address", address_of);
    m.def("kept_bytes", [] { return kt::kept_bytes(); });
    bind<kt::Problem, kt::Gradient>(m, "attention", &kt::Kernels::forward, &kt::Kernels::backward);
    bind<kt::ShortConvolution, kt::ShortConvolutionGradient>(
        m, "short_convolution", &kt::Kernels::short_convolution, &kt::Kernels::short_convolution_backward);
    bind<kt::SelectiveScan, kt::SelectiveScanGradient>(
        m, "selective_scan", &kt::Kernels::selective_scan, &kt::Kernels::selective_scan_backward);
    nb::class_<Decoder>(m, "Decoder")
        .def(nb::init<const nb::bytes&>())
        .def("step", &Decoder::step, nb::arg("position"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("log_decay").none());
    bind<kt::DeltaRule, kt::DeltaRuleGradient>(m, "delta_rule", &kt::Kernels::delta_rule,
                                               &kt::Kernels::delta_rule_backward);
    nb::class_<DeltaDecoder>(m, "DeltaDecoder")
        .def(nb::init<const nb::bytes&>())
        .def("step", &DeltaDecoder::step, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("beta").none(),
             nb::arg("out"), nb::arg("log_decay").none(), nb::arg("erase").none(), nb::arg("read").none())
        .def("finish", &DeltaDecoder::finish);
    runs()["delta_rule_step"] = [](const char* data, std::size_t size) {  // changes the state of the call
        const auto [call] = kt::parts<kt::DeltaRule>(data, size);
        const int count = kt::worth(kt::step_cost(call), threads());
        nb::gil_scoped_release release;
        kt::kernels().delta_rule_step(call, count);
    };
    nb::class_<Repeated>(m, "Repeated")
        .def(nb::init<const std::string&, const nb::bytes&, std::vector<int64_t>>())
        .def("run", &Repeated::run);
    nb::class_<TensorReader>(m, "TensorReader")
        .def(nb::init<nb::capsule, nb::tuple>())
        .def("usable", &TensorReader::usable)
        .def("read", &TensorReader::read);
    // For XLA, which calls it without Python.
    m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&kt::xla::handle)); });
    m.def("isa", [] { return kt::kernels().name; });
    m.def("asked_isa", [] {  // reading os.environ takes longer
        const char* name = std::getenv("KERNELTRICK_ISA");
        return name ? name : "";
    });
    m.def("isas", [] {
        nb::list found;
        for (const char* name : {"baseline", "avx2", "avx512"})
            if (kt::find(name)) found.append(name);
        return found;
    });
    m.def("get_threads", threads);
    m.def("set_threads", kt::set_threads);
    m.def("share_threads", kt::share_threads);
    m.def("wake_always", kt::wake_always);
}
