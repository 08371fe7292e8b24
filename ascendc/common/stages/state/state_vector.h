// SPDX-License-Identifier: Apache-2.0
// Vector body of the state stage: v_new and the rolling state. Maths, memory plan and flags:
// state.h.
#ifndef FLA_STATE_VECTOR_H
#define FLA_STATE_VECTOR_H

#include "state.h"
#include "vec_tile.h"

namespace fla
{

class StateVector
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
    using Float = AscendC::LocalTensor<float>;
    using Half = AscendC::LocalTensor<bfloat16_t>;
    using BfloatGm = AscendC::GlobalTensor<bfloat16_t>;
    static constexpr uint32_t kRowBlocks = kDim / kBlockF32;   // blocks and vector repeats of a
    static constexpr uint32_t kRowRepeats = kDim / kLanesF32;  // state row

    // The state goes through UB in slices, so that copies in, arithmetic and copies out overlap.
    static constexpr uint32_t kSlices = 2;
    static constexpr uint32_t kSliceRows = kStateHalfRows / kSlices;
    static constexpr uint32_t kSliceElems = kSliceRows * kDim;

    /// A lane's place in its items and its buffers (StateUb).
    struct Lane {
        StateLane walk;
        Float state, incoming, wideU, gate, decay;
        Half outgoing, u;
        AscendC::GlobalTensor<float> exchange;
        uint32_t slot = 0;    // among those of the launch
        bool active = false;  // this round has a chunk for the lane
    };

    /// The rows of a chunk that this vector core turns into v_new.
    struct Share {
        uint32_t first, count;
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateArgs &args)
    {
        args_ = args;
        u_ = GmAt<bfloat16_t>(args.u);
        wideU_ = GmAt<float>(args.u);
        h_ = GmAt<bfloat16_t>(args.h);
        vNew_ = GmAt<bfloat16_t>(args.vNew);
        half_ = AscendC::GetSubBlockIdx();
        pipe.InitBuffer(ub_, StateUb::end);
        rowFactors_ =
            View<float>(ub_, StateUb::rowFactors, kStateHalfRows * kRowRepeats * kBlockF32);
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        for (uint32_t i = 0; i < kLanes; ++i) {
            Lane &lane = lanes_[i];
            const uint32_t ub = i * StateUb::lane;
            lane.slot = group * kLanes + i;
            lane.state = View<float>(ub_, ub + StateUb::state, kStateHalfElems);
            lane.incoming = View<float>(ub_, ub + StateUb::incoming, kStateHalfElems);
            lane.wideU = View<float>(ub_, ub + StateUb::wideU, kChunkElems / kVectorCores);
            lane.outgoing = View<bfloat16_t>(ub_, ub + StateUb::outgoing, kStateHalfElems);
            lane.u = View<bfloat16_t>(ub_, ub + StateUb::u, kChunkElems / kVectorCores);
            lane.gate = View<float>(ub_, ub + StateUb::gate, kDim);
            lane.decay = View<float>(ub_, ub + StateUb::decay, kDim);
            lane.exchange = GmAt<float>(args.workspace)[ExchangeAt(group, i)];
            InitStateLane(lane.walk, args, i, group);
            StartItem(lane, i);
        }
    }

    __aicore__ inline Share ShareOf(uint32_t rows) const
    {
        const uint32_t upper = (rows + 1) / kVectorCores;
        return half_ == 0 ? Share{0, upper} : Share{upper, rows - upper};
    }

    /// Puts the next item's first state into UB and h. Empty sequences on the way only pass their
    /// state through.
    __aicore__ inline void StartItem(Lane &lane, uint32_t i)
    {
        while (lane.walk.Live() && lane.walk.Now().rows == 0) {
            if (args_.t.finalState != kStateAbsent) {
                LoadState(lane, i, lane.walk.Now());
                StoreFinal(lane, i, lane.walk.Now());
            }
            lane.walk.Next();
        }
        if (!lane.walk.Live()) {
            return;
        }
        LoadState(lane, i, lane.walk.Now());
        // The previous item's last chunk has been read from these buffers.
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        FetchChunk(lane, i, lane.walk.Now());
        for (uint32_t slice = 0; slice < kSlices; ++slice) {
            StoreSlice(lane, i, slice);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(i, kEntryReady));
    }

    /// R = initial state, or zeros, or the identity. The copy lands in `incoming`, whose last reader
    /// was the vector pipe; R and `outgoing` may still be on their way out.
    __aicore__ inline void LoadState(Lane &lane, uint32_t i, const LaneStep &step)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(i);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(i);
        if (args_.t.initialState == kStateAbsent) {
            AscendC::Duplicate(lane.state, 0.0f, kStateHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            if (step.isMap) {
                AddDiagonal(lane.state, half_);
            }
            return;
        }
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        if (args_.t.initialState == kStateBf16) {
            const auto from = GmAt<bfloat16_t>(args_.initialState);
            Half staged = lane.incoming.ReinterpretCast<bfloat16_t>();
            AscendC::DataCopy(staged, from[HalfTile(step.itemTile)], kStateHalfElems);
            AwaitLoad(i);
            Widen(lane.state, staged, kStateHalfElems);
        } else {
            const auto from = GmAt<float>(args_.initialState);
            AscendC::DataCopy(lane.incoming, from[HalfTile(step.itemTile)], kStateHalfElems);
            AwaitLoad(i);
            AscendC::DataCopy(lane.state, lane.incoming, kStateHalfElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// Vector after the copies in issued so far. Ids: lane, kLanes + lane for FetchChunk, 2 *
    /// kLanes + lane for a second slice; a flag must not be raised again before its wait has
    /// passed.
    __aicore__ inline void AwaitLoad(uint32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(id);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(id);
    }

    /// Copies out after the vector instructions issued so far.
    __aicore__ inline void AwaitVector(uint32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(id);
    }

    /// Starts the copies of a chunk that do not depend on the cube: this core's rows of u, and
    /// G_last. A map has no values.
    __aicore__ inline void FetchChunk(Lane &lane, uint32_t i, const LaneStep &step)
    {
        const Share share = ShareOf(step.rows);
        const uint64_t first = (step.row + share.first) * kDim;
        const uint32_t count = step.isMap ? 0 : share.count * kDim;
        if (count > 0 && args_.t.valuesAreWide) {  // straight to where arithmetic reads it
            AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
            AscendC::DataCopy(lane.wideU, wideU_[first], count);
        } else if (count > 0) {
            AscendC::DataCopy(lane.u, u_[first], count);
        }
        const uint64_t last = (step.row + step.rows - 1) * kDim;
        if (args_.t.gateIsBf16) {
            const auto gate = GmAt<bfloat16_t>(args_.gk);
            AscendC::DataCopy(lane.gate.ReinterpretCast<bfloat16_t>(), gate[last], kDim);
        } else {
            const auto gate = GmAt<float>(args_.gk);
            AscendC::DataCopy(lane.gate, gate[last], kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kLanes + i);
    }

    /// v_new = bf16(u - W), this core's rows.
    __aicore__ inline void MakeValue(Lane &lane, uint32_t i)
    {
        lane.active = lane.walk.Live();
        if (!lane.active) {
            return;
        }
        const LaneStep &step = lane.walk.Now();
        const Share share = ShareOf(step.rows);
        const uint32_t count = share.count * kDim;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kLanes + i);
        MakeDecay(lane.decay, lane.gate, args_.t.gateIsBf16, args_.t.gateIsBase2, kDim);
        if (count > 0 && step.isMap) {
            AscendC::Duplicate(lane.wideU, 0.0f, count);
        } else if (count > 0 && !args_.t.valuesAreWide) {
            Widen(lane.wideU, lane.u, count);
        }
        AscendC::PipeBarrier<PIPE_V>();  // for both
        AscendC::CrossCoreWaitFlag(FlagOf(i, kReadReady));
        if (count > 0) {
            AscendC::DataCopy(lane.incoming, lane.exchange[share.first * kDim], count);
            AwaitLoad(i);
            AscendC::Sub(lane.incoming, lane.wideU, lane.incoming, count);
            AscendC::PipeBarrier<PIPE_V>();
            StoreValue(lane, i, (ValueRow(args_.t, step, lane.slot) + share.first) * kDim, count);
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
            Widen(lane.wideU, lane.outgoing, count);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Sub(lane.incoming, lane.incoming, lane.wideU, count);
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
                    StoreSlice(lane, i, slice);
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
        AwaitLoad(slice * 2 * kLanes + i);
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
    __aicore__ inline void StoreSlice(Lane &lane, uint32_t i, uint32_t slice)
    {
        const uint32_t at = slice * kSliceElems;
        Narrow(lane.outgoing[at], lane.state[at], kSliceElems);
        AwaitVector(slice * kLanes + i);
        const uint64_t tile = EntryTile(args_.t, lane.walk.Now(), lane.slot);
        AscendC::DataCopy(h_[HalfTile(tile) + at], lane.outgoing[at], kSliceElems);
    }

    __aicore__ inline void StoreFinal(Lane &lane, uint32_t i, const LaneStep &step)
    {
        if (args_.t.finalState == kStateBf16) {
            const auto to = GmAt<bfloat16_t>(args_.finalState);
            Narrow(lane.outgoing, lane.state, kStateHalfElems);
            AwaitVector(i);
            AscendC::DataCopy(to[HalfTile(step.itemTile)], lane.outgoing, kStateHalfElems);
        } else {
            const auto to = GmAt<float>(args_.finalState);
            AwaitVector(i);
            if (args_.t.summary) {
                AscendC::DataCopy(to[SummaryAt(step.itemTile, half_, step.isMap)], lane.state,
                                  SummaryRows());
            } else {
                AscendC::DataCopy(to[HalfTile(step.itemTile)], lane.state, kStateHalfElems);
            }
        }
    }

    /// First element of this core's half of a state tile.
    __aicore__ inline uint64_t HalfTile(uint64_t tile) const
    {
        return tile * kStateElems + half_ * kStateHalfElems;
    }

    StateArgs args_;
    uint32_t half_ = 0;  // which half of the rows is this core's
    BfloatGm u_, h_, vNew_;
    AscendC::GlobalTensor<float> wideU_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    Float rowFactors_;
    Lane lanes_[kLanes];
};

}  // namespace fla
#endif  // FLA_STATE_VECTOR_H
