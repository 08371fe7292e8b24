// SPDX-License-Identifier: Apache-2.0
// Lanes of the recurrence over states (state.h) and of that over their gradients (state_grad.h): where
// they stand, what they keep, and the memory plans that both directions share.
#ifndef FLA_STATE_LANE_H
#define FLA_STATE_LANE_H

#include "kernel_operator.h"

#include "lane_walk.h"
#include "local_memory.h"
#include "state_tiling_data.h"
#include "summary/summary.h"

namespace fla
{

constexpr uint32_t kLanes = kStateLanes;
// A vector core holds half the rows of the state: [64, 128].
constexpr uint32_t kStateHalfRows = kDim / kVectorCores;
constexpr uint32_t kStateHalfElems = kStateHalfRows * kDim;

/// Byte offsets in UB: a block per lane, then what both lanes use in turn.
struct StateUb {
    static constexpr uint32_t stateBytes = kStateHalfElems * sizeof(float);
    static constexpr uint32_t chunkElems =
        kChunkElems / kVectorCores;  // this core's rows of a chunk
    // The state, fp32 [64, 128].
    static constexpr uint32_t state = 0;
    // A product of the cube, or a first state on its way in; values in fp32 lie behind the product
    // that they are added to.
    static constexpr uint32_t incoming = state + stateBytes;
    static constexpr uint32_t wideValues = incoming + chunkElems * sizeof(float);
    // New values, a state or a bf16 last state on its way out.
    static constexpr uint32_t outgoing = incoming + stateBytes;
    static constexpr uint32_t values = outgoing + kStateHalfElems * sizeof(bfloat16_t);
    // G_last as it came, E(G_last)
    static constexpr uint32_t gate = values + chunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t decay = gate + kDim * sizeof(float);
    static constexpr uint32_t lane = decay + kDim * sizeof(float);
    // Decay of a row in all lanes of a block, for each of the row's two repeats: fp32 [64, 2, 8].
    static constexpr uint32_t rowFactors = kLanes * lane;
    static constexpr uint32_t end = rowFactors + kStateHalfRows * kDim / kLanesF32 * kBlockBytes;
};
static_assert(StateUb::end <= kUbBytes, "state: the UB plan is too big");

/// Bytes of a lane in L0.
struct StateL0 {
    static constexpr uint32_t laneA = kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneB = kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t laneC = kStateElems * sizeof(float);
};
static_assert(kLanes * StateL0::laneA <= kL0aBytes && kLanes * StateL0::laneB <= kL0bBytes &&
                  kLanes * StateL0::laneC <= kL0cBytes,
              "state: the L0 plan is too big");

/// The walk of lane `lane` of a group.
template <bool kBackwards, typename Args>
__aicore__ inline void InitLane(LaneWalk<kBackwards> &walk, const Args &args, uint32_t lane,
                                uint32_t group)
{
    const auto &t = args.t;
    walk.Init({t.tokens, t.valueHeads, t.headsPerGroup, t.sequences, t.chunks, t.packed},
              args.cuSeqlens, args.chunkIndices,
              {lane, kLanes, group, static_cast<uint32_t>(AscendC::GetBlockNum())},
              t.summary ? kSummaryBlocks : 1);
}

/// Tile of h or dh, and first row of v_new or dv_scan, of the chunk that a lane stands on: its own,
/// or the slot of the lane where none is kept.
template <typename Tiling>
__aicore__ inline uint64_t KeptTile(const Tiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot : step.chunkTile;
}
template <typename Tiling>
__aicore__ inline uint64_t KeptRow(const Tiling &t, const LaneStep &step, uint32_t slot)
{
    return t.summary ? slot * kChunk : step.row;
}

/// A lane of a cube core: its place in its items, its buffers in L0, the way to the vector cores.
template <bool kBackwards>
struct StateCubeLane {
    LaneWalk<kBackwards> walk;
    AscendC::LocalTensor<bfloat16_t> left, right;
    AscendC::LocalTensor<float> product;
    AscendC::GlobalTensor<float> exchange;
    uint32_t slot = 0;     // among those of the launch
    bool updates = false;  // the product that updates the state follows in this round

    __aicore__ inline void Place(CubeBuffers &buffers, uint32_t i)
    {
        left = View<bfloat16_t>(buffers.l0a, i * StateL0::laneA, kChunkElems);
        right = View<bfloat16_t>(buffers.l0b, i * StateL0::laneB, kStateElems);
        product = View<float>(buffers.l0c, i * StateL0::laneC, kStateElems);
    }
};

}  // namespace fla
#endif  // FLA_STATE_LANE_H
