// SPDX-License-Identifier: Apache-2.0
// Cube body of the state stage: the two products of a chunk. Maths, memory plan and flags: state.h.
#ifndef FLA_STATE_CUBE_H
#define FLA_STATE_CUBE_H

#include "cube_tile.h"
#include "state.h"

namespace fla
{

class StateCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const StateArgs &args)
    {
        Open(pipe, args);
        while (lanes_[0].walk.Live() || lanes_[1].walk.Live()) {
            for (uint32_t i = 0; i < kLanes; ++i) {
                ReadState(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                UpdateState(lanes_[i], i);
            }
        }
    }

  private:
    /// A lane and its buffers in L1.
    struct Lane : StateCubeLane<false> {
        AscendC::LocalTensor<Bf16> w, k, value, entry;
        bool hasW = false;  // w of the current chunk is in L1, or on its way
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateArgs &args)
    {
        t_ = args.t;
        k_ = GmAt<Bf16>(args.k);
        w_ = GmAt<Bf16>(args.w);
        h_ = GmAt<Bf16>(args.h);
        vNew_ = GmAt<Bf16>(args.vNew);
        buffers_.Init(pipe, kLanes * StateL1::lane, kLanes * StateL0::laneA,
                      kLanes * StateL0::laneB, kLanes * StateL0::laneC);
        const uint32_t group = AscendC::GetBlockIdx();
        for (uint32_t i = 0; i < kLanes; ++i) {
            Lane &lane = lanes_[i];
            const uint32_t l1 = i * StateL1::lane;
            InitLane(lane.walk, args, i, group);
            lane.slot = group * kLanes + i;
            lane.w = View<Bf16>(buffers_.l1, l1 + StateL1::w, kChunkElems);
            lane.k = View<Bf16>(buffers_.l1, l1 + StateL1::k, kChunkElems);
            lane.value = View<Bf16>(buffers_.l1, l1 + StateL1::value, kChunkElems);
            lane.entry = View<Bf16>(buffers_.l1, l1 + StateL1::entry, kStateElems);
            lane.Place(buffers_, i);
            lane.exchange = GmAt<float>(args.workspace)[ExchangeAt(group, i)];
            // Empty sequences have no product; the vector cores pass their state through.
            lane.walk.SkipEmpty();
            FetchW(lane);
        }
    }

    __aicore__ inline void FetchW(Lane &lane)
    {
        if (lane.walk.Live()) {
            LoadChunk(lane.w, w_[lane.walk.Now().row * kDim], lane.walk.Now().rows, kDim);
            lane.hasW = true;
        }
    }

    /// Product W: w @ h into the exchange slot.
    __aicore__ inline void ReadState(Lane &lane, uint32_t i)
    {
        lane.updates = lane.walk.Live() && Updates(t_, lane.walk.Now());
        if (!lane.walk.Live()) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        AscendC::CrossCoreWaitFlag(FlagOf(i, kEntryReady));
        LoadNz(lane.entry, h_[KeptTile(t_, step, lane.slot) * kStateElems], kDim, kDim, kDim);
        if (!lane.hasW) {
            FetchW(lane);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        if (lane.updates) {
            LoadChunk(lane.k, k_[step.keyRow * kDim], step.rows, kDim);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        LoadLeft(lane.left, lane.w, kChunk, kDim);
        if (t_.stateVFirst) {
            LoadRightTransposed(lane.right, lane.entry, kDim, kDim);
        } else {
            LoadRight(lane.right, lane.entry, kDim, kDim);
        }
        lane.hasW = false;
        MultiplyAndStore(lane, i, RoundUp16(step.rows), kDim, step.rows);
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(FlagOf(i, kReadReady));
        if (!lane.updates) {
            Advance(lane);
        }
    }

    /// Product K: kg^T @ v_new, or v_new^T @ kg, into the exchange slot.
    __aicore__ inline void UpdateState(Lane &lane, uint32_t i)
    {
        if (!lane.updates) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        AscendC::CrossCoreWaitFlag(FlagOf(i, kValueReady));
        LoadChunk(lane.value, vNew_[KeptRow(t_, step, lane.slot) * kDim], step.rows, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        Advance(lane);
        FetchW(lane);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        LoadLeftTransposed(lane.left, t_.stateVFirst ? lane.value : lane.k, kDim, kChunk);
        LoadRight(lane.right, t_.stateVFirst ? lane.k : lane.value, kChunk, kDim);
        MultiplyAndStore(lane, i, kDim, kChunk, kDim);
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(FlagOf(i, kUpdateReady));
    }

    __aicore__ inline void Advance(Lane &lane)
    {
        lane.walk.Next();
        lane.walk.SkipEmpty();
    }

    /// [m, k] @ [k, 128] out of L0 and `rows` rows of it to GM, in fp32.
    __aicore__ inline void MultiplyAndStore(Lane &lane, uint32_t i, uint32_t m, uint32_t k,
                                            uint32_t rows)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(i);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(i);
        Multiply(lane.product, lane.left, lane.right, m, kDim, k, false);
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(i);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(i);
        StoreRows(lane.exchange, lane.product, rows, m, kDim, kDim);
    }

    StateTiling t_;
    AscendC::GlobalTensor<Bf16> k_, w_, h_, vNew_;
    CubeBuffers buffers_;
    Lane lanes_[kLanes];
};

}  // namespace fla
#endif  // FLA_STATE_CUBE_H
