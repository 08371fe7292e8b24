// SPDX-License-Identifier: Apache-2.0
#include "stages/chunk_grad_plan.h"

#include <algorithm>

#include "stages/gate_plan.h"

namespace fla
{
namespace
{

/// Counts that the kernel keeps in 32 bits. Divisions, so that no product wraps.
Plan CheckSizes(const OpCall &call)
{
    const int64_t tokens = call.Dim("T");
    const int64_t batch = call.Dim("B");
    const int64_t keyHeads = call.Dim("HK");
    const int64_t valueHeads = call.Dim("HV");
    const int64_t chunks = call.Dim("NT");
    if (valueHeads % keyHeads != 0) {
        return Refuse("HV = ", valueHeads, " is not a multiple of HK = ", keyHeads,
                      "; every key head serves the same number of value heads");
    }
    if (tokens > kIndexLimit - 64) {
        return Refuse("T = ", tokens, " is above ", kIndexLimit - 64, "; split the sequence");
    }
    if (chunks > kIndexLimit / batch || batch * chunks > kIndexLimit / valueHeads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " chunks of HV = ", valueHeads,
                      " heads are more than ", kIndexLimit, " tasks; split the batch");
    }
    return {};
}

/// Tensors that go together.
Plan CheckPorts(const OpCall &call)
{
    if (call.Has("q_rstd") != call.Has("k_rstd")) {
        const bool q = call.Has("q_rstd");
        return Refuse(q ? "q_rstd" : "k_rstd", " is given without ", q ? "k_rstd" : "q_rstd",
                      "; the norm of the forward covered both or neither");
    }
    if (call.Tensor("beta")->dtype != call.Tensor("dbeta")->dtype) {
        return Refuse("dbeta differs from beta in dtype; a gradient has the dtype of its input");
    }
    if (call.Has("ddt_bias") && !call.Flag("use_gate_in_kernel")) {
        return Refuse("output ddt_bias is given, but use_gate_in_kernel is false");
    }
    return CheckScale(call);
}

}  // namespace

StagePlan<ChunkGradTiling> PlanChunkGrad(const OpCall &call, const ChipSpec &chip)
{
    for (const Plan &refusal : {CheckSizes(call), CheckGate(call), CheckPorts(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    // Every field is set here: the device sees these bytes and nothing else.
    StagePlan<ChunkGradTiling> plan;
    ChunkGradTiling &t = plan.tiling;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
    t.gate = GateOf(call);
    t.gateIsBf16 = call.Is("raw_g", DType::kBFloat16);
    t.hasBias = call.Has("dt_bias");
    t.aLogIsBf16 = call.Is("a_log", DType::kBFloat16);
    t.betaIsBf16 = call.Is("beta", DType::kBFloat16);
    t.hasRstd = call.Has("q_rstd");
    t.keysAreWide = call.Is("dq", DType::kFloat);
    t.planes = call.Tensor("v_new")->dims.size() == 5 ? 2 : 1;
    t.stateVFirst = call.Flag("state_v_first");
    t.sumsBias = call.Has("ddt_bias");
    t.scale = static_cast<float>(call.Real("scale"));
    t.lowerBound = static_cast<float>(call.Real("lower_bound"));
    // A task is a chunk of a key head; two keep a group busy, one per vector core.
    const int64_t tasks = call.Dim("B") * call.Dim("NT") * call.Dim("HK");
    plan.groups =
        static_cast<uint32_t>(std::min<int64_t>(chip.cubeCores, CeilDiv<int64_t>(tasks, 2)));
    plan.groupBytes = 2 * ChunkGradCoreBytes(t.gate);
    plan.sharedBytes = ChunkGradRecords(t);
    return plan;
}

}  // namespace fla
