// The kernels of one instruction set, by the names of the other files.
#include "operators.h"

namespace kt {
namespace KT_ISA {

void attention(const Problem& p, Control& control);
void attention_backward(const Problem& p, const Gradient& g, Control& control);
void attention_step(const Problem& p, int threads);
void delta_rule(const DeltaRule& p, Control& control);
void delta_rule_backward(const DeltaRule& p, const DeltaRuleGradient& g, Control& control);
void delta_rule_step(const DeltaRule& p, int threads);
void short_convolution(const ShortConvolution& p, Control& control);
void short_convolution_backward(const ShortConvolution& p, const ShortConvolutionGradient& g, Control& control);
void selective_scan(const SelectiveScan& p, Control& control);
void selective_scan_backward(const SelectiveScan& p, const SelectiveScanGradient& g, Control& control);

#define KT_TEXT(x) #x
#define KT_NAME(x) KT_TEXT(x)
extern const Kernels table;
const Kernels table = {
    KT_NAME(KT_ISA),
    attention,
    attention_backward,
    attention_step,
    delta_rule,
    delta_rule_backward,
    delta_rule_step,
    short_convolution,
    short_convolution_backward,
    selective_scan,
    selective_scan_backward,
};

}  // namespace KT_ISA
}  // namespace kt
