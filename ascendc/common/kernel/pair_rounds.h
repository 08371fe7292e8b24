// SPDX-License-Identifier: Apache-2.0
// The order of the kernels whose chunks do not depend on each other and whose vector cores keep a task
// of their own: a group works on a pair of tasks at a time, one per vector core, in rounds. Both bodies
// of a kernel use this class, so their order can't differ.
#ifndef FLA_COMMON_KERNEL_PAIR_ROUNDS_H
#define FLA_COMMON_KERNEL_PAIR_ROUNDS_H

#include "kernel_operator.h"

#include "chunk_walk.h"
#include "local_memory.h"

namespace fla
{

/// The rounds of one group. A pair stays for `heads` rounds: value heads that follow one another.
class PairRounds
{
  public:
    /// `Args` has cuSeqlens, chunkIndices and, in its tiling `t`, the shape.
    template <typename Args>
    __aicore__ inline void Init(const Args &args, uint32_t group, uint32_t heads)
    {
        const auto &t = args.t;
        walk_.Init({t.tokens, t.valueHeads, t.headsPerGroup, t.sequences, t.chunks, t.packed},
                   args.cuSeqlens, args.chunkIndices);
        heads_ = heads;
        group_ = group;
        groups_ = AscendC::GetBlockNum();
        tasks_ = walk_.Tasks() / heads;
        const uint32_t pairs = tasks_ / kVectorCores + tasks_ % kVectorCores;
        rounds_ = pairs > group ? ((pairs - group - 1) / groups_ + 1) * heads : 0;
    }

    __aicore__ inline uint32_t Count() const { return rounds_; }

    /// Whether vector core `lane` has a task in this round; only the last pair may be odd.
    __aicore__ inline bool Has(uint32_t round, uint32_t lane) const
    {
        return round < rounds_ && Index(round, lane) < tasks_;
    }

    /// Vector cores that have one.
    __aicore__ inline uint32_t Lanes(uint32_t round) const { return Has(round, 1) ? 2 : 1; }

    __aicore__ inline ChunkTask Task(uint32_t round, uint32_t lane) const
    {
        return walk_.Task(Index(round, lane) * heads_ + round % heads_);
    }

    __aicore__ inline const ChunkWalk &Walk() const { return walk_; }

  private:
    __aicore__ inline uint32_t Index(uint32_t round, uint32_t lane) const
    {
        return (round / heads_ * groups_ + group_) * kVectorCores + lane;
    }

    ChunkWalk walk_;
    uint32_t heads_, group_, groups_, tasks_, rounds_;
};

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_PAIR_ROUNDS_H
