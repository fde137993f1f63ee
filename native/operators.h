// Every operator of the core: the calls of those beside attention, the checksum of all lists, and the
// functions that each instruction set has.
#pragma once

#include "core.h"

namespace kt {

// An operator that has no more than fields is made by call.h from its list.
#define KT_CALL DeltaRule
#define KT_CALL_GRADIENT DeltaRuleGradient
#define KT_LIST "delta_rule.def"
#include "call.h"

#define KT_CALL ShortConvolution
#define KT_CALL_GRADIENT ShortConvolutionGradient
#define KT_LIST "short_convolution.def"
#include "call.h"

#define KT_CALL SelectiveScan
#define KT_CALL_GRADIENT SelectiveScanGradient
#define KT_LIST "selective_scan.def"
#include "call.h"

// The CRC-32 of the lists. The Python side computes the same, and takes no core that has another.
constexpr uint32_t checksum(const char* text) {
    uint32_t sum = 0xffffffff;
    for (; *text; ++text) {
        sum ^= uint8_t(*text);
        for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (0xedb88320 & (0 - (sum & 1)));
    }
    return ~sum;
}
constexpr uint32_t INTERFACE = checksum(
    "operator attention;"
#define KT_LIST "attention.def"
#include "words.h"
    "operator delta_rule;"
#define KT_LIST "delta_rule.def"
#include "words.h"
    "operator short_convolution;"
#define KT_LIST "short_convolution.def"
#include "words.h"
    "operator selective_scan;"
#define KT_LIST "selective_scan.def"
#include "words.h"
);

// One instruction set's kernels.
struct Kernels {
    const char* name;
    void (*forward)(const Problem&, Control&);
    void (*backward)(const Problem&, const Gradient&, Control&);
    void (*step)(const Problem&, int threads);  // one token for every row
    void (*delta_rule)(const DeltaRule&, Control&);
    void (*delta_rule_backward)(const DeltaRule&, const DeltaRuleGradient&, Control&);
    void (*delta_rule_step)(const DeltaRule&, int threads);  // one token for every row
    void (*short_convolution)(const ShortConvolution&, Control&);
    void (*short_convolution_backward)(const ShortConvolution&, const ShortConvolutionGradient&, Control&);
    void (*selective_scan)(const SelectiveScan&, Control&);
    void (*selective_scan_backward)(const SelectiveScan&, const SelectiveScanGradient&, Control&);
};

const Kernels& kernels();             // the best this machine has, or the one asked for
const Kernels* find(const char* name);  // null if it was not built or the machine lacks it

}  // namespace kt
