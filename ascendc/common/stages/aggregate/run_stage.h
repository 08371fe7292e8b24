// SPDX-License-Identifier: Apache-2.0
// Several stages in one kernel, one after another, on one pipe.
//
// A body takes its local memory from the pipe and leaves every flag at zero, so between two stages it
// is enough that all cores meet and that the pipe takes the memory back. What a stage leaves for a
// later one lies in a tensor of the caller who asked for it, else in the workspace.
#ifndef FLA_AGGREGATE_RUN_STAGE_H
#define FLA_AGGREGATE_RUN_STAGE_H

#include "kernel_operator.h"

#include "aggregate/relay_tiling_data.h"
#include "stage_bodies.h"

namespace fla
{

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
