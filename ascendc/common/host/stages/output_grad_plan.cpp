// SPDX-License-Identifier: Apache-2.0
#include "stages/output_grad_plan.h"

#include <algorithm>

namespace fla
{
namespace
{

// A group walks its tasks in pairs: one per vector core.
constexpr uint32_t kTasksPerPair = 2;

/// The kernel counts tokens and tasks in 32 bits. Divisions, so that no product wraps.
Plan Check(const OpCall &call)
{
    const int64_t tokens = call.Dim("T");
    const int64_t batch = call.Dim("B");
    const int64_t heads = call.Dim("HV");
    const int64_t chunks = call.Dim("NT");
    if (tokens > kIndexLimit - 64) {
        return Refuse("T = ", tokens, " is above ", kIndexLimit - 64, "; split the sequence");
    }
    if (chunks > kIndexLimit / batch / heads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " times HV = ", heads,
                      " chunks are more than ", kIndexLimit, "; split the batch or the heads");
    }
    return CheckScale(call);
}

}  // namespace

StagePlan<OutputGradTiling> PlanOutputGrad(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal = Check(call);
    if (refusal.status != kOk) {
        return refusal;
    }
    StagePlan<OutputGradTiling> plan;
    OutputGradTiling &t = plan.tiling;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
    t.stateVFirst = call.Flag("state_v_first");
    t.scale = static_cast<float>(call.Real("scale"));
    const uint32_t tasks = (t.packed ? t.chunks : t.sequences * t.chunks) * t.valueHeads;
    plan.groups = std::min(chip.cubeCores, CeilDiv(tasks, kTasksPerPair));
    plan.groupBytes = kOutputGradGroupBytes;
    return plan;
}

}  // namespace fla
