// SPDX-License-Identifier: Apache-2.0
#include "stages/output_grad_plan.h"

namespace fla
{

StagePlan<OutputGradTiling> PlanOutputGrad(const OpCall &call, const ChipSpec &chip)
{
    for (const Plan &refusal : {CheckTokens(call), CheckTasks(call), CheckScale(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    StagePlan<OutputGradTiling> plan;
    OutputGradTiling &t = plan.tiling;
    SetShape(call, t);
    t.stateVFirst = call.Flag("state_v_first");
    t.scale = static_cast<float>(call.Real("scale"));
    plan.groups = GroupsOfPairs(call, chip);
    plan.groupBytes = kOutputGradGroupBytes;
    return plan;
}

}  // namespace fla
