// SPDX-License-Identifier: Apache-2.0
// Cube body of the output_grad stage: three products of a chunk. Maths, memory plan and flags:
// output_grad.h.
#ifndef FLA_OUTPUT_GRAD_CUBE_H
#define FLA_OUTPUT_GRAD_CUBE_H

#include "cube_tile.h"
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
        Fetch(range_.first);
        for (uint32_t task = range_.first; task < range_.end; ++task) {
            if (task + 1 < range_.end) {
                Fetch(task + 1);
            }
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
    static constexpr uint32_t kTaskSlots = OutputGradL1::taskSlots;

    /// A task's operands in L1.
    struct Slot {
        AscendC::LocalTensor<Bf16> dO, value, state, masked;
        ChunkTask task;
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputGradArgs &args)
    {
        t_ = args.t;
        OutputGradWalk(walk_, args);
        const uint32_t group = AscendC::GetBlockIdx();
        range_ = RangeOf(walk_.Tasks(), group, AscendC::GetBlockNum());
        workspace_ = args.workspace + OutputGradGroupAt(group);
        vNew_ = GmAt<Bf16>(args.vNew);
        dO_ = GmAt<Bf16>(args.dO);
        h_ = GmAt<Bf16>(args.h);
        dvLocal_ = GmAt<Bf16>(args.dvLocal);
        dqRaw_ = GmAt<float>(args.dqRaw);
        pipe.InitBuffer(l1_, kTaskSlots * OutputGradL1::slot);
        pipe.InitBuffer(l0a_, OutputGradL0::endA);
        pipe.InitBuffer(l0b_, OutputGradL0::endB);
        pipe.InitBuffer(l0c_, OutputGradL0::endC);
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            const uint32_t l1 = i * OutputGradL1::slot;
            slots_[i].dO = View<Bf16>(l1_, l1 + OutputGradL1::dO, kChunkElems);
            slots_[i].value = View<Bf16>(l1_, l1 + OutputGradL1::value, kChunkElems);
            slots_[i].state = View<Bf16>(l1_, l1 + OutputGradL1::state, kStateElems);
            slots_[i].masked = View<Bf16>(l1_, l1 + OutputGradL1::masked, kScoreElems);
        }
        dOLeft_ = View<Bf16>(l0a_, OutputGradL0::dO, kChunkElems);
        masked_ = View<Bf16>(l0a_, OutputGradL0::masked, kScoreElems);
        value_ = View<Bf16>(l0b_, OutputGradL0::value, kChunkElems);
        state_ = View<Bf16>(l0b_, OutputGradL0::state, kStateElems);
        dORight_ = View<Bf16>(l0b_, OutputGradL0::dORight, kChunkElems);
        score_ = View<float>(l0c_, OutputGradL0::score, kScoreElems);
        dq_ = View<float>(l0c_, OutputGradL0::dq, kChunkElems);
        dv_ = View<float>(l0c_, OutputGradL0::dv, kChunkElems);
    }

    /// Every buffer starts free.
    __aicore__ inline void GrantAll()
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
        }
        for (int32_t product = 0; product < kProducts; ++product) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + product);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(product);
        }
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
        }
        for (int32_t product = 0; product < kProducts; ++product) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + product);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(product);
        }
        scores_.Drain();
    }

    /// Starts the copies of a task. The masked Aqk comes last: only it waits for the vector cores.
    __aicore__ inline void Fetch(uint32_t index)
    {
        const uint32_t at = index - range_.first;
        const uint32_t half = at % kVectorCores;
        Slot &slot = slots_[at % kTaskSlots];
        slot.task = walk_.Task(index);
        const ChunkTask &task = slot.task;
        const uint64_t row = walk_.ValueRow(task.batch, task.head, task.token);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(at % kTaskSlots);
        LoadChunk(slot.dO, dO_[row * kDim], task.rows, kDim);
        LoadChunk(slot.value, vNew_[row * kDim], task.rows, kDim);
        LoadNz(slot.state, h_[walk_.StateTile(task.globalChunk, task.head) * kStateElems], kDim,
               kDim, kDim);
        if (half == 0) {
            maskedSlot_ = maskedRing_.Take();
        }
        LoadChunk(slot.masked, GmAt<Bf16>(workspace_ + OutputGradMaskedAt(maskedSlot_, half)),
                  task.rows, kChunk);
        if (half == kVectorCores - 1 || index + 1 == range_.end) {
            maskedRing_.Release<PIPE_MTE2>();
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(at % kTaskSlots);
    }

    /// The scores come first: the vector cores work on them under the other two products.
    __aicore__ inline void Compute(uint32_t index)
    {
        const uint32_t at = index - range_.first;
        const Slot &slot = slots_[at % kTaskSlots];
        const uint64_t row = walk_.ValueRow(slot.task.batch, slot.task.head, slot.task.token);
        const uint32_t rows = slot.task.rows;
        const uint32_t m = RoundUp16(rows);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(at % kTaskSlots);
        LoadOperands(slot);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(at % kTaskSlots);
        Product(kScore, score_, dOLeft_, value_, m, kChunk, kDim);
        StoreScores(at, rows, m, index + 1 == range_.end);
        Product(kQuery, dq_, dOLeft_, state_, m, kDim, kDim);
        StoreRows(dqRaw_[row * kDim], dq_, rows, m, kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kQuery);
        Product(kValue, dv_, masked_, dORight_, m, kDim, kChunk);
        StoreRows(dvLocal_[row * kDim], dv_, rows, m, kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kValue);
    }

    /// L1 -> L0, product by product. The left operand dO serves two: it is free after the second.
    __aicore__ inline void LoadOperands(const Slot &slot)
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kScore);
        LoadRightTransposed(value_, slot.value, kDim, kChunk);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kQuery);
        LoadLeft(dOLeft_, slot.dO, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kScore);
        if (t_.stateVFirst) {
            LoadRight(state_, slot.state, kDim, kDim);
        } else {
            LoadRightTransposed(state_, slot.state, kDim, kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kQuery);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kOperandsFree + kValue);
        LoadLeftTransposed(masked_, slot.masked, kChunk, kChunk);
        LoadRight(dORight_, slot.dO, kChunk, kDim);
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
    __aicore__ inline void StoreScores(uint32_t at, uint32_t rows, uint32_t m, bool isLast)
    {
        const uint32_t half = at % kVectorCores;
        if (half == 0) {
            scoreSlot_ = scores_.Acquire();
        }
        StoreRows(GmAt<float>(workspace_ + OutputGradScoreAt(scoreSlot_, half)), score_, rows, m,
                  kChunk, kChunk);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kScore);
        if (half == kVectorCores - 1 || isLast) {
            scores_.Publish<PIPE_FIX>();
        }
    }

    OutputGradTiling t_;
    ChunkWalk walk_;
    TaskRange range_;
    // Ends of the two rings, and the slot of the pair under way in each.
    RingConsumer<OutputGradMasked> maskedRing_;
    RingProducer<OutputGradScores> scores_;
    uint32_t maskedSlot_ = 0;
    uint32_t scoreSlot_ = 0;
    GM_ADDR workspace_;
    AscendC::GlobalTensor<Bf16> vNew_, dO_, h_, dvLocal_;
    AscendC::GlobalTensor<float> dqRaw_;
    AscendC::TBuf<AscendC::TPosition::A1> l1_;
    AscendC::TBuf<AscendC::TPosition::A2> l0a_;
    AscendC::TBuf<AscendC::TPosition::B2> l0b_;
    AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
    Slot slots_[kTaskSlots];
    // Operands in L0 and products in L0C, one buffer each.
    AscendC::LocalTensor<Bf16> dOLeft_, masked_, value_, state_, dORight_;
    AscendC::LocalTensor<float> score_, dq_, dv_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_GRAD_CUBE_H
