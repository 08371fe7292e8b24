// SPDX-License-Identifier: Apache-2.0
#include "stages/output_plan.h"

namespace fla
{
namespace
{

/// The row stride of the output, which the kernel keeps in 32 bits.
Plan CheckRows(const OpCall &call)
{
    const int64_t heads = call.Dim("HV");
    if (heads > kIndexLimit / kHeadWidth) {
        return Refuse("HV = ", heads, " is above ", kIndexLimit / kHeadWidth,
                      ": a row of attn_out would not fit a 32-bit stride; split the heads");
    }
    return {};
}

}  // namespace

StagePlan<OutputTiling> PlanOutput(const OpCall &call, const ChipSpec &chip, bool tokenMajor)
{
    for (const Plan &refusal : {CheckRows(call), CheckTokens(call), CheckTasks(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    StagePlan<OutputTiling> plan;
    OutputTiling &t = plan.tiling;
    SetShape(call, t);
    t.tokenMajor = tokenMajor;
    t.stateVFirst = call.Flag("state_v_first");
    plan.groups = GroupsOfPairs(call, chip);
    plan.groupBytes = kOutputRingBytes;
    return plan;
}

}  // namespace fla
