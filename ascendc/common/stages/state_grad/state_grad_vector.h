// SPDX-License-Identifier: Apache-2.0
// Vector body of the state_grad stage: dv_scan and the rolling gradient of the state. Maths, memory
// plan and flags: state_grad.h.
#ifndef FLA_STATE_GRAD_VECTOR_H
#define FLA_STATE_GRAD_VECTOR_H

#include "state_grad.h"
#include "vec_tile.h"

namespace fla
{

class StateGradVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        Open(pipe, args);
        while (lanes_[0].walk.Live() || lanes_[1].walk.Live()) {
            for (uint32_t i = 0; i < kLaneCount; ++i) {
                MakeScan(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLaneCount; ++i) {
                AddQueries(lanes_[i], i);
            }
            for (uint32_t i = 0; i < kLaneCount; ++i) {
                FinishChunk(lanes_[i], i);
            }
        }
    }

  private:
    using Float = AscendC::LocalTensor<float>;
    using Half = AscendC::LocalTensor<bfloat16_t>;
    using Bytes = AscendC::LocalTensor<uint32_t>;
    using BfloatGm = AscendC::GlobalTensor<bfloat16_t>;
    using FloatGm = AscendC::GlobalTensor<float>;
    static constexpr uint32_t kLaneCount = kStateGradLanes;
    static constexpr uint32_t kHalfRows = kStateGradHalfRows;
    static constexpr uint32_t kHalfElems = kStateGradHalfElems;
    static constexpr uint32_t kRowRepeats = kDim / kLanesF32;  // vector repeats of a state row

    // The state goes through UB in slices, so that copies in, arithmetic and copies out overlap.
    static constexpr uint32_t kSlices = 2;
    static constexpr uint32_t kSliceRows = kHalfRows / kSlices;
    static constexpr uint32_t kSliceElems = kSliceRows * kDim;

    // Event ids of a lane: MTE2_V of its chunk's copies, MTE2_V of a second slice, V_MTE2 when
    // `incoming` is free for the answer.
    static constexpr uint32_t kChunkIn = kLaneCount;
    static constexpr uint32_t kNextSlice = 2 * kLaneCount;
    static constexpr uint32_t kIncomingFree = kLaneCount;

    /// A lane's place in its items and its buffers (StateGradUb).
    struct Lane {
        StateGradLane walk;
        Float state, incoming, wideDv, gate, decay;
        Half outgoing, dv;
        FloatGm answer;
        uint32_t slot = 0;       // among those of the launch
        uint32_t querySlot = 0;  // the next Q comes from there
        bool active = false;     // this round has a chunk for the lane
        bool updates = false;    // ... and it updates D
    };

    /// The rows of a chunk that this vector core turns into dv_scan.
    struct Share {
        uint32_t first, count;
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const StateGradArgs &args)
    {
        args_ = args;
        dv_ = GmAt<bfloat16_t>(args.dv);
        dh_ = GmAt<bfloat16_t>(args.dh);
        dvScan_ = GmAt<bfloat16_t>(args.dvScan);
        half_ = AscendC::GetSubBlockIdx();
        pipe.InitBuffer(ub_, StateGradUb::end);
        rowFactors_ =
            View<float>(ub_, StateGradUb::rowFactors, kHalfRows * kRowRepeats * kBlockF32);
        tallColumn_ = MakeColumn(StateGradUb::tallColumn, kDim, kHalfRows);
        wideColumn_ = MakeColumn(StateGradUb::wideColumn, kHalfRows, kDim);
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        for (uint32_t i = 0; i < kLaneCount; ++i) {
            Lane &lane = lanes_[i];
            const uint32_t ub = i * StateGradUb::lane;
            lane.slot = group * kLaneCount + i;
            lane.state = View<float>(ub_, ub + StateGradUb::state, kHalfElems);
            lane.incoming = View<float>(ub_, ub + StateGradUb::incoming, kHalfElems);
            lane.wideDv = View<float>(ub_, ub + StateGradUb::wideDv, kChunkElems / kVectorCores);
            lane.outgoing = View<bfloat16_t>(ub_, ub + StateGradUb::outgoing, kHalfElems);
            lane.dv = View<bfloat16_t>(ub_, ub + StateGradUb::dv, kChunkElems / kVectorCores);
            lane.gate = View<float>(ub_, ub + StateGradUb::gate, kDim);
            lane.decay = View<float>(ub_, ub + StateGradUb::decay, kDim);
            lane.answer = GmAt<float>(args.workspace)[StateGradAnswerAt(group, i)];
            InitStateGradLane(lane.walk, args, i, group);
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

    __aicore__ inline Share ShareOf(uint32_t rows) const
    {
        const uint32_t upper = (rows + 1) / kVectorCores;
        return half_ == 0 ? Share{0, upper} : Share{upper, rows - upper};
    }

    /// Puts the next item's last gradient into UB and dh. Empty sequences on the way only pass theirs
    /// through.
    __aicore__ inline void StartItem(Lane &lane, uint32_t i)
    {
        while (lane.walk.Live() && lane.walk.Now().rows == 0) {
            if (args_.t.initialGradient != kStateAbsent) {
                LoadFinal(lane, i, lane.walk.Now());
                StoreInitial(lane, i, lane.walk.Now());
            }
            lane.walk.Next();
        }
        if (!lane.walk.Live()) {
            return;
        }
        LoadFinal(lane, i, lane.walk.Now());
        // The previous item's last chunk has been read from these buffers.
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        FetchChunk(lane, i, lane.walk.Now());
        for (uint32_t slice = 0; slice < kSlices; ++slice) {
            StoreSlice(lane, i, slice);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(StateGradFlagOf(i, kExitReady));
    }

    /// D = dht, or zeros, or the identity. The copy lands in `incoming`, whose last reader was the vector pipe or, with
    /// dh0 [V, K], the way out; D and `outgoing` may still be on theirs.
    __aicore__ inline void LoadFinal(Lane &lane, uint32_t i, const LaneStep &step)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(i);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(i);
        if (args_.t.finalGradient == kStateAbsent) {
            AscendC::Duplicate(lane.state, 0.0f, kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            if (step.isMap) {
                AddDiagonal(lane.state, half_);
            }
            return;
        }
        const uint64_t tile = step.itemTile;
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        if (args_.t.finalGradient == kStateBf16) {
            const auto from = GmAt<bfloat16_t>(args_.dht);
            Half staged = lane.incoming.ReinterpretCast<bfloat16_t>();
            AscendC::DataCopy(staged, from[HalfOf(tile)], HalfIn<bfloat16_t>());
            AwaitLoad(i);
            Widen(lane.state, staged, kHalfElems);
        } else {
            const auto from = GmAt<float>(args_.dht);
            AscendC::DataCopy(lane.incoming, from[HalfOf(tile)], HalfIn<float>());
            AwaitLoad(i);
            AscendC::DataCopy(lane.state, lane.incoming, kHalfElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
        if (args_.t.stateVFirst) {
            Transpose(lane.incoming, lane.state, tallColumn_, kHalfRows, kDim);
            AscendC::DataCopy(lane.state, lane.incoming, kHalfElems);
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

    /// Where this core's half of a tile of dht or dh0 begins: rows of [K, V], columns of [V, K].
    __aicore__ inline uint64_t HalfOf(uint64_t tile) const
    {
        return tile * kStateElems + half_ * (args_.t.stateVFirst ? kHalfRows : kHalfElems);
    }

    /// How it lies in GM, and the copy in: one run, or one piece of every row. UB holds it densely.
    template <typename T>
    __aicore__ inline AscendC::DataCopyParams HalfIn() const
    {
        constexpr uint16_t piece = kHalfRows * sizeof(T) / kBlockBytes;
        return args_.t.stateVFirst ? AscendC::DataCopyParams(kDim, piece, piece, 0)
                                   : AscendC::DataCopyParams(1, kDim * piece, 0, 0);
    }

    /// The same for the copy out.
    template <typename T>
    __aicore__ inline AscendC::DataCopyParams HalfOut() const
    {
        AscendC::DataCopyParams params = HalfIn<T>();
        params.dstStride = params.srcStride;
        params.srcStride = 0;
        return params;
    }

    /// Vector after the copies in issued so far. A flag must not be raised again before its wait has
    /// passed, hence the ids.
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

    /// Starts the copies of a chunk that do not depend on the cube: this core's rows of dv, and
    /// G_last. A map has no values.
    __aicore__ inline void FetchChunk(Lane &lane, uint32_t i, const LaneStep &step)
    {
        const Share share = ShareOf(step.rows);
        if (share.count > 0 && !step.isMap) {
            AscendC::DataCopy(lane.dv, dv_[(step.row + share.first) * kDim], share.count * kDim);
        }
        const uint64_t last = (step.row + step.rows - 1) * kDim;
        if (args_.t.hasGate && args_.t.gateIsBf16) {
            const auto gate = GmAt<bfloat16_t>(args_.gk);
            AscendC::DataCopy(lane.gate.ReinterpretCast<bfloat16_t>(), gate[last], kDim);
        } else if (args_.t.hasGate) {
            const auto gate = GmAt<float>(args_.gk);
            AscendC::DataCopy(lane.gate, gate[last], kDim);
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
        const Share share = ShareOf(step.rows);
        const uint32_t count = share.count * kDim;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kChunkIn + i);
        if (args_.t.hasGate) {
            MakeDecay(lane.decay, lane.gate, args_.t.gateIsBf16, args_.t.gateIsBase2, kDim);
        } else {
            AscendC::Duplicate(lane.decay, 1.0f, kDim);
        }
        if (count > 0 && step.isMap) {
            AscendC::Duplicate(lane.wideDv, 0.0f, count);
        } else if (count > 0) {
            Widen(lane.wideDv, lane.dv, count);
        }
        AscendC::PipeBarrier<PIPE_V>();  // for both
        AscendC::CrossCoreWaitFlag(StateGradFlagOf(i, kSourceReady));
        if (count > 0) {
            AscendC::DataCopy(lane.incoming, lane.answer[share.first * kDim], count);
            AwaitLoad(i);
            AscendC::Add(lane.incoming, lane.wideDv, lane.incoming, count);
            AscendC::PipeBarrier<PIPE_V>();
            Narrow(lane.outgoing, lane.incoming, count);
            AwaitVector(i);
            AscendC::DataCopy(dvScan_[(ScanRow(args_.t, step, lane.slot) + share.first) * kDim],
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
        SpreadRows(rowFactors_, lane.decay[half_ * kHalfRows], kHalfRows);
        if (lane.walk.Now().isMap) {
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Mul(lane.state, lane.state, rowFactors_, static_cast<uint64_t>(kLanesF32),
                         kHalfRows * kRowRepeats, {1, 1, 0, kBlockF32, kBlockF32, 1});
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
        const FloatGm query = lane.answer[StateGradQueryAt(lane.querySlot) + half_ * kHalfElems];
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
                    StoreSlice(lane, i, slice);
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
        AscendC::DataCopy(product, lane.answer[half_ * kHalfElems + at], kSliceElems);
        AwaitLoad(slice * kNextSlice + i);
        AscendC::Sub(lane.state[at], lane.state[at], product, kSliceElems);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// A slice of dh of the chunk that starts now.
    __aicore__ inline void StoreSlice(Lane &lane, uint32_t i, uint32_t slice)
    {
        const uint32_t at = slice * kSliceElems;
        Narrow(lane.outgoing[at], lane.state[at], kSliceElems);
        AwaitVector(slice * kLaneCount + i);
        const uint64_t tile = ExitTile(args_.t, lane.walk.Now(), lane.slot);
        AscendC::DataCopy(dh_[tile * kStateElems + half_ * kHalfElems + at], lane.outgoing[at],
                          kSliceElems);
    }

    /// dh0 = D.
    __aicore__ inline void StoreInitial(Lane &lane, uint32_t i, const LaneStep &step)
    {
        const uint64_t tile = step.itemTile;
        Float result = lane.state;
        if (args_.t.stateVFirst) {
            Transpose(lane.incoming, lane.state, wideColumn_, kDim, kHalfRows);
            result = lane.incoming;
        }
        if (args_.t.initialGradient == kStateBf16) {
            const auto to = GmAt<bfloat16_t>(args_.dh0);
            Narrow(lane.outgoing, result, kHalfElems);
            AwaitVector(i);
            AscendC::DataCopy(to[HalfOf(tile)], lane.outgoing, HalfOut<bfloat16_t>());
        } else {
            const auto to = GmAt<float>(args_.dh0);
            AwaitVector(i);
            if (args_.t.summary) {
                AscendC::DataCopy(to[SummaryAt(tile, half_, step.isMap)], result, SummaryRows());
            } else {
                AscendC::DataCopy(to[HalfOf(tile)], result, HalfOut<float>());
            }
        }
    }

    StateGradArgs args_;
    uint32_t half_ = 0;  // which half of the rows is this core's
    BfloatGm dv_, dh_, dvScan_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    Float rowFactors_;
    Bytes tallColumn_, wideColumn_;
    Lane lanes_[kLaneCount];
};

}  // namespace fla
#endif  // FLA_STATE_GRAD_VECTOR_H
