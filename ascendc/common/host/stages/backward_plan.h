// SPDX-License-Identifier: Apache-2.0
// Tiling of the backward stages in a row: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_BACKWARD_PLAN_H
#define FLA_COMMON_HOST_STAGES_BACKWARD_PLAN_H

#include <string>

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of `op`, whose tiling data is a BackwardTiling, or its refusal. Operators differ in
/// what their contracts allow only; this reads whatever ports a call has.
Plan PlanBackward(const std::string &op, const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_BACKWARD_PLAN_H
