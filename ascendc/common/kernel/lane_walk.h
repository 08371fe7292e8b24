// SPDX-License-Identifier: Apache-2.0
// The order of the kernels whose chunks depend on each other: an item is one (sequence, head), or one
// block of its columns; its chunks follow one another, two items never meet. A group serves several
// lanes in turn, each a list of items, so that its vector cores work for one while its cube core
// works for another. Both bodies of a kernel use this class, so their order can't differ.
#ifndef FLA_COMMON_KERNEL_LANE_WALK_H
#define FLA_COMMON_KERNEL_LANE_WALK_H

#include "kernel_operator.h"

#include "chunk_walk.h"
#include "local_memory.h"

namespace fla
{

/// One chunk of one item.
struct LaneStep {
    uint64_t row;        // first row in [B, HV, T, *]
    uint64_t keyRow;     // first row in [B, HK, T, *]
    uint64_t chunkTile;  // tile of this chunk in [B * NT, HV, *, *]
    uint64_t itemTile;   // tile of this item in [N, HV, *, *]
    uint32_t rows;       // valid rows; 0 = an empty sequence, which has no chunk
    bool last;           // no further chunk in this item
    bool isMap;          // of a second block of columns: the M of a summary (summary/summary.h)
};

/// A lane of a group among all lanes of a launch. Item i belongs to lane (i / groups) % lanes of
/// group i % groups.
struct LanePlace {
    uint32_t lane;
    uint32_t lanes;  // of a group
    uint32_t group;
    uint32_t groups;
};

/// The items of one lane, chunk by chunk: from the first to the last, or backwards.
template <bool kBackwards>
class LaneWalk
{
  public:
    __aicore__ inline void Init(const ChunkShape &shape, GM_ADDR cuSeqlens, GM_ADDR chunkIndices,
                                const LanePlace &place, uint32_t blocks = 1)
    {
        walk_.Init(shape, cuSeqlens, chunkIndices);
        valueHeads_ = shape.valueHeads;
        headsPerGroup_ = shape.headsPerGroup;
        states_ = shape.sequences * shape.valueHeads;
        items_ = states_ * blocks;
        stride_ = place.groups * place.lanes;
        item_ = place.group + place.lane * place.groups;
        Enter();
    }

    __aicore__ inline bool Live() const { return item_ < items_; }
    __aicore__ inline const LaneStep &Now() const { return step_; }

    __aicore__ inline void Next()
    {
        if (step_.last) {
            item_ += stride_;
            Enter();
            return;
        }
        Stand(kBackwards ? chunk_ - 1 : chunk_ + 1);
    }

    /// On to an item that has a chunk.
    __aicore__ inline void SkipEmpty()
    {
        while (Live() && step_.rows == 0) {
            Next();
        }
    }

  private:
    /// Stands on the first chunk of the current item.
    __aicore__ inline void Enter()
    {
        if (!Live()) {
            return;
        }
        step_.isMap = item_ >= states_;
        const uint32_t state = step_.isMap ? item_ - states_ : item_;
        const uint32_t sequence = state / valueHeads_;
        const uint32_t head = state % valueHeads_;
        span_ = walk_.Sequence(sequence);
        lastChunk_ = span_.length == 0 ? 0 : (span_.length - 1) / kChunk;
        firstRow_ = walk_.ValueRow(span_.batch, head, span_.token);
        firstKeyRow_ = walk_.KeyRow(span_.batch, head / headsPerGroup_, span_.token);
        firstTile_ = walk_.StateTile(span_.firstChunk, head);
        step_.itemTile = walk_.StateTile(sequence, head);
        Stand(kBackwards ? lastChunk_ : 0);
    }

    __aicore__ inline void Stand(uint32_t chunk)
    {
        chunk_ = chunk;
        step_.row = firstRow_ + static_cast<uint64_t>(chunk) * kChunk;
        step_.keyRow = firstKeyRow_ + static_cast<uint64_t>(chunk) * kChunk;
        step_.chunkTile = firstTile_ + static_cast<uint64_t>(chunk) * valueHeads_;
        step_.rows = chunk == lastChunk_ ? span_.length - chunk * kChunk : kChunk;
        step_.last = chunk == (kBackwards ? 0U : lastChunk_);
    }

    ChunkWalk walk_;
    LaneStep step_;
    SequenceSpan span_;
    uint32_t valueHeads_ = 0;
    uint32_t headsPerGroup_ = 0;
    uint32_t states_ = 0;  // items of one block
    uint32_t items_ = 0;
    uint32_t item_ = 0;
    uint32_t stride_ = 0;
    uint32_t chunk_ = 0;      // of the current sequence
    uint32_t lastChunk_ = 0;  // of the current sequence
    uint64_t firstRow_ = 0;
    uint64_t firstKeyRow_ = 0;
    uint64_t firstTile_ = 0;
};

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_LANE_WALK_H
