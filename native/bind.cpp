// The one file that knows Python: a call arrives as a dict of numbers, addresses and strides, which
// engines/_native.py makes and answers for (it holds the arrays while the call runs).
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "blocks.h"
#include "core.h"
#include "cost.h"
#include "pool.h"

namespace nb = nanobind;

namespace {

// What a dict holds under one of our names, or null. A name becomes a string of Python's once: there
// are some fifty of them in every call.
nb::handle find(const nb::dict& d, const char* key) {
    static std::unordered_map<const char*, PyObject*> names;  // the interpreter's lock guards it
    PyObject*& name = names[key];
    if (!name) name = PyUnicode_InternFromString(key);
    PyObject* found = name ? PyDict_GetItemWithError(d.ptr(), name) : nullptr;
    if (!found && PyErr_Occurred()) throw nb::python_error();
    return found;
}

template <class V> V get(const nb::dict& d, const char* key, V fallback) {
    const nb::handle found = find(d, key);
    return found.is_valid() ? nb::cast<V>(found) : fallback;
}

template <class V> V* address(const nb::dict& d, const char* key) {
    return reinterpret_cast<V*>(get<uintptr_t>(d, key, 0));
}

// (address, address of offsets, token stride, element stride), or absent.
kt::View view(const nb::dict& d, const char* key) {
    kt::View v;
    const nb::handle found = find(d, key);
    if (!found.is_valid()) return v;
    nb::tuple t = nb::cast<nb::tuple>(found);
    v.data = reinterpret_cast<char*>(nb::cast<uintptr_t>(t[0]));
    v.offset = reinterpret_cast<const int64_t*>(nb::cast<uintptr_t>(t[1]));
    v.token = nb::cast<int64_t>(t[2]);
    v.element = nb::cast<int64_t>(t[3]);
    return v;
}

kt::Problem problem(const nb::dict& d) {
    kt::Problem p;
    p.type = kt::Type(get(d, "type", 0));
    p.output_type = kt::Type(get(d, "output_type", int(p.type)));
    p.rows = get<int64_t>(d, "rows", 0);
    p.heads = get<int64_t>(d, "heads", 1);
    p.groups = get<int64_t>(d, "groups", 1);
    p.keys = get<int64_t>(d, "keys", 0);
    p.queries = get<int64_t>(d, "queries", 0);
    p.width = get<int64_t>(d, "width", 0);
    p.causal = get(d, "causal", false);
    p.normalize = get(d, "normalize", true);
    p.zero_fill = get(d, "zero_fill", 0.0);
    p.start = get<int64_t>(d, "start", 0);
    p.chunk = get<int64_t>(d, "chunk", 0);
    p.decay_width = get<int64_t>(d, "decay_width", 0);
    kt::Features& f = p.features;
    f.map = kt::Map(get(d, "map", 0));
    f.inputs = get<int64_t>(d, "inputs", 0);
    f.count = get<int64_t>(d, "count", 0);
    f.columns = get<int64_t>(d, "columns", 0);
    f.root_scale = get(d, "root_scale", 1.0);
    f.c0 = get(d, "c0", 0.0);
    f.c1 = get(d, "c1", 0.0);
    f.c2 = get(d, "c2", 0.0);
    f.horizon = get(d, "horizon", 0.0);
    f.weight = address<const void>(d, "weight");
    f.bias = address<const void>(d, "bias");
    f.weight_heads = get<int64_t>(d, "weight_heads", 1);
    f.key_weight_heads = get<int64_t>(d, "key_weight_heads", 0);
    p.q = view(d, "q");
    p.k = view(d, "k");
    p.v = view(d, "v");
    p.output = view(d, "output");
    p.mask = view(d, "mask");
    p.query_mask = view(d, "query_mask");
    p.restart = view(d, "restart");
    p.log_decay = view(d, "log_decay");
    p.q_positions = view(d, "q_positions");
    p.k_positions = view(d, "k_positions");
    p.q_scale = view(d, "q_scale");
    p.k_scale = view(d, "k_scale");
    p.sums = address<double>(d, "sums");
    p.sums_stride = get<int64_t>(d, "sums_stride", 0);
    p.log_scale = address<double>(d, "log_scale");
    p.decay_total = address<double>(d, "decay_total");
    p.bad = address<uint8_t>(d, "bad");
    p.zero = address<uint8_t>(d, "zero");
    p.normalizer = address<double>(d, "normalizer");
    p.window = get<int64_t>(d, "window", 0);
    p.sinks = get<int64_t>(d, "sinks", 0);
    p.relative = get(d, "relative", false);
    p.near_scale = get(d, "near_scale", 1.0);
    p.gain = address<const double>(d, "gain");
    p.near_k = view(d, "near_k");
    p.near_v = view(d, "near_v");
    p.near_keep = view(d, "near_keep");
    p.near_positions = view(d, "near_positions");
    p.near_slots = get<int64_t>(d, "near_slots", 0);
    p.seen = address<const int64_t>(d, "seen");
    p.seen_after = address<int64_t>(d, "seen_after");
    p.near_after = address<int64_t>(d, "near_after");
    p.near_slots_after = get<int64_t>(d, "near_slots_after", 0);
    p.near_top = address<double>(d, "near_top");
    p.near_reference = address<double>(d, "near_reference");
    p.near_normalizer = address<double>(d, "near_normalizer");
    return p;
}

kt::Gradient gradient(const nb::dict& d) {
    kt::Gradient g;
    g.d_output = view(d, "d_output");
    g.d_q = view(d, "d_q");
    g.d_k = view(d, "d_k");
    g.d_v = view(d, "d_v");
    g.d_sums = address<double>(d, "d_sums");
    g.d_log_decay = address<double>(d, "d_log_decay");
    g.d_weight = address<double>(d, "d_weight");
    g.d_bias = address<double>(d, "d_bias");
    g.d_near_k = view(d, "d_near_k");
    g.d_near_v = view(d, "d_near_v");
    g.d_gain = address<double>(d, "d_gain");
    return g;
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

// The memory of a contiguous array of a known size.
struct Memory {
    Py_buffer buffer;
    Memory(nb::handle array, int64_t bytes) {
        if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
        if (buffer.len != bytes) {
            PyBuffer_Release(&buffer);
            throw std::runtime_error("an array of another size than the decoder's");
        }
    }
    Memory(const Memory&) = delete;
    ~Memory() { PyBuffer_Release(&buffer); }
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
    explicit Decoder(const nb::dict& d) : p_(problem(d)) {
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
    m.def("forward", [](const nb::dict& d) {
        const kt::Problem p = problem(d);
        run(kt::forward_cost(p), [&](kt::Control& control) { kt::kernels().forward(p, control); });
    });
    m.def("backward", [](const nb::dict& d) {
        const kt::Problem p = problem(d);
        const kt::Gradient g = gradient(d);
        run(kt::backward_cost(p), [&](kt::Control& control) { kt::kernels().backward(p, g, control); });
    });
    nb::class_<Decoder>(m, "Decoder")
        .def(nb::init<const nb::dict&>())
        .def("step", &Decoder::step, nb::arg("position"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("log_decay").none());
    m.def("isa", [] { return kt::kernels().name; });
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
