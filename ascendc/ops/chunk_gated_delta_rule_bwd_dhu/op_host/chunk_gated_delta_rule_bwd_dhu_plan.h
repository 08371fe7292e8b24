// SPDX-License-Identifier: Apache-2.0
// Tiling of chunk_gated_delta_rule_bwd_dhu: a pure function of the call and the chip.
#ifndef CHUNK_GATED_DELTA_RULE_BWD_DHU_PLAN_H
#define CHUNK_GATED_DELTA_RULE_BWD_DHU_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of a call that has passed the contract check, or a refusal.
Plan PlanChunkGatedDeltaRuleBwdDhu(const OpCall &call, const ChipSpec &chip);

}  // namespace fla

#endif  // CHUNK_GATED_DELTA_RULE_BWD_DHU_PLAN_H
