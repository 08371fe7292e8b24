// SPDX-License-Identifier: Apache-2.0
// Tiling of the state_grad stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_STATE_GRAD_PLAN_H
#define FLA_COMMON_HOST_STAGES_STATE_GRAD_PLAN_H

#include "stages/state_plan.h"
#include "state_grad/state_grad_tiling_data.h"

namespace fla
{

/// What operators name or fix differently. The rest is read from the call: the attributes scale,
/// use_exp2 and state_v_first.
struct StateGradUse {
    bool gateIsBf16 = false;                  // gk
    uint32_t finalGradient = kStateAbsent;    // dht: a StateDtype
    uint32_t initialGradient = kStateAbsent;  // dh0: a StateDtype
};

StagePlan<StateGradTiling> PlanStateGrad(const OpCall &call, const ChipSpec &chip,
                                         const StateGradUse &use);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_STATE_GRAD_PLAN_H
