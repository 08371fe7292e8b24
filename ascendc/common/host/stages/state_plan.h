// SPDX-License-Identifier: Apache-2.0
// Tiling of the state stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_STATE_PLAN_H
#define FLA_COMMON_HOST_STAGES_STATE_PLAN_H

#include "stages/stage_plan.h"
#include "state/state_tiling_data.h"

namespace fla
{

/// What operators name or fix differently. The rest is read from the call: the ports initial_state
/// and final_state, the attributes use_exp2 and state_v_first.
struct StateUse {
    bool gateIsBf16 = false;     // gk
    bool valuesAreWide = false;  // u in fp32
    uint32_t valuePlanes = 1;    // of v_new
};

StagePlan<StateTiling> PlanState(const OpCall &call, const ChipSpec &chip, const StateUse &use);

/// What a kernel is to read or write at a state port; the contract has settled that it is one of
/// these.
uint32_t StateDtypeOf(const OpCall &call, const char *port);

/// Refuses what overflows: kernels that walk sequences count tokens, items and chunks in 32 bits.
/// Divisions, so that no product wraps.
Plan CheckStateSizes(const OpCall &call);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_STATE_PLAN_H
