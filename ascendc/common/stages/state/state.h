/* SPDX-License-Identifier: Apache-2.0
 *
 * state - the recurrence over the chunks of a sequence
 *
 *   h[c]     = bf16(R)                                  the state on entry of chunk c
 *   v_new[c] = bf16(v),  v = u[c] - w[c] @ h[c];  a second plane, if wanted: bf16(v - v_new[c])
 *   R        = diag(E(G_last)) R + kg[c]^T @ v_new[c]   fp32
 *
 *   E(x) = 2^x or e^x; G_last = gk of the last valid row of the chunk.
 *
 * Shapes  w, kg, v_new [64, 128] bf16; u [64, 128] bf16 or fp32; h [128 K, 128 V] bf16; R in fp32.
 *         With stateVFirst every state tile is [V, K]: the update becomes v_new^T @ kg, and h is
 *         loaded as a transposed right operand.
 * Items   One (sequence, head) is an item; its chunks depend on each other, two items never do. A
 *         group serves two lanes, each a list of items, in turn: the vector cores work for one
 *         while the cube works for the other, which hides the four hand-overs of a chunk.
 * Cube    W = w @ h, then K = kg^T @ v_new, each to the lane's exchange slot (fp32, GM workspace)
 * Vector  u - W -> v_new; E R + K -> R and the next h. All of it is element-wise, so the two vector
 *         cores take half the rows each of whatever they read: contiguous copies only.
 *
 * UB      per lane: R 32K | product 32K | outgoing bf16 16K | u 8K | G_last, E 1K; row factors 4K:
 *         182K of 184K
 * L1      per lane: w 16K | kg 16K | v_new 16K | h 32K; L0A 16K, L0B 32K, L0C 64K per lane
 *
 * Flags   per lane, one of each per chunk, in this order:
 *           kEntryReady   V -> C   h is in GM
 *           kReadReady    C -> V   W is in the exchange slot
 *           kValueReady   V -> C   v_new is in GM
 *           kUpdateReady  C -> V   K is in the exchange slot
 *         So a lane is a conversation: every buffer of a lane, on either side, is written again
 *         only after an answer that follows its last use. Hence one buffer of each kind per lane
 *         and no flag back from a consumer; w and kg of the next chunk are fetched under this one's
 *         products.
 * Tails   rows beyond the valid ones are zero in L1, never stored, never read from GM
 * Summary with `summary` in the tiling: what differs is in summary/summary.h
 * Limits  chunk 64, K = V = 128; any T >= 1; an empty packed sequence passes its state through
 */
#ifndef FLA_STATE_H
#define FLA_STATE_H

#include "kernel_operator.h"

#include "state_tiling_data.h"
#include "cross_core.h"
#include "lane_walk.h"
#include "local_memory.h"
#include "summary/summary.h"

namespace fla
{

constexpr uint32_t kLanes = kStateLanes;
// A vector core holds half the rows of the state: [64, 128].
constexpr uint32_t kStateHalfRows = kDim / kVectorCores;
constexpr uint32_t kStateHalfElems = kStateHalfRows * kDim;

/// Cross-core flags of a lane; add FlagOf() to get the id.
enum StateFlag : uint16_t { kEntryReady, kReadReady, kValueReady, kUpdateReady, kStateFlags };
static_assert(kLanes * kStateFlags <= kCrossFlags, "cross-core flag ids end at 10");

__aicore__ inline uint16_t FlagOf(uint32_t lane, StateFlag flag)
{
    return lane * kStateFlags + flag;
}

/// GM addresses in kernel order, and the tiling data. (GM_ADDR is a macro with a `*`: one
/// declaration each.)
struct StateArgs {
    GM_ADDR k;
    GM_ADDR w;
    GM_ADDR u;
    GM_ADDR gk;
    GM_ADDR initialState;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR h;
    GM_ADDR vNew;
    GM_ADDR finalState;
    GM_ADDR workspace;
    StateTiling t;
};

/// Byte offsets in UB: a block per lane, then what both lanes use in turn.
struct StateUb {
    static constexpr uint32_t stateBytes = kStateHalfElems * sizeof(float);
    static constexpr uint32_t chunkElems =
        kChunkElems / kVectorCores;  // this core's rows of a chunk
    // R, fp32 [64, 128]
    static constexpr uint32_t state = 0;
    // W or K, or an initial state on its way in; u in fp32 lies behind W
    static constexpr uint32_t incoming = state + stateBytes;
    static constexpr uint32_t wideU = incoming + chunkElems * sizeof(float);
    // v_new, h or a bf16 final state on its way out
    static constexpr uint32_t outgoing = incoming + stateBytes;
    static constexpr uint32_t u = outgoing + kStateHalfElems * sizeof(bfloat16_t);
    // G_last as it came, E(G_last)
    static constexpr uint32_t gate = u + chunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t decay = gate + kDim * sizeof(float);
    static constexpr uint32_t lane = decay + kDim * sizeof(float);
    // Decay of a row in all lanes of a block, for each of the row's two repeats: fp32 [64, 2, 8].
    static constexpr uint32_t rowFactors = kLanes * lane;
    static constexpr uint32_t end = rowFactors + kStateHalfRows * kDim / kLanesF32 * kBlockBytes;
};
static_assert(StateUb::end <= kUbBytes, "state: the UB plan is too big");

/// Byte offsets in L1 and L0, one block per lane.
struct StateL1 {
    static constexpr uint32_t w = 0;
    static constexpr uint32_t k = w + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t value = k + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t entry = value + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t lane = entry + kStateElems * sizeof(bfloat16_t);
};
struct StateL0 {
    static constexpr uint32_t laneA = kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneB = kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneC = kStateElems * sizeof(float);
};
static_assert(kLanes * StateL1::lane <= kL1Bytes, "state: the L1 plan is too big");
static_assert(kLanes * StateL0::laneA <= kL0aBytes && kLanes * StateL0::laneB <= kL0bBytes &&
                  kLanes * StateL0::laneC <= kL0cBytes,
              "state: the L0 plan is too big");

/// Elements of one lane's exchange slot in GM workspace: the larger of the two products.
constexpr uint32_t kExchangeElems = kStateElems;
static_assert(kLanes * kExchangeElems * sizeof(float) == kStateExchangeBytes,
              "state: the plan reserves another workspace");

/// First element of a lane's exchange slot.
__aicore__ inline uint64_t ExchangeAt(uint32_t group, uint32_t lane)
{
    return static_cast<uint64_t>(group * kLanes + lane) * kExchangeElems;
}

using StateLane = LaneWalk<false>;

__aicore__ inline void InitStateLane(StateLane &walk, const StateArgs &args, uint32_t lane,
                                     uint32_t group)
{
    const StateTiling &t = args.t;
    walk.Init({t.tokens, t.valueHeads, t.headsPerGroup, t.sequences, t.chunks, t.packed},
              args.cuSeqlens, args.chunkIndices,
              {lane, kLanes, group, static_cast<uint32_t>(AscendC::GetBlockNum())},
              t.summary ? kSummaryBlocks : 1);
}

/// Tile of h, and first row of v_new, of the chunk that a lane stands on: its own, or the slot of the
/// lane where none is kept.
__aicore__ inline uint64_t EntryTile(const StateTiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot : step.chunkTile;
}
__aicore__ inline uint64_t ValueRow(const StateTiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot * kChunk : step.row;
}

/// Elements from one plane of v_new to the next.
__aicore__ inline uint64_t PlaneElems(const StateTiling &t)
{
    const uint64_t entries = t.packed ? 1 : t.sequences;
    return entries * t.valueHeads * t.tokens * kDim;
}

/// The last update of an item only serves its final state.
__aicore__ inline bool Updates(const StateTiling &t, const LaneStep &step)
{
    return !step.last || t.finalState != kStateAbsent;
}

}  // namespace fla
#endif  // FLA_STATE_H
