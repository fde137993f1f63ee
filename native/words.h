// The words of a list, which the checksum of the interface is made of. operators.h includes this file
// once for each operator, with KT_LIST defined; hence no #pragma once.

#define KT_TYPE(name) "type " #name ";"
#define KT_MAP(name) "map " #name ";"
#define KT_FEATURE(type, name, value) "feature " #type " " #name " " #value ";"
#define KT_FIELD(type, name, value) "field " #type " " #name " " #value ";"
#define KT_GRADIENT(type, name, value) "gradient " #type " " #name " " #value ";"
#include KT_LIST
#undef KT_TYPE
#undef KT_MAP
#undef KT_FEATURE
#undef KT_FIELD
#undef KT_GRADIENT
#undef KT_LIST
