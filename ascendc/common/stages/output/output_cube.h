// SPDX-License-Identifier: Apache-2.0
// Cube body of the output stage: two products into one accumulator. Maths, memory plan and flags:
// output.h.
#ifndef FLA_OUTPUT_CUBE_H
#define FLA_OUTPUT_CUBE_H

#include "cube_tile.h"
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
    // Event ids. M_MTE1 starts at 3: the framework keeps 0..2 of it.
    static constexpr int32_t kStatePart = 0;
    static constexpr int32_t kValuePart = 1;
    static constexpr int32_t kStatePartFree = 3;
    static constexpr int32_t kValuePartFree = 4;

    /// A task's operands in L1.
    struct Slot {
        AscendC::LocalTensor<Bf16> query, state, value, score;
        ChunkTask task;
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const OutputArgs &args)
    {
        t_ = args.t;
        InitWalk(walk_, args);
        group_ = AscendC::GetBlockIdx();
        range_ = RangeOf(walk_.Tasks(), group_, AscendC::GetBlockNum());
        qg_ = GmAt<Bf16>(args.qgScaled);
        vNew_ = GmAt<Bf16>(args.vNew);
        h_ = GmAt<Bf16>(args.h);
        out_ = GmAt<Bf16>(args.attnOut);
        ring_ = GmAt<Bf16>(args.workspace);
        pipe.InitBuffer(l1_, kTaskSlots * OutputL1::slot);
        pipe.InitBuffer(l0a_, OutputL0::endA);
        pipe.InitBuffer(l0b_, OutputL0::endB);
        pipe.InitBuffer(l0c_, kTaskSlots * OutputL0::slotC);
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            const uint32_t l1 = i * OutputL1::slot;
            slots_[i].query = View<Bf16>(l1_, l1 + OutputL1::query, kChunkElems);
            slots_[i].state = View<Bf16>(l1_, l1 + OutputL1::state, kStateElems);
            slots_[i].value = View<Bf16>(l1_, l1 + OutputL1::value, kChunkElems);
            slots_[i].score = View<Bf16>(l1_, l1 + OutputL1::score, kScoreElems);
        }
    }

    /// Every buffer starts free.
    __aicore__ inline void GrantAll()
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
        }
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
    }

    /// Starts the copies of a task. The masked scores come last: only they wait for the vector
    /// cores.
    __aicore__ inline void Fetch(uint32_t index)
    {
        const uint32_t at = index - range_.first;
        const uint32_t half = at % kVectorCores;
        Slot &slot = slots_[at % kTaskSlots];
        slot.task = walk_.Task(index);
        const ChunkTask &task = slot.task;
        const uint64_t row = walk_.ValueRow(task.batch, task.head, task.token);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(at % kTaskSlots);
        LoadChunk(slot.query, qg_[row * kDim], task.rows, kDim);
        LoadNz(slot.state, h_[walk_.StateTile(task.globalChunk, task.head) * kStateElems], kDim,
               kDim, kDim);
        LoadChunk(slot.value, vNew_[row * kDim], task.rows, kDim);
        if (half == 0) {
            ringSlot_ = consumer_.Take();
        }
        LoadChunk(slot.score, ring_[RingTile(group_, ringSlot_, half)], task.rows, kChunk);
        if (half == kVectorCores - 1 || index + 1 == range_.end) {
            consumer_.Release<PIPE_MTE2>();
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(at % kTaskSlots);
    }

    __aicore__ inline void Compute(uint32_t index)
    {
        const uint32_t id = (index - range_.first) % kTaskSlots;
        const Slot &slot = slots_[id];
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(id);
        LoadOperands(slot, id);
        const uint32_t m = RoundUp16(slot.task.rows);
        AscendC::LocalTensor<float> sum = View<float>(l0c_, id * OutputL0::slotC, kChunkElems);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(id);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(kStatePart);
        Multiply(sum, View<Bf16>(l0a_, OutputL0::query, kChunkElems),
                 View<Bf16>(l0b_, OutputL0::state, kStateElems), m, kDim, kDim, false);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(kValuePart);
        AscendC::PipeBarrier<PIPE_M>();  // a small tile's second product may overtake the first
        Multiply(sum, View<Bf16>(l0a_, OutputL0::score, kScoreElems),
                 View<Bf16>(l0b_, OutputL0::value, kChunkElems), m, kDim, kChunk, true);
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(id);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(id);
        Store(slot.task, sum, m);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(id);
    }

    /// L1 -> L0 for both products; each pair of operands has its own flags, so the next task's load
    /// of one runs under this task's product of the other.
    __aicore__ inline void LoadOperands(const Slot &slot, uint32_t id)
    {
        AscendC::LocalTensor<Bf16> right = View<Bf16>(l0b_, OutputL0::state, kStateElems);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kStatePartFree);
        LoadLeft(View<Bf16>(l0a_, OutputL0::query, kChunkElems), slot.query, kChunk, kDim);
        if (t_.stateVFirst) {
            LoadRightTransposed(right, slot.state, kDim, kDim);
        } else {
            LoadRight(right, slot.state, kDim, kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kStatePart);
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kValuePartFree);
        LoadLeft(View<Bf16>(l0a_, OutputL0::score, kScoreElems), slot.score, kChunk, kChunk);
        LoadRight(View<Bf16>(l0b_, OutputL0::value, kChunkElems), slot.value, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(kValuePart);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(id);
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
    RingConsumer<OutputRing> consumer_;
    uint32_t group_ = 0;
    uint32_t ringSlot_ = 0;
    AscendC::GlobalTensor<Bf16> qg_, vNew_, h_, out_, ring_;
    AscendC::TBuf<AscendC::TPosition::A1> l1_;
    AscendC::TBuf<AscendC::TPosition::A2> l0a_;
    AscendC::TBuf<AscendC::TPosition::B2> l0b_;
    AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
    Slot slots_[kTaskSlots];
};

}  // namespace fla
#endif  // FLA_OUTPUT_CUBE_H
