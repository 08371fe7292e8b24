// SPDX-License-Identifier: Apache-2.0
#include "stages/state_grad_plan.h"

#include <algorithm>

namespace fla
{

StagePlan<StateGradTiling> PlanStateGrad(const OpCall &call, const ChipSpec &chip,
                                         const StateGradUse &use)
{
    for (const Plan &refusal : {CheckStateSizes(call), CheckScale(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    StagePlan<StateGradTiling> plan;
    StateGradTiling &t = plan.tiling;
    SetShape(call, t);
    t.headsPerGroup = 1;
    t.scale = static_cast<float>(call.Real("scale"));
    t.hasGate = 1;
    t.gateIsBf16 = use.gateIsBf16;
    t.gateIsBase2 = call.Flag("use_exp2");
    t.finalGradient = use.finalGradient;
    t.initialGradient = use.initialGradient;
    t.stateVFirst = call.Flag("state_v_first");
    t.summary = 0;
    // A group takes at least one item; what is beyond the items has nothing to do.
    plan.groups = std::min(chip.cubeCores, t.sequences * t.valueHeads);
    plan.groupBytes = kStateGradGroupBytes;
    return plan;
}

}  // namespace fla
