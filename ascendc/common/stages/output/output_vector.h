// SPDX-License-Identifier: Apache-2.0
// Vector body of the output stage: clears what lies above the diagonal of Aqk. Memory plan and
// flags: output.h.
#ifndef FLA_OUTPUT_VECTOR_H
#define FLA_OUTPUT_VECTOR_H

#include "output.h"

namespace fla
{

class OutputVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const OutputArgs &args)
    {
        ChunkWalk walk;
        InitTasks(walk, args);
        pipe.InitBuffer(ub_, OutputUb::end);
        const uint32_t group = AscendC::GetBlockIdx() / kVectorCores;
        const TaskRange range = RangeOf(walk.Tasks(), group, AscendC::GetBlockNum());
        masked_.Open(ub_, OutputUb::masked, args.aqk, OutputRingOf(args, group));
        for (uint32_t pair = range.first; pair < range.end; pair += kVectorCores) {
            masked_.Send(walk, pair, range.end);
        }
        masked_.Drain();
    }

  private:
    MaskedProducer<OutputRing> masked_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
};

}  // namespace fla
#endif  // FLA_OUTPUT_VECTOR_H
