// SPDX-License-Identifier: Apache-2.0
#include "chunk_fwd_h_plan.h"

#include <algorithm>
#include <limits>

#include "chunk_fwd_h_tiling_data.h"

namespace fla
{
namespace
{

constexpr int64_t kIndexLimit = std::numeric_limits<uint32_t>::max();

/// What the kernel is to read or write at a state port; the contract has settled that it is one of
/// these.
uint32_t StateDtypeOf(const OpCall &call, const char *port)
{
    if (call.Tensor(port) == nullptr) {
        return kStateAbsent;
    }
    return call.Is(port, DType::kBFloat16) ? kStateBf16 : kStateFloat;
}

}  // namespace

Plan PlanChunkFwdH(const OpCall &call, const ChipSpec &chip)
{
    const int64_t tokens = call.Dim("T");
    const int64_t heads = call.Dim("HV");
    const int64_t sequences = call.Dim("N");
    const int64_t batch = call.Dim("B");
    const int64_t chunks = call.Dim("NT");
    // Kernels count tokens, items and chunks in 32 bits (offsets are 64-bit). Divisions, so that no
    // product wraps.
    if (tokens > kIndexLimit - 64) {
        return Refuse("chunk_fwd_h: T = ", tokens, " is above ", kIndexLimit - 64,
                      "; split the sequence and carry the state over");
    }
    if (sequences > kIndexLimit / heads) {
        return Refuse("chunk_fwd_h: N = ", sequences, " sequences of HV = ", heads,
                      " heads are more than ", kIndexLimit, " states; split the batch");
    }
    if (chunks > kIndexLimit / batch) {
        return Refuse("chunk_fwd_h: B = ", batch, " times NT = ", chunks, " chunks are more than ",
                      kIndexLimit, "; split the batch");
    }
    const bool packed = call.Ints("cu_seqlens") != nullptr;
    ChunkFwdHTilingData data{};
    StateTiling &t = data.state;
    t.tokens = static_cast<uint32_t>(tokens);
    t.valueHeads = static_cast<uint32_t>(heads);
    t.sequences = static_cast<uint32_t>(sequences);
    t.chunks = static_cast<uint32_t>(chunks);
    t.packed = packed;
    t.gateIsBf16 = call.Is("gk", DType::kBFloat16);
    t.gateIsBase2 = call.Flag("use_exp2");
    t.initialState = StateDtypeOf(call, "initial_state");
    t.finalState = StateDtypeOf(call, "final_state");
    t.stateVFirst = call.Flag("state_v_first");
    // A group takes at least one item; what is beyond the items has nothing to do.
    const uint32_t groups = std::min(chip.cubeCores, t.sequences * t.valueHeads);
    return Launchable(data, groups, static_cast<uint64_t>(groups) * kStateExchangeBytes);
}

}  // namespace fla
