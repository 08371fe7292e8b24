// SPDX-License-Identifier: Apache-2.0
#include "stages/prepare_plan.h"

#include <algorithm>
#include <cmath>

#include "stages/gate_plan.h"

namespace fla
{
namespace
{

/// Counts and row strides the kernel keeps in 32 bits. Divisions, so that no product wraps.
Plan CheckSizes(const OpCall &call, const char *gateInput)
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
    const int64_t widest = call.Is(gateInput, DType::kFloat) ? 4 : 2;
    if (valueHeads - 1 > kIndexLimit / (kHeadWidth * widest)) {
        return Refuse("HV = ", valueHeads, " rows of ", kHeadWidth * widest,
                      " bytes are more than 4 GiB per token; split the heads");
    }
    if (chunks > kIndexLimit / batch || batch * chunks > kIndexLimit / valueHeads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " chunks of HV = ", valueHeads,
                      " heads are more than ", kIndexLimit, " tasks; split the batch");
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
    for (const Plan &refusal :
         {CheckSizes(call, use.gateInput), CheckGate(call), CheckScale(call)}) {
        if (refusal.status != kOk) {
            return refusal;
        }
    }
    // Every field is set here: the device sees these bytes and nothing else.
    StagePlan<PrepareTiling> plan;
    PrepareTiling &t = plan.tiling;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
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
    // Two tasks (chunk x value head) keep a group busy, one per vector core.
    const int64_t tasks = call.Dim("B") * call.Dim("NT") * call.Dim("HV");
    plan.groups =
        static_cast<uint32_t>(std::min<int64_t>(chip.cubeCores, CeilDiv<int64_t>(tasks, 2)));
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
