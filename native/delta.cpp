// The delta rule, of one instruction set. This file is compiled twice for each: for arithmetic in
// float32 and, with KT_WIDE, in float64.

#include "delta_grad.h"
#include "delta_step.h"
#include "operators.h"
#include "pool.h"
#include "spares.h"

namespace kt {
namespace KT_ISA {
namespace {

template <class T> void run(const DeltaRule& p, Control& control) {
    const DeltaSizes<T> s(p);
    Spares<DeltaRow<T>> workers;
    parallel(
        p.rows, control.threads,
        [&](int64_t r) {
            if (control.stopped()) return;
            workers.with([&] { return std::make_unique<DeltaRow<T>>(s); },
                         [&](DeltaRow<T>& row) { row.run(r, control); });
        },
        [&] { control.stopped(); });
}

template <class T> void run_backward(const DeltaRule& p, const DeltaRuleGradient& g, Control& control) {
    const DeltaSizes<T> s(p);
    Spares<DeltaGradient<T>> workers;
    parallel(
        p.rows, control.threads,
        [&](int64_t r) {
            if (control.stopped()) return;
            workers.with([&] { return std::make_unique<DeltaGradient<T>>(s, g); },
                         [&](DeltaGradient<T>& row) { row.run(r, control); });
        },
        [&] { control.stopped(); });
}

template <class T> void run_step(const DeltaRule& p, int threads) {
    const int64_t parts = std::min<int64_t>(p.rows, threads > 1 ? 4 * threads : 1);
    parallel(parts, threads, [&](int64_t i) {
        DeltaStep<T> step(p);
        for (int64_t r = i * p.rows / parts; r < (i + 1) * p.rows / parts; ++r) step.run(r);
    });
}

}  // namespace

void delta_rule(const DeltaRule& p, Control& control);
void delta_rule_backward(const DeltaRule& p, const DeltaRuleGradient& g, Control& control);
void delta_rule_step(const DeltaRule& p, int threads);
void delta_rule_wide(const DeltaRule& p, Control& control);
void delta_rule_backward_wide(const DeltaRule& p, const DeltaRuleGradient& g, Control& control);
void delta_rule_step_wide(const DeltaRule& p, int threads);

#if defined(KT_WIDE)

void delta_rule_wide(const DeltaRule& p, Control& control) { run<double>(p, control); }

void delta_rule_backward_wide(const DeltaRule& p, const DeltaRuleGradient& g, Control& control) {
    run_backward<double>(p, g, control);
}

void delta_rule_step_wide(const DeltaRule& p, int threads) { run_step<double>(p, threads); }

#else

void delta_rule(const DeltaRule& p, Control& control) {
    p.type == Type::f64 ? delta_rule_wide(p, control) : run<float>(p, control);
}

void delta_rule_backward(const DeltaRule& p, const DeltaRuleGradient& g, Control& control) {
    p.type == Type::f64 ? delta_rule_backward_wide(p, g, control) : run_backward<float>(p, g, control);
}

void delta_rule_step(const DeltaRule& p, int threads) {
    p.type == Type::f64 ? delta_rule_step_wide(p, threads) : run_step<float>(p, threads);
}

#endif

}  // namespace KT_ISA
}  // namespace kt
