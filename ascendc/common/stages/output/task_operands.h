// SPDX-License-Identifier: Apache-2.0
// Operands of the products of a chunk's output (output.h) and of those of its gradient
// (output_grad.h): rows of the chunk, v_new, h, and the scores that the vector cores have masked.
#ifndef FLA_OUTPUT_TASK_OPERANDS_H
#define FLA_OUTPUT_TASK_OPERANDS_H

#include "chunk_walk.h"
#include "cross_core.h"
#include "cube_tile.h"
#include "output/masked_ring.h"

namespace fla
{

constexpr uint32_t kTaskSlots = 2;

/// Byte offsets of a task's operands in L1.
struct TaskL1 {
    static constexpr uint32_t rows = 0;  // qg_scaled or dO
    static constexpr uint32_t value = rows + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t state = value + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t score = state + kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t slot = score + kScoreElems * sizeof(bfloat16_t);
};
static_assert(kTaskSlots * TaskL1::slot <= kL1Bytes, "output: the L1 plan is too big");

/// The tasks of a group with their operands in L1, two in turn: a task's copies run under the products
/// of the one before. Event ids: the slot (MTE2_MTE1, MTE1_MTE2).
template <typename Ring>
class TaskOperands
{
  public:
    struct Slot {
        AscendC::LocalTensor<Bf16> rows, value, state, score;
        ChunkTask task;
    };

    /// `ring`: the masked scores of this group.
    __aicore__ inline void Open(CubeBuffers &buffers, const ChunkWalk &walk, const TaskRange &range,
                                GM_ADDR rows, GM_ADDR vNew, GM_ADDR h, GM_ADDR ring)
    {
        walk_ = walk;
        range_ = range;
        rows_ = GmAt<Bf16>(rows);
        vNew_ = GmAt<Bf16>(vNew);
        h_ = GmAt<Bf16>(h);
        masked_ = GmAt<Bf16>(ring);
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            const uint32_t l1 = i * TaskL1::slot;
            slots_[i].rows = View<Bf16>(buffers.l1, l1 + TaskL1::rows, kChunkElems);
            slots_[i].value = View<Bf16>(buffers.l1, l1 + TaskL1::value, kChunkElems);
            slots_[i].state = View<Bf16>(buffers.l1, l1 + TaskL1::state, kStateElems);
            slots_[i].score = View<Bf16>(buffers.l1, l1 + TaskL1::score, kScoreElems);
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
        }
        Fetch(range.first);
    }

    /// Leaves every flag at zero.
    __aicore__ inline void Close() const
    {
        for (uint32_t i = 0; i < kTaskSlots; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
        }
    }

    /// The operands of a task, in L1; those of the next one are on their way.
    __aicore__ inline const Slot &Take(uint32_t index)
    {
        if (index + 1 < range_.end) {
            Fetch(index + 1);
        }
        const uint32_t id = IdOf(index);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(id);
        return slots_[id];
    }

    /// The loads from the slot of a task are issued.
    __aicore__ inline void Leave(uint32_t index) const
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(IdOf(index));
    }

    __aicore__ inline uint32_t IdOf(uint32_t index) const
    {
        return (index - range_.first) % kTaskSlots;
    }

  private:
    /// Starts the copies of a task. The masked scores come last: only they wait for the vector cores.
    __aicore__ inline void Fetch(uint32_t index)
    {
        const uint32_t half = (index - range_.first) % kVectorCores;
        const uint32_t id = IdOf(index);
        Slot &slot = slots_[id];
        slot.task = walk_.Task(index);
        const ChunkTask &task = slot.task;
        const uint64_t row = walk_.ValueRow(task.batch, task.head, task.token);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(id);
        LoadChunk(slot.rows, rows_[row * kDim], task.rows, kDim);
        LoadChunk(slot.value, vNew_[row * kDim], task.rows, kDim);
        LoadNz(slot.state, h_[walk_.StateTile(task.globalChunk, task.head) * kStateElems], kDim,
               kDim, kDim);
        if (half == 0) {
            ringSlot_ = ring_.Take();
        }
        LoadChunk(slot.score, masked_[MaskedTile(ringSlot_, half)], task.rows, kChunk);
        if (half == kVectorCores - 1 || index + 1 == range_.end) {
            ring_.template Release<PIPE_MTE2>();
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(id);
    }

    ChunkWalk walk_;
    TaskRange range_;
    RingConsumer<Ring> ring_;
    uint32_t ringSlot_ = 0;  // of the pair under way
    AscendC::GlobalTensor<Bf16> rows_, vNew_, h_, masked_;
    Slot slots_[kTaskSlots];
};

}  // namespace fla
#endif  // FLA_OUTPUT_TASK_OPERANDS_H
