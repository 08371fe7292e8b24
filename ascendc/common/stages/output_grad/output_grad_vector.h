// SPDX-License-Identifier: Apache-2.0
// Vector body of the output_grad stage: masks Aqk for the cube, scales and masks dAqk. Memory plan
// and flags: output_grad.h.
#ifndef FLA_OUTPUT_GRAD_VECTOR_H
#define FLA_OUTPUT_GRAD_VECTOR_H

#include "output_grad.h"
#include "vec_tile.h"

namespace fla
{

class OutputGradVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        Open(pipe, args);
        if (range_.first == range_.end) {
            return;
        }
        uint32_t pair = range_.first;
        MaskScores(pair + half_);
        for (; pair + kVectorCores < range_.end; pair += kVectorCores) {
            MaskScores(pair + kVectorCores + half_);
            FinishScores(pair + half_);
        }
        FinishScores(pair + half_);
        masked_.Drain();
    }

  private:
    // A 16-bit lane seen as bits: clearing is right for every value, multiplying by 0 is not.
    using Bits = uint16_t;
    static constexpr uint32_t kLanesPerFloat = sizeof(float) / sizeof(Bits);
    static constexpr uint32_t kDepth = kOutputGradRingDepth;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        OutputGradWalk(walk_, args);
        scale_ = args.t.scale;
        half_ = AscendC::GetSubBlockIdx();
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        workspace_ = args.workspace + OutputGradGroupAt(group);
        range_ = RangeOf(walk_.Tasks(), group, AscendC::GetBlockNum());
        aqk_ = GmAt<Bits>(args.aqk);
        dAqk_ = GmAt<float>(args.dAqk);
        pipe.InitBuffer(ub_, OutputGradUb::end);
        triangle_ = View<Bits>(ub_, OutputGradUb::triangle, kScoreElems);
        wideTriangle_ = View<Bits>(ub_, OutputGradUb::wideTriangle, kScoreElems * kLanesPerFloat);
        MakeTriangle(triangle_, kChunk, 1);
        MakeTriangle(wideTriangle_, kChunk, kLanesPerFloat);
    }

    /// tril(Aqk) of a task to the cube. An odd range leaves the second core without a task; it
    /// still has to set the flag.
    __aicore__ inline void MaskScores(uint32_t index)
    {
        const uint32_t slot = masked_.Acquire();
        if (index < range_.end) {
            const ChunkTask task = walk_.Task(index);
            const uint32_t count = task.rows * kChunk;
            const uint64_t source = walk_.ValueRow(task.batch, task.head, task.token) * kChunk;
            AscendC::LocalTensor<Bits> tile = View<Bits>(
                ub_, OutputGradUb::masked + slot * OutputGradUb::maskedBytes, kScoreElems);
            AscendC::DataCopy(tile, aqk_[source], count);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(slot);
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(slot);
            AscendC::And(tile, tile, triangle_, count);
            AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(slot);
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(slot);
            AscendC::DataCopy(GmAt<Bits>(workspace_ + OutputGradMaskedAt(slot, half_)), tile,
                              count);
        }
        masked_.Publish<PIPE_MTE3>();
    }

    /// dAqk of a task from the cube's product.
    __aicore__ inline void FinishScores(uint32_t index)
    {
        const uint32_t slot = scores_.Take();
        if (index >= range_.end) {
            scores_.Release<PIPE_MTE2>();
            return;
        }
        const ChunkTask task = walk_.Task(index);
        const uint32_t count = task.rows * kChunk;
        const uint64_t target = walk_.ValueRow(task.batch, task.head, task.token) * kChunk;
        AscendC::LocalTensor<float> tile =
            View<float>(ub_, OutputGradUb::score + slot * OutputGradUb::scoreBytes, kScoreElems);
        AscendC::DataCopy(tile, GmAt<float>(workspace_ + OutputGradScoreAt(slot, half_)), count);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kDepth + slot);
        scores_.Release<PIPE_MTE2>();
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kDepth + slot);
        AscendC::Muls(tile, tile, scale_, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::LocalTensor<Bits> bits = tile.ReinterpretCast<Bits>();
        AscendC::And(bits, bits, wideTriangle_, count * kLanesPerFloat);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kDepth + slot);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kDepth + slot);
        AscendC::DataCopy(dAqk_[target], tile, count);
    }

    ChunkWalk walk_;
    TaskRange range_;
    RingProducer<OutputGradMasked> masked_;
    RingConsumer<OutputGradScores> scores_;
    float scale_ = 0.0f;
    uint32_t half_ = 0;  // which task of a pair is this core's
    GM_ADDR workspace_;
    AscendC::GlobalTensor<Bits> aqk_;
    AscendC::GlobalTensor<float> dAqk_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    AscendC::LocalTensor<Bits> triangle_, wideTriangle_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_GRAD_VECTOR_H
