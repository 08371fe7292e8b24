// SPDX-License-Identifier: Apache-2.0
// Tiling of the output_grad stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_OUTPUT_GRAD_PLAN_H
#define FLA_COMMON_HOST_STAGES_OUTPUT_GRAD_PLAN_H

#include "output_grad/output_grad_tiling_data.h"
#include "stages/stage_plan.h"

namespace fla
{

/// Read from the call: the attributes scale and state_v_first.
StagePlan<OutputGradTiling> PlanOutputGrad(const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_OUTPUT_GRAD_PLAN_H
