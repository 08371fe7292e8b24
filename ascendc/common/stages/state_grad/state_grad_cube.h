// SPDX-License-Identifier: Apache-2.0
// Cube body of the state_grad stage: the three products of a chunk. Maths, memory plan and flags:
// state_grad.h.
#ifndef FLA_STATE_GRAD_CUBE_H
#define FLA_STATE_GRAD_CUBE_H

#include "cube_tile.h"
#include "state_grad.h"

namespace fla
{

class StateGradCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        Open(pipe, args);
        while (lanes_[0].walk.Live() || lanes_[1].walk.Live()) {
            for (uint32_t i = 0; i < kLanes; ++i) {
                ReadExit(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                ReadScan(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                MakeQueries(lanes_[i], i);
            }
        }
        TakeAllBack();
    }

  private:
    // Event ids: the lane, but for those of a lane's L0 (M_MTE1; the framework keeps 0..2) and of
    // the copies for Q (MTE2_MTE1).
    static constexpr uint32_t kL0Free = 3;
    static constexpr uint32_t kQueryIn = kLanes;

    /// A lane and its buffers in L1.
    struct Lane : StateCubeLane<true> {
        AscendC::LocalTensor<Bf16> k, w, scan, q, dO, exit;
        uint32_t querySlot = 0;  // the next Q goes there
        bool hasK = false;       // kg of the current chunk is in L1, or on its way
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        t_ = args.t;
        q_ = GmAt<Bf16>(args.q);
        k_ = GmAt<Bf16>(args.k);
        w_ = GmAt<Bf16>(args.w);
        dO_ = GmAt<Bf16>(args.dO);
        dh_ = GmAt<Bf16>(args.dh);
        dvScan_ = GmAt<Bf16>(args.dvScan);
        buffers_.Init(pipe, kLanes * StateGradL1::lane, kLanes * StateL0::laneA,
                      kLanes * StateL0::laneB, kLanes * StateL0::laneC);
        const uint32_t group = AscendC::GetBlockIdx();
        for (uint32_t i = 0; i < kLanes; ++i) {
            Lane &lane = lanes_[i];
            InitLane(lane.walk, args, i, group);
            lane.exchange = GmAt<float>(args.workspace)[StateGradExchangeAt(group, i)];
            lane.slot = group * kLanes + i;
            PlaceL1(lane, i);
            lane.Place(buffers_, i);
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
            // Empty sequences have no product; the vector cores pass dht through.
            lane.walk.SkipEmpty();
            FetchQueries(lane, i);
            FetchK(lane);
            MakeQueries(lane, i);
        }
    }

    __aicore__ inline void PlaceL1(Lane &lane, uint32_t i)
    {
        const uint32_t l1 = i * StateGradL1::lane;
        lane.k = View<Bf16>(buffers_.l1, l1 + StateGradL1::k, kChunkElems);
        lane.w = View<Bf16>(buffers_.l1, l1 + StateGradL1::w, kChunkElems);
        lane.scan = View<Bf16>(buffers_.l1, l1 + StateGradL1::scan, kChunkElems);
        lane.q = View<Bf16>(buffers_.l1, l1 + StateGradL1::q, kChunkElems);
        lane.dO = View<Bf16>(buffers_.l1, l1 + StateGradL1::dO, kChunkElems);
        lane.exit = View<Bf16>(buffers_.l1, l1 + StateGradL1::exit, kStateElems);
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        for (uint32_t i = 0; i < kLanes; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    /// True when the chunk the lane stands on updates D.
    __aicore__ inline bool Updates(const Lane &lane) const
    {
        return lane.walk.Live() && StateGradUpdates(t_, lane.walk.Now());
    }

    /// ... and has a product Q, which a map has not.
    __aicore__ inline bool HasQueries(const Lane &lane) const
    {
        return Updates(lane) && !lane.walk.Now().isMap;
    }

    __aicore__ inline void FetchQueries(Lane &lane, uint32_t i)
    {
        if (HasQueries(lane)) {
            const LaneStep &step = lane.walk.Now();
            LoadChunk(lane.q, q_[step.keyRow * kDim], step.rows, kDim);
            LoadChunk(lane.dO, dO_[step.row * kDim], step.rows, kDim);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kQueryIn + i);
        }
    }

    __aicore__ inline void FetchK(Lane &lane)
    {
        if (lane.walk.Live()) {
            LoadChunk(lane.k, k_[lane.walk.Now().keyRow * kDim], lane.walk.Now().rows, kDim);
            lane.hasK = true;
        }
    }

    /// Product Q of the chunk the lane has come to: qg^T @ dO into one of its slots.
    __aicore__ inline void MakeQueries(Lane &lane, uint32_t i)
    {
        if (!HasQueries(lane)) {
            return;
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kQueryIn + i);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        LoadLeftTransposed(lane.left, lane.q, kDim, kChunk);
        LoadRight(lane.right, lane.dO, kChunk, kDim);
        MultiplyAndStore(lane, i, lane.exchange[StateGradQueryAt(lane.querySlot)], kDim, kChunk,
                         kDim);
        lane.querySlot = (lane.querySlot + 1) % kStateGradQuerySlots;
    }

    /// Product S: kg @ dh into the exchange slot.
    __aicore__ inline void ReadExit(Lane &lane, uint32_t i)
    {
        lane.updates = Updates(lane);
        if (!lane.walk.Live()) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        AscendC::CrossCoreWaitFlag(StateGradFlagOf(i, kExitReady));
        LoadNz(lane.exit, dh_[KeptTile(t_, step, lane.slot) * kStateElems], kDim, kDim, kDim);
        if (!lane.hasK) {
            FetchK(lane);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        if (lane.updates) {
            LoadChunk(lane.w, w_[step.row * kDim], step.rows, kDim);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        LoadLeft(lane.left, lane.k, kChunk, kDim);
        LoadRight(lane.right, lane.exit, kDim, kDim);
        lane.hasK = false;
        MultiplyAndStore(lane, i, lane.exchange, RoundUp16(step.rows), kDim, step.rows);
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(StateGradFlagOf(i, kSourceReady));
        if (!lane.updates) {
            Advance(lane, i);
        }
    }

    /// Product W: w^T @ dv_scan into the exchange slot.
    __aicore__ inline void ReadScan(Lane &lane, uint32_t i)
    {
        if (!lane.updates) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        AscendC::CrossCoreWaitFlag(StateGradFlagOf(i, kScanReady));
        LoadChunk(lane.scan, dvScan_[KeptRow(t_, step, lane.slot) * kDim], step.rows, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        Advance(lane, i);
        FetchK(lane);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(i);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        LoadLeftTransposed(lane.left, lane.w, kDim, kChunk);
        LoadRight(lane.right, lane.scan, kChunk, kDim);
        MultiplyAndStore(lane, i, lane.exchange, kDim, kChunk, kDim);
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(StateGradFlagOf(i, kStepReady));
    }

    __aicore__ inline void Advance(Lane &lane, uint32_t i)
    {
        lane.walk.Next();
        lane.walk.SkipEmpty();
        FetchQueries(lane, i);
    }

    /// [m, k] @ [k, 128] out of L0 and `rows` rows of it to GM, in fp32.
    __aicore__ inline void MultiplyAndStore(Lane &lane, uint32_t i,
                                            const AscendC::GlobalTensor<float> &to, uint32_t m,
                                            uint32_t k, uint32_t rows)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(i);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(i);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        Multiply(lane.product, lane.left, lane.right, m, kDim, k, false);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(i);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(i);
        StoreRows(to, lane.product, rows, m, kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    }

    StateGradTiling t_;
    AscendC::GlobalTensor<Bf16> q_, k_, w_, dO_, dh_, dvScan_;
    CubeBuffers buffers_;
    Lane lanes_[kLanes];
};

}  // namespace fla
#endif  // FLA_STATE_GRAD_CUBE_H
