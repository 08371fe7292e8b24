// SPDX-License-Identifier: Apache-2.0
#include "stages/summary_plan.h"

#include <algorithm>

#include "stages/state_plan.h"
#include "summary/summary_tiling_data.h"

namespace fla
{
namespace
{

/// Counts that do not fit 32 bits.
Plan CheckWindows(const OpCall &call)
{
    const int64_t heads = call.Dim("HV");
    const int64_t windows = call.Dim("N");
    if (windows > kIndexLimit / kSummaryBlocks / heads) {
        return Refuse("N = ", windows, " windows of HV = ", heads, " heads are more than ",
                      kIndexLimit / kSummaryBlocks, " summaries; pass fewer windows");
    }
    return CheckStateSizes(call);
}

/// What both directions say alike.
template <typename Tiling>
void PlanWindows(const OpCall &call, const ChipSpec &chip, uint32_t groupBytes,
                 StagePlan<Tiling> &plan)
{
    Tiling &t = plan.tiling;
    SetShape(call, t);
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
    t.chunks = 0;  // windows need no numbers for their chunks
    t.gateIsBf16 = call.Is("gk", DType::kBFloat16);
    t.gateIsBase2 = 1;
    t.stateVFirst = 0;
    t.summary = 1;
    // A group takes at least one item; what is beyond the items has nothing to do.
    plan.groups = std::min(chip.cubeCores, kSummaryBlocks * t.sequences * t.valueHeads);
    plan.groupBytes = groupBytes + kSummarySlotBytes;
}

}  // namespace

StagePlan<StateTiling> PlanSummary(const OpCall &call, const ChipSpec &chip)
{
    for (const Plan &refusal : {CheckHeads(call), CheckWindows(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    StagePlan<StateTiling> plan;
    PlanWindows(call, chip, kStateExchangeBytes, plan);
    plan.tiling.initialState = kStateAbsent;
    plan.tiling.finalState = kStateFloat;
    plan.tiling.valuesAreWide = call.Is("u", DType::kFloat);
    plan.tiling.valuePlanes = 1;
    return plan;
}

StagePlan<StateGradTiling> PlanSummaryGrad(const OpCall &call, const ChipSpec &chip)
{
    for (const Plan &refusal : {CheckHeads(call), CheckWindows(call), CheckScale(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    StagePlan<StateGradTiling> plan;
    PlanWindows(call, chip, kStateGradGroupBytes, plan);
    plan.tiling.scale = static_cast<float>(call.Real("scale"));
    plan.tiling.hasGate = call.Tensor("gk") != nullptr;
    plan.tiling.finalGradient = kStateAbsent;
    plan.tiling.initialGradient = kStateFloat;
    return plan;
}

}  // namespace fla
