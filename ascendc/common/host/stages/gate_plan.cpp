// SPDX-License-Identifier: Apache-2.0
#include "stages/gate_plan.h"

#include <cmath>

namespace fla
{
namespace
{

// Fifteen steps of it keep E(-P) of a band inside bf16 (prepare.h).
constexpr double kLowestBound = -5.0;

}  // namespace

Plan CheckGate(const OpCall &call)
{
    const bool safe = call.Flag("safe_gate");
    const float bound = static_cast<float>(call.Real("lower_bound"));
    if (!call.Flag("use_gate_in_kernel")) {
        for (const char *name : {"a_log", "dt_bias"}) {
            if (call.Has(name)) {
                return Refuse(name,
                              " is given, but use_gate_in_kernel is false and g is taken as the "
                              "decay itself; leave it out or set use_gate_in_kernel");
            }
        }
        if (safe) {
            return Refuse(
                "safe_gate is true, but use_gate_in_kernel is false; a bound can only be "
                "kept by the gate that is computed in the kernel");
        }
    } else if (!call.Has("a_log")) {
        Plan plan = Refuse("a_log is missing; use_gate_in_kernel needs one value per value head");
        plan.status = kNullPointer;
        return plan;
    } else if (safe && !(bound >= kLowestBound && bound < 0.0F)) {
        return Refuse("lower_bound = ", call.Real("lower_bound"), " is outside [", kLowestBound,
                      ", 0), which safe_gate needs");
    }
    if (!std::isfinite(bound)) {
        return Refuse("lower_bound = ", call.Real("lower_bound"), " is not a finite float32");
    }
    return {};
}

PrepareGate GateOf(const OpCall &call)
{
    if (!call.Flag("use_gate_in_kernel")) {
        return kGateNone;
    }
    return call.Flag("safe_gate") ? kGateBounded : kGateSoftplus;
}

}  // namespace fla
