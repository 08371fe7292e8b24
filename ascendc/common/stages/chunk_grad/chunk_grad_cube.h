// SPDX-License-Identifier: Apache-2.0
// Cube body of chunk_grad: products with states, then with the masked scores. Maths, work split and
// flags: chunk_grad.h.
#ifndef FLA_CHUNK_GRAD_CHUNK_GRAD_CUBE_H
#define FLA_CHUNK_GRAD_CHUNK_GRAD_CUBE_H

#include "scores_grad_cube.h"
#include "values_cube.h"

namespace fla
{

class ChunkGradCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const ChunkGradArgs &args)
    {
        c_.Open(pipe, args);
        values_.Open(c_);
        scores_.Open(c_);
        const uint32_t rounds = c_.rounds.Count();
        for (uint32_t round = 0; round < rounds; ++round) {
            AscendC::CrossCoreWaitFlag(GradFlagOf(kGradOperands, round));
            values_.Run(c_, round);
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(GradFlagOf(kGradLow, round));
            values_.Finish(c_, round);
            AscendC::CrossCoreWaitFlag(GradFlagOf(kGradStrict, round));
            scores_.Run(c_, round);
            AscendC::CrossCoreSetFlag<kGroupMode, PIPE_FIX>(GradFlagOf(kGradDone, round));
        }
        scores_.Close();
        values_.Close();
        c_.CloseTurns();
        if (args.t.gate != kGateNone) {
            AscendC::SyncAll<false>();
        }
    }

  private:
    GradCube c_;
    ValuesCube values_;
    ScoresGradCube scores_;
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_CHUNK_GRAD_CUBE_H
