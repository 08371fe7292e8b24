// SPDX-License-Identifier: Apache-2.0
// State tiles on the vector cores, forwards and backwards: between GM and UB, whole or in slices, and
// what a lane waits for meanwhile. Each core has half the rows of a tile, and of the values of a chunk.
#ifndef FLA_STATE_TILE_IO_H
#define FLA_STATE_TILE_IO_H

#include "state_lane.h"
#include "vec_tile.h"

namespace fla
{

/// A lane of a vector core: its place in its items and its buffers (StateUb).
template <bool kBackwards>
struct StateVectorLane {
    LaneWalk<kBackwards> walk;
    AscendC::LocalTensor<float> state, incoming, wideValues, gate, decay;
    AscendC::LocalTensor<bfloat16_t> outgoing, values;
    AscendC::GlobalTensor<float> exchange;
    uint32_t slot = 0;    // among those of the launch
    bool active = false;  // this round has a chunk for the lane
};

/// The rows of a chunk that a vector core serves.
struct StateShare {
    uint32_t first, count;
};

class StateTileIo
{
  protected:
    using Float = AscendC::LocalTensor<float>;
    using Half = AscendC::LocalTensor<bfloat16_t>;
    using BfloatGm = AscendC::GlobalTensor<bfloat16_t>;
    using FloatGm = AscendC::GlobalTensor<float>;
    static constexpr uint32_t kRowBlocks = kDim / kBlockF32;   // blocks and vector repeats of a
    static constexpr uint32_t kRowRepeats = kDim / kLanesF32;  // state row

    // The state goes through UB in slices, so that copies in, arithmetic and copies out overlap.
    static constexpr uint32_t kSlices = 2;
    static constexpr uint32_t kSliceRows = kStateHalfRows / kSlices;
    static constexpr uint32_t kSliceElems = kSliceRows * kDim;

    // Event ids of a lane beside its number: MTE2_V of its chunk's copies and of a second slice. A
    // flag must not be raised again before its wait has passed.
    static constexpr uint32_t kChunkIn = kLanes;
    static constexpr uint32_t kNextSlice = 2 * kLanes;

    /// `ubBytes`: StateUb and what a direction has behind it. `turned`: first and last states lie
    /// turned in GM, [V, K] for [K, V].
    __aicore__ inline void OpenTiles(AscendC::TPipe &pipe, uint32_t ubBytes, bool turned)
    {
        half_ = AscendC::GetSubBlockIdx();
        turned_ = turned;
        pipe.InitBuffer(ub_, ubBytes);
        rowFactors_ =
            View<float>(ub_, StateUb::rowFactors, kStateHalfRows * kRowRepeats * kBlockF32);
    }

    template <bool kBackwards>
    __aicore__ inline void Place(StateVectorLane<kBackwards> &lane, uint32_t i)
    {
        const uint32_t ub = i * StateUb::lane;
        lane.state = View<float>(ub_, ub + StateUb::state, kStateHalfElems);
        lane.incoming = View<float>(ub_, ub + StateUb::incoming, kStateHalfElems);
        lane.wideValues = View<float>(ub_, ub + StateUb::wideValues, StateUb::chunkElems);
        lane.outgoing = View<bfloat16_t>(ub_, ub + StateUb::outgoing, kStateHalfElems);
        lane.values = View<bfloat16_t>(ub_, ub + StateUb::values, StateUb::chunkElems);
        lane.gate = View<float>(ub_, ub + StateUb::gate, kDim);
        lane.decay = View<float>(ub_, ub + StateUb::decay, kDim);
    }

    __aicore__ inline StateShare ShareOf(uint32_t rows) const
    {
        const uint32_t upper = (rows + 1) / kVectorCores;
        return half_ == 0 ? StateShare{0, upper} : StateShare{upper, rows - upper};
    }

    /// Vector after the copies in issued so far.
    __aicore__ static inline void AwaitLoad(uint32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(id);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(id);
    }

    /// Copies out after the vector instructions issued so far.
    __aicore__ static inline void AwaitVector(uint32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(id);
    }

    /// The first state of an item: the tile in `from`, or zeros, or the identity. The copy lands in
    /// `incoming`, whose last reader was the vector pipe or a way out; the state and `outgoing` may
    /// still be on theirs.
    template <bool kBackwards>
    __aicore__ inline void LoadTile(StateVectorLane<kBackwards> &lane, uint32_t i, GM_ADDR from,
                                    uint32_t dtype, const LaneStep &step)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(i);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(i);
        if (dtype == kStateAbsent) {
            AscendC::Duplicate(lane.state, 0.0f, kStateHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            if (step.isMap) {
                AddDiagonal(lane.state, half_);
            }
            return;
        }
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
        const uint64_t at = TileAt(step.itemTile);
        if (dtype == kStateBf16) {
            const Half staged = lane.incoming.template ReinterpretCast<bfloat16_t>();
            AscendC::DataCopy(staged, GmAt<bfloat16_t>(from)[at], TileIn<bfloat16_t>());
            AwaitLoad(i);
            Widen(lane.state, staged, kStateHalfElems);
        } else {
            AscendC::DataCopy(lane.incoming, GmAt<float>(from)[at], TileIn<float>());
            AwaitLoad(i);
            AscendC::DataCopy(lane.state, lane.incoming, kStateHalfElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// `state` as the last state of an item, in its tile of `to`.
    template <bool kBackwards>
    __aicore__ inline void StoreTile(StateVectorLane<kBackwards> &lane, uint32_t i,
                                     const Float &state, GM_ADDR to, uint32_t dtype,
                                     const LaneStep &step)
    {
        const uint64_t at = TileAt(step.itemTile);
        if (dtype == kStateBf16) {
            Narrow(lane.outgoing, state, kStateHalfElems);
            AwaitVector(i);
            AscendC::DataCopy(GmAt<bfloat16_t>(to)[at], lane.outgoing, TileOut<bfloat16_t>());
        } else {
            AwaitVector(i);
            AscendC::DataCopy(GmAt<float>(to)[at], state, TileOut<float>());
        }
    }

    /// The same as a block of a summary.
    __aicore__ inline void StoreBlock(uint32_t i, const Float &state, GM_ADDR to,
                                      const LaneStep &step) const
    {
        AwaitVector(i);
        AscendC::DataCopy(GmAt<float>(to)[SummaryAt(step.itemTile, half_, step.isMap)], state,
                          SummaryRows());
    }

    /// Starts the copy of G_last of a chunk.
    template <bool kBackwards>
    __aicore__ inline void FetchGate(StateVectorLane<kBackwards> &lane, GM_ADDR gk, bool isBf16,
                                     const LaneStep &step)
    {
        const uint64_t last = (step.row + step.rows - 1) * kDim;
        if (isBf16) {
            const Half narrow = lane.gate.template ReinterpretCast<bfloat16_t>();
            AscendC::DataCopy(narrow, GmAt<bfloat16_t>(gk)[last], kDim);
        } else {
            AscendC::DataCopy(lane.gate, GmAt<float>(gk)[last], kDim);
        }
    }

    /// A slice of the state in bf16 to tile `tile` of `to`.
    template <bool kBackwards>
    __aicore__ inline void StoreSlice(StateVectorLane<kBackwards> &lane, uint32_t i, uint32_t slice,
                                      const BfloatGm &to, uint64_t tile)
    {
        const uint32_t at = slice * kSliceElems;
        Narrow(lane.outgoing[at], lane.state[at], kSliceElems);
        AwaitVector(slice * kLanes + i);
        AscendC::DataCopy(to[tile * kStateElems + half_ * kStateHalfElems + at], lane.outgoing[at],
                          kSliceElems);
    }

    uint32_t half_ = 0;  // which half of the rows is this core's
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    Float rowFactors_;  // of both lanes in turn

  private:
    /// Where this core's half of a first or last state begins in GM: rows, or columns if turned.
    __aicore__ inline uint64_t TileAt(uint64_t tile) const
    {
        return tile * kStateElems + half_ * (turned_ ? kStateHalfRows : kStateHalfElems);
    }

    /// How it lies in GM, and the copy in: one run, or one piece of every row. UB holds it densely.
    template <typename T>
    __aicore__ inline AscendC::DataCopyParams TileIn() const
    {
        constexpr uint16_t piece = kStateHalfRows * sizeof(T) / kBlockBytes;
        return turned_ ? AscendC::DataCopyParams(kDim, piece, piece, 0)
                       : AscendC::DataCopyParams(1, kDim * piece, 0, 0);
    }

    /// The same for the copy out.
    template <typename T>
    __aicore__ inline AscendC::DataCopyParams TileOut() const
    {
        AscendC::DataCopyParams params = TileIn<T>();
        params.dstStride = params.srcStride;
        params.srcStride = 0;
        return params;
    }

    bool turned_ = false;
};

}  // namespace fla
#endif  // FLA_STATE_TILE_IO_H
