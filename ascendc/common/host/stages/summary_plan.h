// SPDX-License-Identifier: Apache-2.0
// Tiling of summaries: the recurrences of the state and of its gradient over windows of tokens, with
// nothing kept per chunk. Pure functions of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_SUMMARY_PLAN_H
#define FLA_COMMON_HOST_STAGES_SUMMARY_PLAN_H

#include "stages/stage_plan.h"
#include "state/state_tiling_data.h"
#include "state_grad/state_grad_tiling_data.h"

namespace fla
{

/// What windows do to the state.
StagePlan<StateTiling> PlanSummary(const OpCall &call, const ChipSpec &chip);

/// What one window does to the gradient of the state.
StagePlan<StateGradTiling> PlanSummaryGrad(const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_SUMMARY_PLAN_H
