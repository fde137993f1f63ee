// What a handler meets of XLA's foreign function interface: its C structs as version 0.1 lays them out,
// under names of our own. Later versions of major number 0 only add to the end of a struct; each struct
// begins with its size, which is checked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kt::xla {

constexpr int MAJOR = 0, MINOR = 1;

struct Extension {
    std::size_t size;
    int kind;
    Extension* next;
};
constexpr int METADATA = 1;  // the kind of extension that asks for the version

struct Version {
    std::size_t size;
    Extension* extensions;
    int major, minor;
};

struct Metadata {
    std::size_t size;
    Version version;
    uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

struct Error;  // XLA's own

struct NewError {
    std::size_t size;
    Extension* extensions;
    const char* message;
    int code;
};
constexpr int INVALID_ARGUMENT = 3;

struct Api {
    std::size_t size;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*new_error)(NewError*);  // more functions follow
};

enum Element : int { PRED = 1, S32 = 4, S64 = 5, U32 = 8, F16 = 10, F32 = 11, F64 = 12, BF16 = 16 };

struct Buffer {
    std::size_t size;
    Extension* extensions;
    int element;
    void* data;
    int64_t rank;
    int64_t* dims;
};
constexpr int BUFFER = 1;  // the kind of an argument or a result

struct Buffers {  // arguments or results
    std::size_t size;
    Extension* extensions;
    int64_t count;
    int* kinds;
    void** all;
};

struct Text {
    const char* data;
    std::size_t length;
};

struct Array {
    int element;
    std::size_t count;
    void* data;
};
constexpr int ARRAY = 1;  // the kind of an attribute

struct Attributes {
    std::size_t size;
    Extension* extensions;
    int64_t count;
    int* kinds;
    Text** names;
    void** all;
};

struct Frame {
    std::size_t size;
    Extension* extensions;
    const Api* api;
    void* context;
    int stage;
    Buffers arguments;
    Buffers results;
    Attributes attributes;
};
constexpr int EXECUTE = 3;  // the stage

Error* handle(Frame* frame);  // ffi.cpp

}  // namespace kt::xla
