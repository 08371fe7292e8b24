// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_plan.h"

#include "stages/backward_plan.h"

namespace fla
{

Plan PlanChunkKdaBwd(const OpCall &call, const ChipSpec &chip)
{
    return PlanBackward("chunk_kda_bwd", call, chip);
}

}  // namespace fla
