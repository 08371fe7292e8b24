// SPDX-License-Identifier: Apache-2.0
// Cube body of prepare: scores of round n, then Akk, w and u of round n - 1. Maths, work split and
// flags: prepare.h.
#ifndef FLA_PREPARE_CUBE_H
#define FLA_PREPARE_CUBE_H

#include "merge_cube.h"
#include "scores_cube.h"

namespace fla
{

class PrepareCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const PrepareArgs &args)
    {
        c_.Open(pipe, args);
        scores_.Open(c_);
        merge_.Open(c_);
        const uint32_t rounds = c_.rounds.Count();
        for (uint32_t round = 0; round <= rounds; ++round) {
            if (round < rounds) {
                AscendC::CrossCoreWaitFlag(FlagOf(kOperands, round));
                scores_.Run(c_, round);
                AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(FlagOf(kScores, round));
            }
            if (round > 0) {
                AscendC::CrossCoreWaitFlag(FlagOf(kInverse, round - 1));
                merge_.Run(c_, round - 1);
            }
        }
        merge_.Close();
        scores_.Close();
        c_.CloseTurns();
    }

  private:
    CubeCore c_;
    ScoresCube scores_;
    MergeCube merge_;
};

}  // namespace fla
#endif  // FLA_PREPARE_CUBE_H
