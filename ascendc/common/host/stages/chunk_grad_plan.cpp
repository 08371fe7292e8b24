// SPDX-License-Identifier: Apache-2.0
#include "stages/chunk_grad_plan.h"

#include "stages/gate_plan.h"

namespace fla
{
namespace
{

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
    for (const Plan &refusal : {CheckHeads(call), CheckTokens(call), CheckTasks(call),
                                CheckGate(call), CheckPorts(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    // Every field is set here: the device sees these bytes and nothing else.
    StagePlan<ChunkGradTiling> plan;
    ChunkGradTiling &t = plan.tiling;
    SetShape(call, t);
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
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
    plan.groups = GroupsOfPairs(call, chip, "HK");
    plan.groupBytes = 2 * ChunkGradCoreBytes(t.gate);
    plan.sharedBytes = ChunkGradRecords(t);
    return plan;
}

}  // namespace fla
