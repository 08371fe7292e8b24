// SPDX-License-Identifier: Apache-2.0
// A stage of a kernel is a pair of bodies, <Stage>Cube and <Stage>Vector, that meet over GM and flags.
#ifndef FLA_COMMON_KERNEL_STAGE_BODIES_H
#define FLA_COMMON_KERNEL_STAGE_BODIES_H

#include "kernel_operator.h"

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

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_STAGE_BODIES_H
