// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_v2_plan.h"

#include "stages/backward_plan.h"

namespace fla
{

Plan PlanChunkKdaBwdV2(const OpCall &call, const ChipSpec &chip)
{
    return PlanBackward("chunk_kda_bwd_v2", call, chip);
}

}  // namespace fla
