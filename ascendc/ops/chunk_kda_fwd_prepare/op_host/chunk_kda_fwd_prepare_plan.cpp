// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_prepare_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "chunk_kda_fwd_prepare_tiling_data.h"

namespace
{

constexpr int64_t kIndexLimit = std::numeric_limits<uint32_t>::max();
constexpr int64_t kHeadDim = 128;
// Fifteen steps of it keep E(-P) of a band inside bf16 (prepare.h).
constexpr double kLowestBound = -5.0;

/// Every refusal names the operator.
template <typename... Parts>
fla::Plan Refuse(const Parts &...parts)
{
    return fla::Refuse("chunk_kda_fwd_prepare: ", parts...);
}

/// Counts and row strides the kernel keeps in 32 bits (offsets are 64-bit). Divisions, so that no
/// product wraps.
fla::Plan CheckSizes(const fla::OpCall &call)
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
    const int64_t widest = call.Is("g", fla::DType::kFloat) ? 4 : 2;
    if (valueHeads - 1 > kIndexLimit / (kHeadDim * widest)) {
        return Refuse("HV = ", valueHeads, " rows of ", kHeadDim * widest,
                      " bytes are more than 4 GiB per token; split the heads");
    }
    if (chunks > kIndexLimit / batch || batch * chunks > kIndexLimit / valueHeads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " chunks of HV = ", valueHeads,
                      " heads are more than ", kIndexLimit, " tasks; split the batch");
    }
    return {};
}

/// Gate parameters go with the gate they belong to; the bound is what the cube path relies on.
fla::Plan CheckGate(const fla::OpCall &call)
{
    const bool safe = call.Flag("safe_gate");
    if (!call.Flag("use_gate_in_kernel")) {
        for (const char *name : {"a_log", "dt_bias"}) {
            if (call.Has(name)) {
                return Refuse(name,
                              " is given, but use_gate_in_kernel is false and g is taken as the "
                              "decay itself; leave it out or set use_gate_in_kernel");
            }
        }
        if (safe) {
            return Refuse(
                "safe_gate is true, but use_gate_in_kernel is false; a bound can only be "
                "kept by the gate that is computed in the kernel");
        }
        return {};
    }
    if (!call.Has("a_log")) {
        fla::Plan plan =
            Refuse("a_log is missing; use_gate_in_kernel needs one value per value head");
        plan.status = fla::kNullPointer;
        return plan;
    }
    const float bound = static_cast<float>(call.Real("lower_bound"));
    if (safe && !(bound >= kLowestBound && bound < 0.0F)) {
        return Refuse("lower_bound = ", call.Real("lower_bound"), " is outside [", kLowestBound,
                      ", 0), which safe_gate needs");
    }
    return {};
}

/// Attributes are doubles in the prototype and fp32 in the kernel: rules hold for the fp32 value.
fla::Plan CheckNumbers(const fla::OpCall &call)
{
    for (const char *name : {"scale", "lower_bound"}) {
        if (!std::isfinite(static_cast<float>(call.Real(name)))) {
            return Refuse(name, " = ", call.Real(name), " is not a finite float32");
        }
    }
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

/// A PrepareGate.
uint32_t GateOf(const fla::OpCall &call)
{
    if (!call.Flag("use_gate_in_kernel")) {
        return kGateNone;
    }
    return call.Flag("safe_gate") ? kGateBounded : kGateSoftplus;
}

/// The contract has settled that the optional outputs form one of the four modes.
uint32_t OutputsOf(const fla::OpCall &call)
{
    if (call.Has("qg")) {
        return kOutputsSave;
    }
    if (call.Has("beta_eff")) {
        return kOutputsRecompute;
    }
    return call.Has("akk") ? kOutputsForward : kOutputsNone;
}

}  // namespace

fla::Plan fla::PlanChunkKdaFwdPrepare(const fla::OpCall &call, const fla::ChipSpec &chip)
{
    for (auto check : {CheckSizes, CheckGate, CheckNumbers}) {
        fla::Plan refusal = check(call);
        if (refusal.status != fla::kOk) {
            return refusal;
        }
    }
    // Every field is set here: the device sees these bytes and nothing else.
    const std::string layout = call.Text("layout");
    ChunkKdaFwdPrepareTilingData data{};
    PrepareTiling &t = data.prepare;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.headsPerGroup = static_cast<uint32_t>(call.Dim("HV") / call.Dim("HK"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
    t.tokenMajor = layout == "BSND" || layout == "TND";
    t.gate = GateOf(call);
    t.gateIsBf16 = call.Is("g", fla::DType::kBFloat16);
    t.hasBias = call.Has("dt_bias");
    t.betaIsBf16 = call.Is("beta", fla::DType::kBFloat16);
    t.betaSigmoids =
        call.Flag("use_beta_sigmoid_in_kernel") ? (call.Flag("allow_neg_eigval") ? 2 : 1) : 0;
    t.l2norm = call.Flag("use_qk_l2norm_in_kernel");
    t.gateIsBase2 = call.Flag("use_exp2");
    t.outputs = OutputsOf(call);
    t.scale = static_cast<float>(call.Real("scale"));
    t.epsilon = static_cast<float>(call.Real("epsilon"));
    t.lowerBound = static_cast<float>(call.Real("lower_bound"));
    // Two tasks (chunk x value head) keep a group busy, one per vector core.
    const int64_t tasks = call.Dim("B") * call.Dim("NT") * call.Dim("HV");
    const auto groups =
        static_cast<uint32_t>(std::min<int64_t>(chip.cubeCores, fla::CeilDiv<int64_t>(tasks, 2)));
    return fla::Launchable(data, groups,
                           static_cast<uint64_t>(groups) * 2 * PrepareCoreBytes(t.gate));
}
