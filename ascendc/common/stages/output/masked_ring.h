// SPDX-License-Identifier: Apache-2.0
// The ring that takes masked Aqk from the vector cores of a group to its cube core: per slot one pair
// of tasks, one tile [64, 64] in 16 bits per vector core. Its end on the vector cores.
#ifndef FLA_OUTPUT_MASKED_RING_H
#define FLA_OUTPUT_MASKED_RING_H

#include "chunk_walk.h"
#include "cross_core.h"
#include "vec_tile.h"

namespace fla
{

/// The tasks of a stage that has no key heads.
template <typename Args>
__aicore__ inline void InitTasks(ChunkWalk &walk, const Args &args)
{
    walk.Init({args.t.tokens, args.t.valueHeads, 1, args.t.sequences, args.t.chunks, args.t.packed},
              args.cuSeqlens, args.chunkIndices);
}

/// First element of the tile that vector core `half` writes in a slot, from the group's ring on.
__aicore__ inline uint32_t MaskedTile(uint32_t slot, uint32_t half)
{
    return (slot * kVectorCores + half) * kScoreElems;
}

/// Clears what lies above the diagonal of Aqk. A caller's buffer may hold anything there, NaN included:
/// so the bits are cleared, not multiplied. Event ids: the slot (MTE2_V, V_MTE3).
template <typename Ring>
class MaskedProducer
{
  public:
    // A 16-bit lane seen as bits.
    using Bits = uint16_t;
    // The triangle, then a tile per slot.
    static constexpr uint32_t kBytes = (1 + Ring::depth) * kScoreElems * sizeof(Bits);

    /// `ring`: that of this group. The tiles take kBytes from `ubAt` on.
    __aicore__ inline void Open(AscendC::TBuf<AscendC::TPosition::VECCALC> &ub, uint32_t ubAt,
                                GM_ADDR aqk, GM_ADDR ring)
    {
        aqk_ = GmAt<Bits>(aqk);
        ring_ = GmAt<Bits>(ring);
        half_ = AscendC::GetSubBlockIdx();
        triangle_ = View<Bits>(ub, ubAt, kScoreElems);
        tiles_ = View<Bits>(ub, ubAt + kScoreElems * sizeof(Bits), Ring::depth * kScoreElems);
        MakeTriangle(triangle_, kChunk, 1);
    }

    /// tril(Aqk) of this core's task of the pair that begins at `pair`. An odd range leaves the second
    /// core without a task; it still has to set the flag.
    __aicore__ inline void Send(const ChunkWalk &walk, uint32_t pair, uint32_t end)
    {
        const uint32_t slot = producer_.Acquire();
        if (pair + half_ < end) {
            const ChunkTask task = walk.Task(pair + half_);
            const uint32_t count = task.rows * kChunk;
            const uint64_t source = walk.ValueRow(task.batch, task.head, task.token) * kChunk;
            const AscendC::LocalTensor<Bits> tile = tiles_[slot * kScoreElems];
            AscendC::DataCopy(tile, aqk_[source], count);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(slot);
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(slot);
            AscendC::And(tile, tile, triangle_, count);
            AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(slot);
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(slot);
            AscendC::DataCopy(ring_[MaskedTile(slot, half_)], tile, count);
        }
        producer_.template Publish<PIPE_MTE3>();
    }

    __aicore__ inline void Drain() { producer_.Drain(); }

  private:
    RingProducer<Ring> producer_;
    uint32_t half_ = 0;  // which task of a pair is this core's
    AscendC::GlobalTensor<Bits> aqk_, ring_;
    AscendC::LocalTensor<Bits> triangle_, tiles_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_MASKED_RING_H
