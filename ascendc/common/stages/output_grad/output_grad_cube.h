// SPDX-License-Identifier: Apache-2.0
// Cube body of the output_grad stage: three products of a chunk. Maths, memory plan and flags:
// output_grad.h.
#ifndef FLA_OUTPUT_GRAD_CUBE_H
#define FLA_OUTPUT_GRAD_CUBE_H

#include "output_grad.h"

namespace fla
{

class OutputGradCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        Open(pipe, args);
        if (range_.first == range_.end) {
            return;
        }
        GrantAll();
        operands_.Open(buffers_, walk_, range_, args.dO, args.vNew, args.h,
                       OutputGradMaskedOf(args, AscendC::GetBlockIdx()));
        for (uint32_t task = range_.first; task < range_.end; ++task) {
            Compute(task);
        }
        TakeAllBack();
    }

  private:
    // The products of a task. Event ids too; those of M_MTE1 start at 3: the framework keeps 0..2.
    static constexpr int32_t kScore = 0;
    static constexpr int32_t kQuery = 1;
    static constexpr int32_t kValue = 2;
    static constexpr int32_t kProducts = 3;
    static constexpr int32_t kOperandsFree = 3;
    using Operands = TaskOperands<OutputGradMasked>;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        t_ = args.t;
        InitTasks(walk_, args);
        const uint32_t group = AscendC::GetBlockIdx();
        range_ = RangeOf(walk_.Tasks(), group, AscendC::GetBlockNum());
        ring_ = OutputGradScoresOf(args, group);
        dvLocal_ = GmAt<Bf16>(args.dvLocal);
        dqRaw_ = GmAt<float>(args.dqRaw);
        buffers_.Init(pipe, kTaskSlots * TaskL1::slot, OutputGradL0::endA, OutputGradL0::endB,
                      OutputGradL0::endC);
        dOLeft_ = View<Bf16>(buffers_.l0a, OutputGradL0::dO, kChunkElems);
        masked_ = View<Bf16>(buffers_.l0a, OutputGradL0::masked, kScoreElems);
        value_ = View<Bf16>(buffers_.l0b, OutputGradL0::value, kChunkElems);
        state_ = View<Bf16>(buffers_.l0b, OutputGradL0::state, kStateElems);
        dORight_ = View<Bf16>(buffers_.l0b, OutputGradL0::dORight, kChunkElems);
        score_ = View<float>(buffers_.l0c, OutputGradL0::score, kScoreElems);
        dq_ = View<float>(buffers_.l0c, OutputGradL0::dq, kChunkElems);
        dv_ = View<float>(buffers_.l0c, OutputGradL0::dv, kChunkElems);
    }

    /// Every buffer starts free.
    __aicore__ inline void GrantAll()
    {
        for (int32_t product = 0; product < kProducts; ++product) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + product);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(product);
        }
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        operands_.Close();
        for (int32_t product = 0; product < kProducts; ++product) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + product);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(product);
        }
        scores_.Drain();
    }

    /// The scores come first: the vector cores work on them under the other two products.
    __aicore__ inline void Compute(uint32_t index)
    {
        const Operands::Slot &slot = operands_.Take(index);
        const uint64_t row = walk_.ValueRow(slot.task.batch, slot.task.head, slot.task.token);
        const uint32_t rows = slot.task.rows;
        const uint32_t m = RoundUp16(rows);
        LoadOperands(slot);
        operands_.Leave(index);
        Product(kScore, score_, dOLeft_, value_, m, kChunk, kDim);
        StoreScores(index, rows, m);
        Product(kQuery, dq_, dOLeft_, state_, m, kDim, kDim);
        StoreRows(dqRaw_[row * kDim], dq_, rows, m, kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kQuery);
        Product(kValue, dv_, masked_, dORight_, m, kDim, kChunk);
        StoreRows(dvLocal_[row * kDim], dv_, rows, m, kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kValue);
    }

    /// L1 -> L0, product by product. The left operand dO serves two: it is free after the second.
    __aicore__ inline void LoadOperands(const Operands::Slot &slot)
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kScore);
        LoadRightTransposed(value_, slot.value, kDim, kChunk);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kQuery);
        LoadLeft(dOLeft_, slot.rows, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kScore);
        if (t_.stateVFirst) {
            LoadRight(state_, slot.state, kDim, kDim);
        } else {
            LoadRightTransposed(state_, slot.state, kDim, kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kQuery);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kValue);
        LoadLeftTransposed(masked_, slot.score, kChunk, kChunk);
        LoadRight(dORight_, slot.rows, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kValue);
    }

    /// C = A @ B of one product, ready for its store.
    __aicore__ inline void Product(int32_t product, const AscendC::LocalTensor<float> &sum,
                                   const AscendC::LocalTensor<Bf16> &left,
                                   const AscendC::LocalTensor<Bf16> &right, uint32_t m, uint32_t n,
                                   uint32_t k)
    {
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(product);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(product);
        Multiply(sum, left, right, m, n, k, false);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + product);
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(product);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(product);
    }

    /// dO @ v_new^T to the vector core that has the task.
    __aicore__ inline void StoreScores(uint32_t index, uint32_t rows, uint32_t m)
    {
        const uint32_t half = (index - range_.first) % kVectorCores;
        if (half == 0) {
            scoreSlot_ = scores_.Acquire();
        }
        StoreRows(ring_[MaskedTile(scoreSlot_, half)], score_, rows, m, kChunk, kChunk);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kScore);
        if (half == kVectorCores - 1 || index + 1 == range_.end) {
            scores_.Publish<PIPE_FIX>();
        }
    }

    OutputGradTiling t_;
    ChunkWalk walk_;
    TaskRange range_;
    Operands operands_;
    RingProducer<OutputGradScores> scores_;
    uint32_t scoreSlot_ = 0;  // of the pair under way
    AscendC::GlobalTensor<Bf16> dvLocal_;
    AscendC::GlobalTensor<float> ring_, dqRaw_;
    CubeBuffers buffers_;
    // Operands in L0 and products in L0C, one buffer each.
    AscendC::LocalTensor<Bf16> dOLeft_, masked_, value_, state_, dORight_;
    AscendC::LocalTensor<float> score_, dq_, dv_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_GRAD_CUBE_H
