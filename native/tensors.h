// Tensors of a library that offers DLPack's exchange interface (`__dlpack_c_exchange_api__`): where their
// memory is and how it is laid out, without a copy or an object. The structs are those of DLPack 1.
#pragma once

#include <cstdint>

namespace kt::dlpack {

constexpr uint32_t MAJOR = 1;
constexpr int32_t CPU = 1;
constexpr const char* CAPSULE = "dlpack_exchange_api";

struct Tensor {
    void* data;
    int32_t device, device_number;
    int32_t axes;
    uint8_t kind, bits;  // of a number
    uint16_t lanes;
    int64_t *shape, *strides;  // in numbers; null: contiguous
    uint64_t byte_offset;
};

struct Interface {
    uint32_t major, minor;
    void* previous;
    void *allocate, *from_object, *to_object;
    int (*describe)(void* object, Tensor* tensor);  // -1 with an exception set; may be null
    void* stream;
};

}  // namespace kt::dlpack
