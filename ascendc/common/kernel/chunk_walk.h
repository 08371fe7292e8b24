// SPDX-License-Identifier: Apache-2.0
// The one place that knows how a task index maps to tokens, chunks and heads.
//
// A task is one chunk of one value head. Tasks are numbered with the value head fastest, so that
// neighbours share a chunk and, with grouped heads, a key head. Chunks restart at every sequence
// start:
//
//   dense   sequence = batch entry, NT chunks each      task = (batch * NT + chunk) * HV + head
//   packed  B = 1, sequences laid end to end            task = globalChunk * HV + head
//
// Packed offsets are int64 GM arrays that the host checked: cu_seqlens [N + 1] never decreases and
// ends at T, or inside of it (windows: NT = 0, no chunk_indices); chunk_indices [NT, 2] lists
// (sequence, chunk), sequence-major. Read by scalar loads, once per task or per sequence, never per
// row. Both bodies of a kernel use this class, so their order can't differ.
#ifndef FLA_COMMON_KERNEL_CHUNK_WALK_H
#define FLA_COMMON_KERNEL_CHUNK_WALK_H

#include "kernel_operator.h"

#include "local_memory.h"

namespace fla
{

/// The numbers that fix a walk; an operator fills it from its tiling data.
struct ChunkShape {
    uint32_t tokens;         // T of one batch entry
    uint32_t valueHeads;     // HV
    uint32_t headsPerGroup;  // HV / HK; 1 where there is no key head
    uint32_t sequences;      // N: batch entries, or packed sequences
    uint32_t chunks;         // NT: of one batch entry, or of all packed sequences together
    uint32_t packed;         // 1 = cu_seqlens and chunk_indices are given
};

/// One chunk of one value head.
struct ChunkTask {
    uint32_t batch;        // leading axis of the tensors; 0 when packed
    uint32_t sequence;     // index into per-sequence tensors (initial and final state)
    uint32_t chunk;        // within its sequence
    uint32_t globalChunk;  // row of h [B * NT, HV, ...]
    uint32_t token;        // first token, counted from the start of the batch entry
    uint32_t rows;         // valid rows, 1..64
    uint32_t head;         // value head
    uint32_t keyHead;
};

/// Where a sequence lies.
struct SequenceSpan {
    uint32_t batch;
    uint32_t token;       // first token, counted from the start of the batch entry
    uint32_t length;      // 0 is legal when packed
    uint32_t firstChunk;  // global index of its first chunk
};

class ChunkWalk
{
  public:
    __aicore__ inline void Init(const ChunkShape &shape, GM_ADDR cuSeqlens, GM_ADDR chunkIndices)
    {
        shape_ = shape;
        cuSeqlens_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t *>(cuSeqlens));
        chunkIndices_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t *>(chunkIndices));
    }

    __aicore__ inline uint32_t Tasks() const
    {
        const uint32_t chunks = shape_.packed ? shape_.chunks : shape_.chunks * shape_.sequences;
        return chunks * shape_.valueHeads;
    }

    /// Everything about task `index`. At most four scalar loads.
    __aicore__ inline ChunkTask Task(uint32_t index) const
    {
        ChunkTask task;
        task.globalChunk = index / shape_.valueHeads;
        task.head = index % shape_.valueHeads;
        task.keyHead = task.head / shape_.headsPerGroup;
        SequenceSpan span;
        if (shape_.packed) {
            task.sequence = ReadIndex(chunkIndices_, 2ULL * task.globalChunk);
            task.chunk = ReadIndex(chunkIndices_, 2ULL * task.globalChunk + 1);
            span = Packed(task.sequence);
        } else {
            task.sequence = task.globalChunk / shape_.chunks;
            task.chunk = task.globalChunk % shape_.chunks;
            span = Dense(task.sequence);
        }
        task.batch = span.batch;
        task.token = span.token + task.chunk * kChunk;
        task.rows = Min(span.length - task.chunk * kChunk, kChunk);
        return task;
    }

    /// Where sequence `index` lies. The first chunk of a packed sequence is found by bisection.
    __aicore__ inline SequenceSpan Sequence(uint32_t index) const
    {
        if (!shape_.packed) {
            return Dense(index);
        }
        SequenceSpan span = Packed(index);
        span.firstChunk = FirstChunkOf(index);
        return span;
    }

    /// Row of a [B, HV, T, *] tensor; 64-bit before the first product.
    __aicore__ inline uint64_t ValueRow(uint32_t batch, uint32_t head, uint32_t token) const
    {
        return (static_cast<uint64_t>(batch) * shape_.valueHeads + head) * shape_.tokens + token;
    }

    /// Row of a [B, HK, T, *] tensor.
    __aicore__ inline uint64_t KeyRow(uint32_t batch, uint32_t keyHead, uint32_t token) const
    {
        const uint32_t keyHeads = shape_.valueHeads / shape_.headsPerGroup;
        return (static_cast<uint64_t>(batch) * keyHeads + keyHead) * shape_.tokens + token;
    }

    /// Row of a token-major [B, T, HV, *] tensor.
    __aicore__ inline uint64_t TokenRow(uint32_t batch, uint32_t head, uint32_t token) const
    {
        return (static_cast<uint64_t>(batch) * shape_.tokens + token) * shape_.valueHeads + head;
    }

    /// Index of a state tile in [B * NT, HV, *, *] or [N, HV, *, *].
    __aicore__ inline uint64_t StateTile(uint32_t outer, uint32_t head) const
    {
        return static_cast<uint64_t>(outer) * shape_.valueHeads + head;
    }

  private:
    using Offsets = AscendC::GlobalTensor<int64_t>;

    __aicore__ static inline uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }

    __aicore__ static inline uint32_t ReadIndex(const Offsets &from, uint64_t at)
    {
        return static_cast<uint32_t>(from.GetValue(at));
    }

    __aicore__ inline SequenceSpan Dense(uint32_t index) const
    {
        return {index, 0, shape_.tokens, index * shape_.chunks};
    }

    __aicore__ inline SequenceSpan Packed(uint32_t index) const
    {
        const uint32_t first = ReadIndex(cuSeqlens_, index);
        return {0, first, ReadIndex(cuSeqlens_, index + 1ULL) - first, 0};
    }

    /// First entry of chunk_indices whose sequence is not below `sequence`.
    __aicore__ inline uint32_t FirstChunkOf(uint32_t sequence) const
    {
        uint32_t low = 0;
        uint32_t high = shape_.chunks;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (ReadIndex(chunkIndices_, 2ULL * middle) < sequence) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    ChunkShape shape_;
    Offsets cuSeqlens_;
    Offsets chunkIndices_;
};

/// The contiguous range of tasks of one group.
struct TaskRange {
    uint32_t first;
    uint32_t end;
};

__aicore__ inline TaskRange RangeOf(uint32_t tasks, uint32_t group, uint32_t groups)
{
    const uint32_t first = static_cast<uint64_t>(tasks) * group / groups;
    const uint32_t end = static_cast<uint64_t>(tasks) * (group + 1) / groups;
    return {first, end};
}

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_CHUNK_WALK_H
