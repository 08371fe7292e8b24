// SPDX-License-Identifier: Apache-2.0
// Cube body of the output stage: two products into one accumulator. Maths, memory plan and flags:
// output.h.
#ifndef FLA_OUTPUT_CUBE_H
#define FLA_OUTPUT_CUBE_H

#include "output.h"

namespace fla
{

class OutputCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const OutputArgs &args)
    {
        Open(pipe, args);
        if (range_.first == range_.end) {
            return;
        }
        GrantAll();
        operands_.Open(buffers_, walk_, range_, args.qgScaled, args.vNew, args.h,
                       OutputRingOf(args, AscendC::GetBlockIdx()));
        for (uint32_t task = range_.first; task < range_.end; ++task) {
            Compute(task);
        }
        TakeAllBack();
    }

  private:
    // Event ids. M_MTE1 starts at 3: the framework keeps 0..2 of it.
    static constexpr int32_t kStatePart = 0;
    static constexpr int32_t kValuePart = 1;
    static constexpr int32_t kStatePartFree = 3;
    static constexpr int32_t kValuePartFree = 4;

    using Operands = TaskOperands<OutputRing>;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputArgs &args)
    {
        t_ = args.t;
        InitTasks(walk_, args);
        range_ = RangeOf(walk_.Tasks(), AscendC::GetBlockIdx(), AscendC::GetBlockNum());
        out_ = GmAt<Bf16>(args.attnOut);
        buffers_.Init(pipe, kTaskSlots * TaskL1::slot, OutputL0::endA, OutputL0::endB,
                      kTaskSlots * OutputL0::slotC);
    }

    /// Every buffer starts free.
    __aicore__ inline void GrantAll()
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
        }
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        operands_.Close();
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
    }

    __aicore__ inline void Compute(uint32_t index)
    {
        const Operands::Slot &slot = operands_.Take(index);
        LoadOperands(slot);
        operands_.Leave(index);
        const uint32_t id = operands_.IdOf(index);
        const uint32_t m = RoundUp16(slot.task.rows);
        AscendC::LocalTensor<float> sum =
            View<float>(buffers_.l0c, id * OutputL0::slotC, kChunkElems);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(id);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(kStatePart);
        Multiply(sum, View<Bf16>(buffers_.l0a, OutputL0::query, kChunkElems),
                 View<Bf16>(buffers_.l0b, OutputL0::state, kStateElems), m, kDim, kDim, false);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(kValuePart);
        AscendC::PipeBarrier<PIPE_M>();  // a small tile's second product may overtake the first
        Multiply(sum, View<Bf16>(buffers_.l0a, OutputL0::score, kScoreElems),
                 View<Bf16>(buffers_.l0b, OutputL0::value, kChunkElems), m, kDim, kChunk, true);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(id);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(id);
        Store(slot.task, sum, m);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(id);
    }

    /// L1 -> L0 for both products; each pair of operands has its own flags, so the next task's load
    /// of one runs under this task's product of the other.
    __aicore__ inline void LoadOperands(const Operands::Slot &slot)
    {
        AscendC::LocalTensor<Bf16> right = View<Bf16>(buffers_.l0b, OutputL0::state, kStateElems);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        LoadLeft(View<Bf16>(buffers_.l0a, OutputL0::query, kChunkElems), slot.rows, kChunk, kDim);
        if (t_.stateVFirst) {
            LoadRightTransposed(right, slot.state, kDim, kDim);
        } else {
            LoadRight(right, slot.state, kDim, kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kStatePart);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
        LoadLeft(View<Bf16>(buffers_.l0a, OutputL0::score, kScoreElems), slot.score, kChunk,
                 kChunk);
        LoadRight(View<Bf16>(buffers_.l0b, OutputL0::value, kChunkElems), slot.value, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kValuePart);
    }

    /// Valid rows only, straight into the caller's layout.
    __aicore__ inline void Store(const ChunkTask &task, const AscendC::LocalTensor<float> &sum,
                                 uint32_t m)
    {
        const uint64_t row = t_.tokenMajor ? walk_.TokenRow(task.batch, task.head, task.token)
                                           : walk_.ValueRow(task.batch, task.head, task.token);
        const uint32_t stride = t_.tokenMajor ? t_.valueHeads * kDim : kDim;
        StoreRows(out_[row * kDim], sum, task.rows, m, kDim, stride);
    }

    OutputTiling t_;
    ChunkWalk walk_;
    TaskRange range_;
    Operands operands_;
    AscendC::GlobalTensor<Bf16> out_;
    CubeBuffers buffers_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_CUBE_H
