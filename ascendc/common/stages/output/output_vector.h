// SPDX-License-Identifier: Apache-2.0
// Vector body of the output stage: clears what lies above the diagonal of Aqk. Memory plan and
// flags: output.h.
#ifndef FLA_OUTPUT_VECTOR_H
#define FLA_OUTPUT_VECTOR_H

#include "output.h"
#include "vec_tile.h"

namespace fla
{

class OutputVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const OutputArgs &args)
    {
        InitWalk(walk_, args);
        aqk_ = GmAt<Bits>(args.aqk);
        ring_ = GmAt<Bits>(args.workspace);
        pipe.InitBuffer(ub_, OutputUb::end);
        triangle_ = View<Bits>(ub_, OutputUb::triangle, kScoreElems);
        MakeTriangle(triangle_, kChunk, 1);
        const uint32_t half = AscendC::GetSubBlockIdx();
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        const TaskRange range = RangeOf(walk_.Tasks(), group, AscendC::GetBlockNum());
        for (uint32_t pair = range.first; pair < range.end; pair += kVectorCores) {
            const uint32_t slot = producer_.Acquire();
            // An odd range leaves the second core without a task; it still has to set the flag.
            if (pair + half < range.end) {
                MaskScores(walk_.Task(pair + half), slot, RingTile(group, slot, half));
            }
            producer_.Publish<PIPE_MTE3>();
        }
        producer_.Drain();
    }

  private:
    // bf16 seen as bits: clearing is right for every value, multiplying by 0 is not.
    using Bits = uint16_t;

    __aicore__ inline void MaskScores(const ChunkTask &task, uint32_t slot, uint64_t target)
    {
        const uint32_t count = task.rows * kChunk;
        const uint64_t source = walk_.ValueRow(task.batch, task.head, task.token) * kChunk;
        AscendC::LocalTensor<Bits> score =
            View<Bits>(ub_, OutputUb::score + slot * kScoreElems * sizeof(Bits), kScoreElems);
        AscendC::DataCopy(score, aqk_[source], count);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(slot);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(slot);
        AscendC::And(score, score, triangle_, count);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(slot);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(slot);
        AscendC::DataCopy(ring_[target], score, count);
    }

    ChunkWalk walk_;
    RingProducer<OutputRing> producer_;
    AscendC::GlobalTensor<Bits> aqk_, ring_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    AscendC::LocalTensor<Bits> triangle_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_VECTOR_H
