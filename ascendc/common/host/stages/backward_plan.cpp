// SPDX-License-Identifier: Apache-2.0
#include "stages/backward_plan.h"

#include "aggregate/backward_tiling_data.h"
#include "contract.h"
#include "stages/chunk_grad_plan.h"
#include "stages/output_grad_plan.h"
#include "stages/prepare_plan.h"
#include "stages/relay_plan.h"
#include "stages/state_grad_plan.h"

namespace fla
{
namespace
{

Plan Missing(const char *port, const char *why)
{
    Plan plan = Refuse(port, " is missing (null); ", why);
    plan.status = kNullPointer;
    return plan;
}

Plan CheckAllRanks(const OpCall &call)
{
    return CheckRanks(call, "q",
                      {"k", "v", "gk", "aqk", "akk", "w", "qg", "kg", "v_new", "d_o", "dq", "dk",
                       "dv", "dg", "raw_g"},
                      {"h"}, {"beta", "dbeta", "q_rstd", "k_rstd"});
}

/// What the forward saved comes as a whole or not at all.
Plan CheckSaved(const OpCall &call)
{
    const bool saved = call.Flag("disable_recompute");
    for (const char *port : {"gk", "aqk", "akk"}) {
        if (saved && !call.Has(port)) {
            return Missing(port, "disable_recompute is true, so the forward has to hand it over");
        }
    }
    for (const char *port : {"w", "qg", "kg", "v_new", "h"}) {
        if (saved && !call.Has(port)) {
            return Missing(port, "disable_recompute is true, so the forward has to hand it over");
        }
        if (!saved && call.Has(port)) {
            return Refuse(port,
                          " is given, but disable_recompute is false and it is made again: "
                          "leave it out or set disable_recompute");
        }
    }
    if (!call.Has("raw_g")) {
        return Missing("raw_g",
                       "the decays are sums of its steps, with and without a gate in the "
                       "kernel");
    }
    return {};
}

/// Gradients go with what they are gradients of.
Plan CheckGradients(const OpCall &call)
{
    const TensorArg *state = call.Tensor("initial_state");
    const TensorArg *gradient = call.Tensor("dh0");
    if (gradient != nullptr && state == nullptr) {
        return Refuse(
            "dh0 is given, but initial_state is null; there is no state to differentiate");
    }
    if (gradient != nullptr && gradient->dtype != state->dtype) {
        return Refuse("initial_state is ", DTypeName(state->dtype), ", but dh0 is ",
                      DTypeName(gradient->dtype), ": dh0 comes in the type of initial_state");
    }
    for (const char *port : {"da_log", "ddt_bias"}) {
        if (call.Has(port) && !call.Flag("use_gate_in_kernel")) {
            return Refuse(port,
                          " is given, but use_gate_in_kernel is false; there is no gate "
                          "parameter to differentiate");
        }
    }
    return {};
}

/// Places of the relays; the order is that of the workspace.
uint64_t PlaceRelays(const OpCall &call, BackwardTiling &t)
{
    const RelaySizes size(call);
    RelayPlan relays;
    uint64_t *at = t.relay;
    const auto place = [&](const char *port, uint64_t bytes) {
        return t.recompute ? relays.Take(bytes) : relays.Place(call, port, bytes);
    };
    at[kBackwardGk] = place("gk", size.Wide());
    at[kBackwardAqk] = place("aqk", size.Scores());
    at[kBackwardAkk] = place("akk", size.Scores());
    at[kBackwardW] = place("w", size.Narrow());
    at[kBackwardQg] = place("qg", size.Narrow());
    at[kBackwardKg] = place("kg", size.Narrow());
    at[kBackwardVNew] = place("v_new", 2 * size.Narrow());  // two planes
    at[kBackwardH] = place("h", size.States());
    at[kBackwardDAqk] = relays.Take(2 * size.Scores());  // fp32
    at[kBackwardDv] = relays.Take(size.Narrow());
    at[kBackwardDqRaw] = relays.Take(size.Wide());
    at[kBackwardWideU] = at[kBackwardDqRaw];  // gone before dq_raw comes
    at[kBackwardDh] = relays.Take(size.States());
    at[kBackwardDALog] = relays.Place(call, "da_log", call.Dim("HV") * sizeof(float));
    return relays.Bytes();
}

/// The two stages of the forward that recompute runs.
StagePlan<PrepareTiling> PlanPrepareAgain(const OpCall &call, const ChipSpec &chip)
{
    PrepareUse use;
    use.gateInput = "raw_g";
    use.outputs = kOutAkk | kOutWideU | kOutQg;
    return PlanPrepare(call, chip, use);
}

StagePlan<StateTiling> PlanStateAgain(const OpCall &call, const ChipSpec &chip)
{
    StateUse use;
    use.valuesAreWide = true;
    use.valuePlanes = 2;
    return PlanState(call, chip, use);
}

StagePlan<StateGradTiling> PlanStateGradient(const OpCall &call, const ChipSpec &chip)
{
    StateGradUse use;
    use.finalGradient = StateDtypeOf(call, "dht");
    use.initialGradient = StateDtypeOf(call, "dh0");
    return PlanStateGrad(call, chip, use);
}

}  // namespace

Plan PlanBackward(const std::string &op, const OpCall &given, const ChipSpec &chip)
{
    for (const Plan &refusal : {CheckAllRanks(given), CheckSaved(given), CheckGradients(given)}) {
        if (refusal.status != kOk) {
            return Named(op, refusal);
        }
    }
    BackwardTiling t{};
    t.recompute = !given.Flag("disable_recompute");
    OpCall call = given;
    if (t.recompute) {  // the stages find v_new as recompute will leave it
        const int64_t rows[] = {2, given.Dim("B"), given.Dim("HV"), given.Dim("T"), kHeadWidth};
        call.tensors["v_new"] = {DType::kBFloat16, {std::begin(rows), std::end(rows)}, true};
    }
    Together launch;
    launch.Add(PlanChunkGrad(call, chip), t.chunkGrad);
    launch.Add(PlanOutputGrad(call, chip), t.outputGrad);
    launch.Add(PlanStateGradient(call, chip), t.stateGrad);
    if (t.recompute) {
        launch.Add(PlanPrepareAgain(call, chip), t.prepare);
        launch.Add(PlanStateAgain(call, chip), t.state);
    }
    if (launch.Refused()) {
        return Named(op, launch.refusal);
    }
    t.scratch = PlaceRelays(given, t);
    return Launchable(t, launch.groups, t.scratch + launch.Scratch());
}

}  // namespace fla
