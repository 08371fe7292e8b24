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
        masked_.Send(walk_, pair, range_.end);
        for (; pair + kVectorCores < range_.end; pair += kVectorCores) {
            masked_.Send(walk_, pair + kVectorCores, range_.end);
            FinishScores(pair + half_);
        }
        FinishScores(pair + half_);
        masked_.Drain();
    }

  private:
    using Bits = MaskedProducer<OutputGradMasked>::Bits;
    static constexpr uint32_t kLanesPerFloat = sizeof(float) / sizeof(Bits);
    static constexpr uint32_t kDepth = kOutputGradRingDepth;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        InitTasks(walk_, args);
        scale_ = args.t.scale;
        half_ = AscendC::GetSubBlockIdx();
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        range_ = RangeOf(walk_.Tasks(), group, AscendC::GetBlockNum());
        ring_ = OutputGradScoresOf(args, group);
        dAqk_ = GmAt<float>(args.dAqk);
        pipe.InitBuffer(ub_, OutputGradUb::end);
        masked_.Open(ub_, OutputGradUb::masked, args.aqk, OutputGradMaskedOf(args, group));
        wideTriangle_ = View<Bits>(ub_, OutputGradUb::wideTriangle, kScoreElems * kLanesPerFloat);
        MakeTriangle(wideTriangle_, kChunk, kLanesPerFloat);
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
        AscendC::DataCopy(tile, ring_[MaskedTile(slot, half_)], count);
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
    MaskedProducer<OutputGradMasked> masked_;
    RingConsumer<OutputGradScores> scores_;
    float scale_ = 0.0f;
    uint32_t half_ = 0;  // which task of a pair is this core's
    AscendC::GlobalTensor<float> ring_, dAqk_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
    AscendC::LocalTensor<Bits> wideTriangle_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_GRAD_VECTOR_H
