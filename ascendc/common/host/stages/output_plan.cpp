// SPDX-License-Identifier: Apache-2.0
#include "stages/output_plan.h"

#include <algorithm>

namespace fla
{
namespace
{

// A group walks its tasks in pairs: one per vector core.
constexpr uint32_t kTasksPerPair = 2;

/// The kernel counts tokens, tasks and the output's row stride in 32 bits. Divisions, so that no
/// product wraps.
Plan CheckSizes(const OpCall &call)
{
    const int64_t tokens = call.Dim("T");
    const int64_t batch = call.Dim("B");
    const int64_t heads = call.Dim("HV");
    const int64_t chunks = call.Dim("NT");
    if (tokens > kIndexLimit - 64) {
        return Refuse("T = ", tokens, " is above ", kIndexLimit - 64, "; split the sequence");
    }
    if (heads > kIndexLimit / kHeadWidth) {
        return Refuse("HV = ", heads, " is above ", kIndexLimit / kHeadWidth,
                      ": a row of attn_out would not fit a 32-bit stride; split the heads");
    }
    if (chunks > kIndexLimit / batch / heads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " times HV = ", heads,
                      " chunks are more than ", kIndexLimit, "; split the batch or the heads");
    }
    return {};
}

}  // namespace

StagePlan<OutputTiling> PlanOutput(const OpCall &call, const ChipSpec &chip, bool tokenMajor)
{
    const Plan refusal = CheckSizes(call);
    if (refusal.status != kOk) {
        return refusal;
    }
    StagePlan<OutputTiling> plan;
    OutputTiling &t = plan.tiling;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
    t.tokenMajor = tokenMajor;
    t.stateVFirst = call.Flag("state_v_first");
    const uint32_t tasks = (t.packed ? t.chunks : t.sequences * t.chunks) * t.valueHeads;
    plan.groups = std::min(chip.cubeCores, CeilDiv(tasks, kTasksPerPair));
    plan.groupBytes = kOutputRingBytes;
    return plan;
}

}  // namespace fla
