// SPDX-License-Identifier: Apache-2.0
// Tiling of op_template: a pure function of the call and the chip.
#ifndef OP_TEMPLATE_PLAN_H
#define OP_TEMPLATE_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of a call that has passed the contract check, or a refusal.
Plan PlanOpTemplate(const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // OP_TEMPLATE_PLAN_H
