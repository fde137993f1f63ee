// Makes the structs of an operator from its list of fields. operators.h includes this file once for each
// operator, with KT_CALL, KT_CALL_GRADIENT and KT_LIST defined; hence no #pragma once.

struct KT_CALL {
#define KT_FIELD(type, name, value) type name = value;
#include KT_LIST
};

struct KT_CALL_GRADIENT {
#define KT_GRADIENT(type, name, value) type name = value;
#include KT_LIST
};

template <class F> void each_field(KT_CALL& p, F&& fn) {
#define KT_FIELD(type, name, value) fn(p.name);
#include KT_LIST
}

template <class F> void each_field(KT_CALL_GRADIENT& g, F&& fn) {
#define KT_GRADIENT(type, name, value) fn(g.name);
#include KT_LIST
}

#undef KT_CALL
#undef KT_CALL_GRADIENT
#undef KT_LIST
