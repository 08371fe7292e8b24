// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_v2_plan.h"

#include "chunk_kda_fwd_v2_tiling_data.h"
#include "stages/output_plan.h"
#include "stages/prepare_plan.h"
#include "stages/relay_plan.h"
#include "stages/state_plan.h"

namespace fla
{
namespace
{

/// v_new of one axis more than v is the sum of two planes.
uint32_t PlanesOf(const OpCall &call)
{
    const TensorArg *values = call.Tensor("v_new");
    return values != nullptr && values->dims.size() > call.Tensor("v")->dims.size() ? 2 : 1;
}

/// The intermediates in the order of the workspace; what the caller asked for takes none. Returns
/// their bytes.
uint64_t PlaceRelays(const OpCall &call, ChunkKdaFwdV2TilingData &data)
{
    const RelaySizes size(call);
    RelayPlan relays;
    data.relay[kForwardGk] = relays.Place(call, "gk", size.Wide());
    data.relay[kForwardW] = relays.Place(call, "w", size.Narrow());
    data.relay[kForwardWideU] = relays.Take(size.Wide());
    data.relay[kForwardKg] = relays.Place(call, "kg", size.Narrow());
    data.relay[kForwardQgScaled] = relays.Take(size.Narrow());
    data.relay[kForwardVNew] = relays.Place(call, "v_new", size.Narrow());
    data.relay[kForwardH] = relays.Place(call, "h", size.States());
    return relays.Bytes();
}

}  // namespace

Plan PlanChunkKdaFwdV2(const OpCall &call, const ChipSpec &chip)
{
    // u goes to the state in fp32 whether the caller wants it (in bf16) or not.
    const uint32_t outputs = GivenPrepareOutputs(call) | kOutWideU | kOutQgScaled;
    StateUse use;
    use.valuesAreWide = true;
    use.valuePlanes = PlanesOf(call);
    ChunkKdaFwdV2TilingData data{};
    Together launch;
    launch.Add(PlanForwardPrepare(call, chip, outputs), data.prepare);
    launch.Add(PlanState(call, chip, use), data.state);
    launch.Add(PlanOutput(call, chip, true), data.output);
    if (launch.Refused()) {
        return Named("chunk_kda_fwd_v2", launch.refusal);
    }
    data.scratch = PlaceRelays(call, data);
    return Launchable(data, launch.groups, data.scratch + launch.Scratch());
}

}  // namespace fla
