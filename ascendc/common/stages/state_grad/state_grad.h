/* SPDX-License-Identifier: Apache-2.0
 *
 * state_grad - the gradient of the state, from the last chunk of a sequence to the first
 *
 *   D          = dht, or zeros                              fp32
 *   dh[c]      = bf16(D)                                    gradient of the state on exit of chunk c
 *   dv_scan[c] = bf16(dv_local[c] + kg[c] @ dh[c])
 *   D          = diag(E(G_last)) D + scale * qg[c]^T @ dO[c] - w[c]^T @ dv_scan[c]
 *   dh0        = D after the first chunk
 *
 *   E(x) = 2^x or e^x; G_last = gk of the last valid row of the chunk.
 *
 * Shapes  qg, kg, w [64, 128] bf16; dO, dv_local, dv_scan [64, 128] bf16; dh [128 K, 128 V] bf16; D
 *         in fp32. stateVFirst turns dht and dh0 only: they are transposed on their way in and out.
 *
 * Items   One (sequence, head) is an item; its chunks depend on each other, two items never do. A
 *         group serves two lanes, each a list of items, in turn: the vector cores work for one
 *         while the cube works for the other, which hides the four hand-overs of a chunk.
 *
 * Cube    S = kg @ dh, then W = w^T @ dv_scan, each to the lane's exchange slot (fp32, GM workspace).
 *         Q = qg^T @ dO depends on nothing: it is made one chunk ahead, into one of two slots, while
 *         the vector cores are busy with W. Q has a tile of its own because the scale belongs to it
 *         alone, and no bf16 operand could carry the scale without another rounding.
 * Vector  dv_local + S -> dv_scan; E D + scale Q -> D while the cube makes W; D - W -> D and the next
 *         dh. All of it is element-wise, so the two vector cores take half the rows each of whatever
 *         they read: contiguous copies only.
 *
 * UB      per lane: D 32K | product 32K | outgoing bf16 16K | dv 8K | G_last, E 1K; row factors 4K,
 *         offsets of a transposition 1K: 183K of 184K
 * L1      per lane: kg 16K | w 16K | dv_scan 16K | qg 16K | dO 16K | dh 32K
 * L0      per lane: A 16K, B 32K, C 64K
 *
 * Flags   per lane, one of each per chunk, in this order:
 *           kExitReady    V -> C   dh is in GM
 *           kSourceReady  C -> V   S is in the exchange slot, Q in its own
 *           kScanReady    V -> C   dv_scan is in GM
 *           kStepReady    C -> V   W is in the exchange slot
 *         So a lane is a conversation: every buffer of a lane in GM, L1 and UB is written again only
 *         after an answer that follows its last use. Q is no part of it, hence the exceptions: L0
 *         and L0C have flags back from the consumer, and so has the UB buffer through which both Q
 *         and the answers come in.
 *
 * Summary with `summary` in the tiling: what differs is in summary/summary.h
 * Tails   rows beyond the valid ones are zero in L1, never stored, never read from GM
 * Limits  chunk 64, K = V = 128; any T >= 1; an empty packed sequence passes dht through to dh0
 */
#ifndef FLA_STATE_GRAD_H
#define FLA_STATE_GRAD_H

#include "kernel_operator.h"

#include "state_grad_tiling_data.h"
#include "state/state_lane.h"
#include "cross_core.h"
#include "local_memory.h"

namespace fla
{

/// Cross-core flags of a lane; add StateGradFlagOf() to get the id.
enum StateGradFlag : uint16_t { kExitReady, kSourceReady, kScanReady, kStepReady, kStateGradFlags };
static_assert(kLanes * kStateGradFlags <= kCrossFlags, "cross-core flag ids end at 10");

__aicore__ inline uint16_t StateGradFlagOf(uint32_t lane, StateGradFlag flag)
{
    return lane * kStateGradFlags + flag;
}

/// GM addresses in kernel order, and the tiling data.
struct StateGradArgs {
    GM_ADDR q;
    GM_ADDR k;
    GM_ADDR w;
    GM_ADDR dO;
    GM_ADDR dv;
    GM_ADDR gk;
    GM_ADDR dht;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR dh;
    GM_ADDR dh0;
    GM_ADDR dvScan;
    GM_ADDR workspace;
    StateGradTiling t;
};

/// Byte offsets in UB behind StateUb: byte offsets of a column in a tile [128, 64] and in one [64, 128].
struct StateGradUb {
    static constexpr uint32_t tallColumn = StateUb::end;
    static constexpr uint32_t wideColumn = tallColumn + kDim * sizeof(uint32_t);
    static constexpr uint32_t end = wideColumn + kStateHalfRows * sizeof(uint32_t);
};
static_assert(StateGradUb::end <= kUbBytes, "state_grad: the UB plan is too big");

/// Byte offsets in L1, one block per lane. L0: state_lane.h.
struct StateGradL1 {
    static constexpr uint32_t chunkBytes = kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t k = 0;
    static constexpr uint32_t w = k + chunkBytes;
    static constexpr uint32_t scan = w + chunkBytes;
    static constexpr uint32_t q = scan + chunkBytes;
    static constexpr uint32_t dO = q + chunkBytes;
    static constexpr uint32_t exit = dO + chunkBytes;
    static constexpr uint32_t lane = exit + kStateElems * sizeof(bfloat16_t);
};
static_assert(kLanes * StateGradL1::lane <= kL1Bytes, "state_grad: the L1 plan is too big");

/// First element of a lane's exchange slot in GM workspace; the slots of Q lie behind it.
__aicore__ inline uint64_t StateGradExchangeAt(uint32_t group, uint32_t lane)
{
    return static_cast<uint64_t>(group * kLanes + lane) * (kStateGradLaneBytes / sizeof(float));
}
__aicore__ inline uint32_t StateGradQueryAt(uint32_t slot)
{
    return (1 + slot) * kStateElems;
}

/// The last update of an item only serves dh0.
__aicore__ inline bool StateGradUpdates(const StateGradTiling &t, const LaneStep &step)
{
    return !step.last || t.initialGradient != kStateAbsent;
}

}  // namespace fla
#endif  // FLA_STATE_GRAD_H
