// SPDX-License-Identifier: Apache-2.0
#include "stages/prepare_plan.h"

#include <cmath>

#include "stages/gate_plan.h"

namespace fla
{
namespace
{

/// A row stride that the kernel keeps in 32 bits, in bytes.
Plan CheckRows(const OpCall &call, const char *gateInput)
{
    const int64_t valueHeads = call.Dim("HV");
    const int64_t widest = call.Is(gateInput, DType::kFloat) ? 4 : 2;
    if (valueHeads - 1 > kIndexLimit / (kHeadWidth * widest)) {
        return Refuse("HV = ", valueHeads, " rows of ", kHeadWidth * widest,
                      " bytes are more than 4 GiB per token; split the heads");
    }
    return {};
}

Plan CheckForwardAttributes(const OpCall &call)
{
    const float epsilon = static_cast<float>(call.Real("epsilon"));
    // A subnormal may be flushed to 0, and the root of an empty row would divide by it.
    if (!(epsilon >= std::numeric_limits<float>::min()) || !std::isfinite(epsilon)) {
        return Refuse("epsilon = ", call.Real("epsilon"),
                      " is not a finite, normal float32 above 0 (at least 1.18e-38)");
    }
    if (call.Flag("allow_neg_eigval") && !call.Flag("use_beta_sigmoid_in_kernel")) {
        return Refuse(
            "allow_neg_eigval is true, but use_beta_sigmoid_in_kernel is false; it doubles "
            "the sigmoid of beta, so there must be one");
    }
    return {};
}

}  // namespace

StagePlan<PrepareTiling> PlanPrepare(const OpCall &call, const ChipSpec &chip,
                                     const PrepareUse &use)
{
    for (const Plan &refusal : {CheckHeads(call), CheckRows(call, use.gateInput), CheckTokens(call),
                                CheckTasks(call), CheckGate(call), CheckScale(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    // Every field is set here: the device sees these bytes and nothing else.
    StagePlan<PrepareTiling> plan;
    PrepareTiling &t = plan.tiling;
    SetShape(call, t);
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
    t.tokenMajor = use.tokenMajor;
    t.gate = GateOf(call);
    t.gateIsBf16 = call.Is(use.gateInput, DType::kBFloat16);
    t.hasBias = call.Has("dt_bias");
    t.betaIsBf16 = call.Is("beta", DType::kBFloat16);
    t.betaSigmoids = use.betaSigmoids;
    t.l2norm = use.l2norm;
    t.gateIsBase2 = call.Flag("use_exp2");
    t.outputs = use.outputs;
    t.scale = static_cast<float>(call.Real("scale"));
    t.epsilon = use.epsilon;
    t.lowerBound = static_cast<float>(call.Real("lower_bound"));
    plan.groups = GroupsOfPairs(call, chip);
    plan.groupBytes = 2 * PrepareCoreBytes(t.gate);
    return plan;
}

uint32_t GivenPrepareOutputs(const OpCall &call)
{
    const struct {
        const char *port;
        uint32_t bit;
    } ports[] = {{"akk", kOutAkk},      {"qg", kOutQg},           {"qg_scaled", kOutQgScaled},
                 {"q_hat", kOutQHat},   {"k_hat", kOutKHat},      {"q_rstd", kOutQRstd},
                 {"k_rstd", kOutKRstd}, {"beta_eff", kOutBetaEff}};
    uint32_t outputs = 0;
    for (const auto &entry : ports) {
        outputs |= call.Has(entry.port) ? entry.bit : 0;
    }
    if (call.Has("u")) {
        outputs |= call.Is("u", DType::kFloat) ? uint32_t{kOutWideU} : uint32_t{kOutU};
    }
    return outputs;
}

StagePlan<PrepareTiling> PlanForwardPrepare(const OpCall &call, const ChipSpec &chip,
                                            uint32_t outputs)
{
    const std::string layout = call.Text("layout");
    PrepareUse use;
    use.outputs = outputs;
    use.tokenMajor = layout == "BSND" || layout == "TND";
    use.l2norm = call.Flag("use_qk_l2norm_in_kernel");
    use.epsilon = static_cast<float>(call.Real("epsilon"));
    use.betaSigmoids =
        call.Flag("use_beta_sigmoid_in_kernel") ? (call.Flag("allow_neg_eigval") ? 2 : 1) : 0;
    StagePlan<PrepareTiling> plan = PlanPrepare(call, chip, use);
    const Plan refusal = CheckForwardAttributes(call);
    return plan.Refused() || refusal.status == kOk ? plan : StagePlan<PrepareTiling>(refusal);
}

}  // namespace fla
