// SPDX-License-Identifier: Apache-2.0
// Several stages in one kernel, one after another, on one pipe.
//
// A stage is a pair of bodies, <Stage>Cube and <Stage>Vector, that a launch of its own would run.
// Each takes its local memory from the pipe and leaves every flag at zero, so between two stages it
// is enough that all cores meet and that the pipe takes the memory back. What a stage leaves for a
// later one lies in a tensor of the caller who asked for it, else in the workspace.
#ifndef FLA_AGGREGATE_RUN_STAGE_H
#define FLA_AGGREGATE_RUN_STAGE_H

#include "kernel_operator.h"

#include "aggregate/relay_tiling_data.h"

namespace fla
{

/// Runs the body of this core.
template <class Cube, class Vector, class Args>
__aicore__ inline void RunStage(AscendC::TPipe &pipe, const Args &args)
{
    if ASCEND_IS_AIC {
        Cube().Run(pipe, args);
    }
    if ASCEND_IS_AIV {
        Vector().Run(pipe, args);
    }
}

/// All of the stage before is in GM, for every core; its local memory is free.
__aicore__ inline void NextStage(AscendC::TPipe &pipe)
{
    AscendC::SyncAll<false>();
    pipe.Reset();
}

/// Where an intermediate lies.
__aicore__ inline GM_ADDR RelayAt(uint64_t place, GM_ADDR tensor, GM_ADDR workspace)
{
    return place == kInTensor ? tensor : workspace + place;
}

}  // namespace fla
#endif  // FLA_AGGREGATE_RUN_STAGE_H
