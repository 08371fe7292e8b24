// SPDX-License-Identifier: Apache-2.0
// Vector body of the state_grad stage: dv_scan and the rolling gradient of the state. Maths, memory
// plan and flags: state_grad.h.
#ifndef FLA_STATE_GRAD_VECTOR_H
#define FLA_STATE_GRAD_VECTOR_H

#include "state_grad.h"
#include "state/state_tile_io.h"

namespace fla
{

class StateGradVector : StateTileIo
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        Open(pipe, args);
        while (lanes_[0].walk.Live() || lanes_[1].walk.Live()) {
            for (uint32_t i = 0; i < kLanes; ++i) {
                MakeScan(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                AddQueries(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                FinishChunk(lanes_[i], i);
            }
        }
    }

  private:
    using Bytes = AscendC::LocalTensor<uint32_t>;
    // Event ids of a lane: V_MTE2 when `incoming` is free for the answer.
    static constexpr uint32_t kIncomingFree = kLanes;

    struct Lane : StateVectorLane<true> {
        uint32_t querySlot = 0;  // the next Q comes from there
        bool updates = false;    // this round has a chunk, and it updates D
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        args_ = args;
        dv_ = GmAt<bfloat16_t>(args.dv);
        dh_ = GmAt<bfloat16_t>(args.dh);
        dvScan_ = GmAt<bfloat16_t>(args.dvScan);
        OpenTiles(pipe, StateGradUb::end, args.t.stateVFirst);
        tallColumn_ = MakeColumn(StateGradUb::tallColumn, kDim, kStateHalfRows);
        wideColumn_ = MakeColumn(StateGradUb::wideColumn, kStateHalfRows, kDim);
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        for (uint32_t i = 0; i < kLanes; ++i) {
            Lane &lane = lanes_[i];
            Place(lane, i);
            lane.slot = group * kLanes + i;
            lane.exchange = GmAt<float>(args.workspace)[StateGradExchangeAt(group, i)];
            InitLane(lane.walk, args, i, group);
            StartItem(lane, i);
        }
    }

    /// Byte offsets of the first column of an fp32 tile [rows, cols]: what Gather reads for a row of
    /// the transposed tile. No barrier at its end.
    __aicore__ inline Bytes MakeColumn(uint32_t at, uint32_t rows, uint32_t cols)
    {
        AscendC::LocalTensor<int32_t> column = View<int32_t>(ub_, at, rows);
        AscendC::CreateVecIndex(column, 0, rows);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(column, column, static_cast<int32_t>(cols * sizeof(float)), rows);
        return column.ReinterpretCast<uint32_t>();
    }

    /// Puts the next item's last gradient into UB and dh. Empty sequences on the way only pass theirs
    /// through.
    __aicore__ inline void StartItem(Lane &lane, uint32_t i)
    {
        while (lane.walk.Live() && lane.walk.Now().rows == 0) {
            if (args_.t.initialGradient != kStateAbsent) {
                LoadFinal(lane, i);
                StoreInitial(lane, i, lane.walk.Now());
            }
            lane.walk.Next();
        }
        if (!lane.walk.Live()) {
            return;
        }
        LoadFinal(lane, i);
        // The previous item's last chunk has been read from these buffers.
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        FetchChunk(lane, i, lane.walk.Now());
        for (uint32_t slice = 0; slice < kSlices; ++slice) {
            StoreExit(lane, i, slice);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(StateGradFlagOf(i, kExitReady));
    }

    /// D = dht, or zeros, or the identity.
    __aicore__ inline void LoadFinal(Lane &lane, uint32_t i)
    {
        LoadTile(lane, i, args_.dht, args_.t.finalGradient, lane.walk.Now());
        if (args_.t.stateVFirst && args_.t.finalGradient != kStateAbsent) {
            Transpose(lane.incoming, lane.state, tallColumn_, kStateHalfRows, kDim);
            AscendC::DataCopy(lane.state, lane.incoming, kStateHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// to [rows, cols] = from [cols, rows] transposed; `column` holds the offsets of a column of
    /// `from`. A gather is slow, but this happens once per item.
    __aicore__ inline void Transpose(const Float &to, const Float &from, const Bytes &column,
                                     uint32_t rows, uint32_t cols)
    {
        for (uint32_t row = 0; row < rows; ++row) {
            AscendC::Gather(to[row * cols], from, column, row * sizeof(float), cols);
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// Starts the copies of a chunk that do not depend on the cube: this core's rows of dv, and
    /// G_last. A map has no values.
    __aicore__ inline void FetchChunk(Lane &lane, uint32_t i, const LaneStep &step)
    {
        const StateShare share = ShareOf(step.rows);
        if (share.count > 0 && !step.isMap) {
            AscendC::DataCopy(lane.values, dv_[(step.row + share.first) * kDim],
                              share.count * kDim);
        }
        if (args_.t.hasGate) {
            FetchGate(lane, args_.gk, args_.t.gateIsBf16, step);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kChunkIn + i);
    }

    /// dv_scan = bf16(dv_local + S), this core's rows.
    __aicore__ inline void MakeScan(Lane &lane, uint32_t i)
    {
        lane.active = lane.walk.Live();
        if (!lane.active) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        lane.updates = StateGradUpdates(args_.t, step);
        const StateShare share = ShareOf(step.rows);
        const uint32_t count = share.count * kDim;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kChunkIn + i);
        if (args_.t.hasGate) {
            MakeDecay(lane.decay, lane.gate, args_.t.gateIsBf16, args_.t.gateIsBase2, kDim);
        } else {
            AscendC::Duplicate(lane.decay, 1.0f, kDim);
        }
        if (count > 0 && step.isMap) {
            AscendC::Duplicate(lane.wideValues, 0.0f, count);
        } else if (count > 0) {
            Widen(lane.wideValues, lane.values, count);
        }
        AscendC::PipeBarrier<PIPE_V>();  // for both
        AscendC::CrossCoreWaitFlag(StateGradFlagOf(i, kSourceReady));
        if (count > 0) {
            AscendC::DataCopy(lane.incoming, lane.exchange[share.first * kDim], count);
            AwaitLoad(i);
            AscendC::Add(lane.incoming, lane.wideValues, lane.incoming, count);
            AscendC::PipeBarrier<PIPE_V>();
            Narrow(lane.outgoing, lane.incoming, count);
            AwaitVector(i);
            AscendC::DataCopy(dvScan_[(KeptRow(args_.t, step, lane.slot) + share.first) * kDim],
                              lane.outgoing, count);
        }
        if (lane.updates) {
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(StateGradFlagOf(i, kScanReady));
        }
    }

    /// D = E D + scale Q while the cube makes W; D = E D for a map.
    __aicore__ inline void AddQueries(Lane &lane, uint32_t i)
    {
        if (!lane.active || !lane.updates) {
            return;
        }
        SpreadRows(rowFactors_, lane.decay[half_ * kStateHalfRows], kStateHalfRows);
        if (lane.walk.Now().isMap) {
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Mul(lane.state, lane.state, rowFactors_, static_cast<uint64_t>(kLanesF32),
                         kStateHalfRows * kRowRepeats, {1, 1, 0, kBlockF32, kBlockF32, 1});
        } else {
            AddScaledQueries(lane, i);
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kIncomingFree + i);
    }

    /// D = E D + scale Q, on factors that are being spread.
    __aicore__ inline void AddScaledQueries(Lane &lane, uint32_t i)
    {
        // dv_scan has been made in `incoming`.
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        const FloatGm query =
            lane.exchange[StateGradQueryAt(lane.querySlot) + half_ * kStateHalfElems];
        lane.querySlot = (lane.querySlot + 1) % kStateGradQuerySlots;
        const AscendC::BinaryRepeatParams perRow(1, 0, 1, kBlockF32, 1, kBlockF32);
        for (uint32_t slice = 0; slice < kSlices; ++slice) {
            const uint32_t at = slice * kSliceElems;
            const Float product = lane.incoming[at];
            AscendC::DataCopy(product, query[at], kSliceElems);
            AwaitLoad(slice * kNextSlice + i);
            AscendC::Muls(product, product, args_.t.scale, kSliceElems);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::FusedMulAdd(
                lane.state[at], rowFactors_[slice * kSliceRows * kRowRepeats * kBlockF32], product,
                static_cast<uint64_t>(kLanesF32), kSliceRows * kRowRepeats, perRow);
        }
    }

    /// D = D - W, then on to the chunk before or the next item.
    __aicore__ inline void FinishChunk(Lane &lane, uint32_t i)
    {
        if (!lane.active) {
            return;
        }
        const LaneStep step = lane.walk.Now();
        lane.walk.Next();
        if (lane.updates) {
            AscendC::CrossCoreWaitFlag(StateGradFlagOf(i, kStepReady));
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kIncomingFree + i);
            for (uint32_t slice = 0; slice < kSlices; ++slice) {
                TakeStep(lane, i, slice);
                if (!step.last) {
                    StoreExit(lane, i, slice);
                }
            }
        }
        if (!step.last) {
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(StateGradFlagOf(i, kExitReady));
            FetchChunk(lane, i, lane.walk.Now());
            return;
        }
        if (args_.t.initialGradient != kStateAbsent) {
            StoreInitial(lane, i, step);
        }
        StartItem(lane, i);
    }

    /// D = D - W for a slice of rows: while it is computed, the next one is on its way in and the
    /// one before on its way out.
    __aicore__ inline void TakeStep(Lane &lane, uint32_t i, uint32_t slice)
    {
        const uint32_t at = slice * kSliceElems;
        const Float product = lane.incoming[at];
        AscendC::DataCopy(product, lane.exchange[half_ * kStateHalfElems + at], kSliceElems);
        AwaitLoad(slice * kNextSlice + i);
        AscendC::Sub(lane.state[at], lane.state[at], product, kSliceElems);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// A slice of dh of the chunk that starts now.
    __aicore__ inline void StoreExit(Lane &lane, uint32_t i, uint32_t slice)
    {
        StoreSlice(lane, i, slice, dh_, KeptTile(args_.t, lane.walk.Now(), lane.slot));
    }

    /// dh0 = D.
    __aicore__ inline void StoreInitial(Lane &lane, uint32_t i, const LaneStep &step)
    {
        Float result = lane.state;
        if (args_.t.stateVFirst) {
            Transpose(lane.incoming, lane.state, wideColumn_, kDim, kStateHalfRows);
            result = lane.incoming;
        }
        if (args_.t.summary) {
            StoreBlock(i, result, args_.dh0, step);
        } else {
            StoreTile(lane, i, result, args_.dh0, args_.t.initialGradient, step);
        }
    }

    StateGradArgs args_;
    BfloatGm dv_, dh_, dvScan_;
    Bytes tallColumn_, wideColumn_;
    Lane lanes_[kLanes];
};

}  // namespace fla
#endif  // FLA_STATE_GRAD_VECTOR_H
