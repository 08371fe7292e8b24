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
#include "local_memory.h"
#include "state_lane.h"

namespace fla
{

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

/// Byte offsets in L1, one block per lane. UB and L0: state_lane.h.
struct StateL1 {
    static constexpr uint32_t w = 0;
    static constexpr uint32_t k = w + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t value = k + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t entry = value + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t lane = entry + kStateElems * sizeof(bfloat16_t);
};
static_assert(kLanes * StateL1::lane <= kL1Bytes, "state: the L1 plan is too big");

/// Elements of one lane's exchange slot in GM workspace: the larger of the two products.
constexpr uint32_t kExchangeElems = kStateElems;
static_assert(kLanes * kExchangeElems * sizeof(float) == kStateExchangeBytes,
              "state: the plan reserves another workspace");

/// First element of a lane's exchange slot.
__aicore__ inline uint64_t ExchangeAt(uint32_t group, uint32_t lane)
{
    return static_cast<uint64_t>(group * kLanes + lane) * kExchangeElems;
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
