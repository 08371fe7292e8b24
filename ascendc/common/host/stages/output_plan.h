// SPDX-License-Identifier: Apache-2.0
// Tiling of the output stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_OUTPUT_PLAN_H
#define FLA_COMMON_HOST_STAGES_OUTPUT_PLAN_H

#include "output/output_tiling_data.h"
#include "stages/stage_plan.h"

namespace fla
{

/// `tokenMajor`: attn_out is [B, T, HV, V]. The rest is read from the call: state_v_first.
StagePlan<OutputTiling> PlanOutput(const OpCall &call, const ChipSpec &chip, bool tokenMajor);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_OUTPUT_PLAN_H
