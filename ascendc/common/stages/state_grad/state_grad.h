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
 * Cube    S = kg @ dh, then W = w^T @ dv_scan, each to the lane's answer slot (fp32, GM workspace).
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
 *           kSourceReady  C -> V   S is in the answer slot, Q in its own
 *           kScanReady    V -> C   dv_scan is in GM
 *           kStepReady    C -> V   W is in the answer slot
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
#include "state/state_tiling_data.h"
#include "cross_core.h"
#include "lane_walk.h"
#include "local_memory.h"
#include "summary/summary.h"

namespace fla
{

// A vector core holds half the rows of the state: [64, 128].
constexpr uint32_t kStateGradHalfRows = kDim / kVectorCores;
constexpr uint32_t kStateGradHalfElems = kStateGradHalfRows * kDim;

/// Cross-core flags of a lane; add StateGradFlagOf() to get the id.
enum StateGradFlag : uint16_t { kExitReady, kSourceReady, kScanReady, kStepReady, kStateGradFlags };
static_assert(kStateGradLanes * kStateGradFlags <= kCrossFlags, "cross-core flag ids end at 10");

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

/// Byte offsets in UB: a block per lane, then what both lanes use in turn.
struct StateGradUb {
    static constexpr uint32_t stateBytes = kStateGradHalfElems * sizeof(float);
    static constexpr uint32_t chunkElems =
        kChunkElems / kVectorCores;  // this core's rows of a chunk
    // D, fp32 [64, 128]
    static constexpr uint32_t state = 0;
    // S, Q or W, or dht on its way in; dv in fp32 lies behind S
    static constexpr uint32_t incoming = state + stateBytes;
    static constexpr uint32_t wideDv = incoming + chunkElems * sizeof(float);
    // dv_scan, dh or a bf16 dh0 on its way out
    static constexpr uint32_t outgoing = incoming + stateBytes;
    static constexpr uint32_t dv = outgoing + kStateGradHalfElems * sizeof(bfloat16_t);
    // G_last as it came, E(G_last)
    static constexpr uint32_t gate = dv + chunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t decay = gate + kDim * sizeof(float);
    static constexpr uint32_t lane = decay + kDim * sizeof(float);
    // Decay of a row in all lanes of a block, for each of the row's two repeats: fp32 [64, 2, 8].
    static constexpr uint32_t rowFactors = kStateGradLanes * lane;
    // Byte offsets of a column in a tile [128, 64] and in one [64, 128].
    static constexpr uint32_t tallColumn =
        rowFactors + kStateGradHalfRows * kDim / kLanesF32 * kBlockBytes;
    static constexpr uint32_t wideColumn = tallColumn + kDim * sizeof(uint32_t);
    static constexpr uint32_t end = wideColumn + kStateGradHalfRows * sizeof(uint32_t);
};
static_assert(StateGradUb::end <= kUbBytes, "state_grad: the UB plan is too big");

/// Byte offsets in L1 and L0, one block per lane.
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
struct StateGradL0 {
    static constexpr uint32_t laneA = kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneB = kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneC = kStateElems * sizeof(float);
};
static_assert(kStateGradLanes * StateGradL1::lane <= kL1Bytes,
              "state_grad: the L1 plan is too big");
static_assert(kStateGradLanes * StateGradL0::laneA <= kL0aBytes &&
                  kStateGradLanes * StateGradL0::laneB <= kL0bBytes &&
                  kStateGradLanes * StateGradL0::laneC <= kL0cBytes,
              "state_grad: the L0 plan is too big");

/// First element of a lane's answer slot in GM workspace; the slots of Q lie behind it.
__aicore__ inline uint64_t StateGradAnswerAt(uint32_t group, uint32_t lane)
{
    return static_cast<uint64_t>(group * kStateGradLanes + lane) *
           (kStateGradLaneBytes / sizeof(float));
}
__aicore__ inline uint32_t StateGradQueryAt(uint32_t slot)
{
    return (1 + slot) * kStateElems;
}

using StateGradLane = LaneWalk<true>;

__aicore__ inline void InitStateGradLane(StateGradLane &walk, const StateGradArgs &args,
                                         uint32_t lane, uint32_t group)
{
    const StateGradTiling &t = args.t;
    walk.Init({t.tokens, t.valueHeads, t.headsPerGroup, t.sequences, t.chunks, t.packed},
              args.cuSeqlens, args.chunkIndices,
              {lane, kStateGradLanes, group, static_cast<uint32_t>(AscendC::GetBlockNum())},
              t.summary ? kSummaryBlocks : 1);
}

/// Tile of dh, and first row of dv_scan, of the chunk that a lane stands on: its own, or the slot of
/// the lane where none is kept.
__aicore__ inline uint64_t ExitTile(const StateGradTiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot : step.chunkTile;
}
__aicore__ inline uint64_t ScanRow(const StateGradTiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot * kChunk : step.row;
}

/// The last update of an item only serves dh0.
__aicore__ inline bool StateGradUpdates(const StateGradTiling &t, const LaneStep &step)
{
    return !step.last || t.initialGradient != kStateAbsent;
}

}  // namespace fla
#endif  // FLA_STATE_GRAD_H
