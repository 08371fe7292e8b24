// SPDX-License-Identifier: Apache-2.0
// Tiling of chunk_kda_bwd: a pure function of the call and the chip.
#ifndef CHUNK_KDA_BWD_PLAN_H
#define CHUNK_KDA_BWD_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of a call that has passed the contract check, or a refusal.
Plan PlanChunkKdaBwd(const OpCall &call, const ChipSpec &chip);

}  // namespace fla

#endif  // CHUNK_KDA_BWD_PLAN_H
