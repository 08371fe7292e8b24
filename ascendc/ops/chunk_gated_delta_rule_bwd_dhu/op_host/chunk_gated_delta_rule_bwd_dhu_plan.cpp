// SPDX-License-Identifier: Apache-2.0
#include "chunk_gated_delta_rule_bwd_dhu_plan.h"

#include "chunk_gated_delta_rule_bwd_dhu_tiling_data.h"
#include "contract.h"
#include "stages/state_grad_plan.h"

namespace fla
{
namespace
{

/// h0 asks for dh0 and says in which type.
Plan CheckInitialGradient(const OpCall &call)
{
    const TensorArg *h0 = call.Tensor("h0");
    const TensorArg *dh0 = call.Tensor("dh0");
    if ((h0 == nullptr) != (dh0 == nullptr)) {
        return Refuse("h0 is ", h0 ? "given" : "null", ", but dh0 is ", dh0 ? "given" : "null",
                      ": give both or none");
    }
    if (h0 != nullptr && h0->dtype != dh0->dtype) {
        return Refuse("h0 is ", DTypeName(h0->dtype), ", but dh0 is ", DTypeName(dh0->dtype),
                      ": dh0 comes in the type of h0");
    }
    return {};
}

}  // namespace

Plan PlanChunkGatedDeltaRuleBwdDhu(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal = CheckInitialGradient(call);
    if (refusal.status != kOk) {
        return Named("chunk_gated_delta_rule_bwd_dhu", refusal);
    }
    StateGradUse use;
    use.gateIsBf16 = call.Is("gk", DType::kBFloat16);
    use.finalGradient = StateDtypeOf(call, "dht");
    use.initialGradient = StateDtypeOf(call, "dh0");
    return LaunchOne<ChunkGatedDeltaRuleBwdDhuTilingData>("chunk_gated_delta_rule_bwd_dhu",
                                                          PlanStateGrad(call, chip, use));
}

}  // namespace fla
