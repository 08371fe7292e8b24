// SPDX-License-Identifier: Apache-2.0
#include "stages/state_plan.h"

#include <algorithm>

namespace fla
{

Plan CheckStateSizes(const OpCall &call)
{
    const Plan refusal = CheckTokens(call);
    if (refusal.status != kOk) {
        return refusal;
    }
    const int64_t heads = call.Dim("HV");
    const int64_t sequences = call.Dim("N");
    const int64_t batch = call.Dim("B");
    const int64_t chunks = call.Dim("NT");
    if (sequences > kIndexLimit / heads) {
        return Refuse("N = ", sequences, " sequences of HV = ", heads, " heads are more than ",
                      kIndexLimit, " states; split the batch");
    }
    if (chunks > kIndexLimit / batch) {
        return Refuse("B = ", batch, " times NT = ", chunks, " chunks are more than ", kIndexLimit,
                      "; split the batch");
    }
    return {};
}

uint32_t StateDtypeOf(const OpCall &call, const char *port)
{
    if (call.Tensor(port) == nullptr) {
        return kStateAbsent;
    }
    return call.Is(port, DType::kBFloat16) ? kStateBf16 : kStateFloat;
}

StagePlan<StateTiling> PlanState(const OpCall &call, const ChipSpec &chip, const StateUse &use)
{
    const Plan refusal = CheckStateSizes(call);
    if (refusal.status != kOk) {
        return refusal;
    }
    StagePlan<StateTiling> plan;
    StateTiling &t = plan.tiling;
    SetShape(call, t);
    t.headsPerGroup = 1;
    t.gateIsBf16 = use.gateIsBf16;
    t.gateIsBase2 = call.Flag("use_exp2");
    t.initialState = StateDtypeOf(call, "initial_state");
    t.finalState = StateDtypeOf(call, "final_state");
    t.stateVFirst = call.Flag("state_v_first");
    t.valuesAreWide = use.valuesAreWide;
    t.valuePlanes = use.valuePlanes;
    t.summary = 0;
    // A group takes at least one item; what is beyond the items has nothing to do.
    plan.groups = std::min(chip.cubeCores, t.sequences * t.valueHeads);
    plan.groupBytes = kStateExchangeBytes;
    return plan;
}

}  // namespace fla
