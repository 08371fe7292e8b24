// SPDX-License-Identifier: Apache-2.0
// Tiling of merge_fwd_bwd_kernel: a pure function of the call and the chip.
#ifndef MERGE_FWD_BWD_KERNEL_PLAN_H
#define MERGE_FWD_BWD_KERNEL_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of a call that has passed the contract check, or a refusal.
Plan PlanMergeFwdBwdKernel(const OpCall &call, const ChipSpec &chip);

}  // namespace fla

#endif  // MERGE_FWD_BWD_KERNEL_PLAN_H
