// SPDX-License-Identifier: Apache-2.0
// Vector body of the state stage: v_new and the rolling state. Maths, memory plan and flags:
// state.h.
#ifndef FLA_STATE_VECTOR_H
#define FLA_STATE_VECTOR_H

#include "state.h"
#include "state_tile_io.h"

namespace fla
{

class StateVector : StateTileIo
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const StateArgs &args)
    {
        Open(pipe, args);
        while (lanes_[0].walk.Live() || lanes_[1].walk.Live()) {
            for (uint32_t i = 0; i < kLanes; ++i) {
                MakeValue(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLanes; ++i) {
                FinishChunk(lanes_[i], i);
            }
        }
    }

  private:
    using Lane = StateVectorLane<false>;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateArgs &args)
    {
        args_ = args;
        u_ = GmAt<bfloat16_t>(args.u);
        wideU_ = GmAt<float>(args.u);
        h_ = GmAt<bfloat16_t>(args.h);
        vNew_ = GmAt<bfloat16_t>(args.vNew);
        OpenTiles(pipe, StateUb::end, false);
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        for (uint32_t i = 0; i < kLanes; ++i) {
            Lane &lane = lanes_[i];
            Place(lane, i);
            lane.slot = group * kLanes + i;
            lane.exchange = GmAt<float>(args.workspace)[ExchangeAt(group, i)];
            InitLane(lane.walk, args, i, group);
            StartItem(lane, i);
        }
    }

    /// Puts the next item's first state into UB and h. Empty sequences on the way only pass their
    /// state through.
    __aicore__ inline void StartItem(Lane &lane, uint32_t i)
    {
        while (lane.walk.Live() && lane.walk.Now().rows == 0) {
            if (args_.t.finalState != kStateAbsent) {
                LoadFirst(lane, i);
                StoreFinal(lane, i, lane.walk.Now());
            }
            lane.walk.Next();
        }
        if (!lane.walk.Live()) {
            return;
        }
        LoadFirst(lane, i);
        // The previous item's last chunk has been read from these buffers.
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        FetchChunk(lane, i, lane.walk.Now());
        for (uint32_t slice = 0; slice < kSlices; ++slice) {
            StoreEntry(lane, i, slice);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(i, kEntryReady));
    }

    /// R = initial state, or zeros, or the identity.
    __aicore__ inline void LoadFirst(Lane &lane, uint32_t i)
    {
        LoadTile(lane, i, args_.initialState, args_.t.initialState, lane.walk.Now());
    }

    /// Starts the copies of a chunk that do not depend on the cube: this core's rows of u, and
    /// G_last. A map has no values.
    __aicore__ inline void FetchChunk(Lane &lane, uint32_t i, const LaneStep &step)
    {
        const StateShare share = ShareOf(step.rows);
        const uint64_t first = (step.row + share.first) * kDim;
        const uint32_t count = step.isMap ? 0 : share.count * kDim;
        if (count > 0 && args_.t.valuesAreWide) {  // straight to where arithmetic reads it
            AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
            AscendC::DataCopy(lane.wideValues, wideU_[first], count);
        } else if (count > 0) {
            AscendC::DataCopy(lane.values, u_[first], count);
        }
        FetchGate(lane, args_.gk, args_.t.gateIsBf16, step);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kChunkIn + i);
    }

    /// v_new = bf16(u - W), this core's rows.
    __aicore__ inline void MakeValue(Lane &lane, uint32_t i)
    {
        lane.active = lane.walk.Live();
        if (!lane.active) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        const StateShare share = ShareOf(step.rows);
        const uint32_t count = share.count * kDim;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kChunkIn + i);
        MakeDecay(lane.decay, lane.gate, args_.t.gateIsBf16, args_.t.gateIsBase2, kDim);
        if (count > 0 && step.isMap) {
            AscendC::Duplicate(lane.wideValues, 0.0f, count);
        } else if (count > 0 && !args_.t.valuesAreWide) {
            Widen(lane.wideValues, lane.values, count);
        }
        AscendC::PipeBarrier<PIPE_V>();  // for both
        AscendC::CrossCoreWaitFlag(FlagOf(i, kReadReady));
        if (count > 0) {
            AscendC::DataCopy(lane.incoming, lane.exchange[share.first * kDim], count);
            AwaitLoad(i);
            AscendC::Sub(lane.incoming, lane.wideValues, lane.incoming, count);
            AscendC::PipeBarrier<PIPE_V>();
            StoreValue(lane, i, (KeptRow(args_.t, step, lane.slot) + share.first) * kDim, count);
        }
        if (Updates(args_.t, step)) {
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(i, kValueReady));
        }
    }

    /// v_new from `incoming` as its first plane and, if there are two, what the first leaves.
    __aicore__ inline void StoreValue(Lane &lane, uint32_t i, uint64_t at, uint32_t count)
    {
        Narrow(lane.outgoing, lane.incoming, count);
        const bool more = args_.t.valuePlanes > 1;
        const Half rest = lane.outgoing[kChunkElems / kVectorCores];
        if (more) {
            AscendC::PipeBarrier<PIPE_V>();
            Widen(lane.wideValues, lane.outgoing, count);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Sub(lane.incoming, lane.incoming, lane.wideValues, count);
            AscendC::PipeBarrier<PIPE_V>();
            Narrow(rest, lane.incoming, count);
        }
        AwaitVector(i);
        AscendC::DataCopy(vNew_[at], lane.outgoing, count);
        if (more) {
            AscendC::DataCopy(vNew_[at + PlaneElems(args_.t)], rest, count);
        }
    }

    /// R = E R + K, then on to the next chunk or the next item.
    __aicore__ inline void FinishChunk(Lane &lane, uint32_t i)
    {
        if (!lane.active) {
            return;
        }
        const LaneStep step = lane.walk.Now();
        lane.walk.Next();
        if (Updates(args_.t, step)) {
            if (!args_.t.stateVFirst) {
                SpreadRows(rowFactors_, lane.decay[half_ * kStateHalfRows], kStateHalfRows);
                AscendC::PipeBarrier<PIPE_V>();
            }
            AscendC::CrossCoreWaitFlag(FlagOf(i, kUpdateReady));
            for (uint32_t slice = 0; slice < kSlices; ++slice) {
                UpdateSlice(lane, i, slice);
                if (!step.last) {
                    StoreEntry(lane, i, slice);
                }
            }
        }
        if (!step.last) {
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(i, kEntryReady));
            FetchChunk(lane, i, lane.walk.Now());
            return;
        }
        if (args_.t.finalState != kStateAbsent) {
            StoreFinal(lane, i, step);
        }
        StartItem(lane, i);
    }

    /// R = E R + K for a slice of rows: while it is computed, the next one is on its way in and the
    /// one before on its way out. E belongs to K: with the state [V, K] it is a row that every row
    /// repeats (one pass per half of the columns); with [K, V] it is one factor per row (one pass).
    __aicore__ inline void UpdateSlice(Lane &lane, uint32_t i, uint32_t slice)
    {
        const uint32_t at = slice * kSliceElems;
        const Float state = lane.state[at];
        const Float product = lane.incoming[at];
        AscendC::DataCopy(product, lane.exchange[half_ * kStateHalfElems + at], kSliceElems);
        AwaitLoad(slice * kNextSlice + i);
        const uint64_t lanes = kLanesF32;
        if (args_.t.stateVFirst) {
            const AscendC::BinaryRepeatParams perColumn(1, 1, 1, kRowBlocks, 0, kRowBlocks);
            for (uint32_t column = 0; column < kDim; column += kLanesF32) {
                AscendC::FusedMulAdd(state[column], lane.decay[column], product[column], lanes,
                                     kSliceRows, perColumn);
            }
        } else {
            const AscendC::BinaryRepeatParams perRow(1, 0, 1, kBlockF32, 1, kBlockF32);
            AscendC::FusedMulAdd(state, rowFactors_[slice * kSliceRows * kRowRepeats * kBlockF32],
                                 product, lanes, kSliceRows * kRowRepeats, perRow);
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// A slice of h of the chunk that starts now.
    __aicore__ inline void StoreEntry(Lane &lane, uint32_t i, uint32_t slice)
    {
        StoreSlice(lane, i, slice, h_, KeptTile(args_.t, lane.walk.Now(), lane.slot));
    }

    __aicore__ inline void StoreFinal(Lane &lane, uint32_t i, const LaneStep &step)
    {
        if (args_.t.summary) {
            StoreBlock(i, lane.state, args_.finalState, step);
        } else {
            StoreTile(lane, i, lane.state, args_.finalState, args_.t.finalState, step);
        }
    }

    StateArgs args_;
    BfloatGm u_, h_, vNew_;
    FloatGm wideU_;
    Lane lanes_[kLanes];
};

}  // namespace fla
#endif  // FLA_STATE_VECTOR_H
