// SPDX-License-Identifier: Apache-2.0
// Tiling of pre_process_bwd_kernel_merged: a pure function of the call and the chip.
#ifndef PRE_PROCESS_BWD_KERNEL_MERGED_PLAN_H
#define PRE_PROCESS_BWD_KERNEL_MERGED_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

/// The launch of a call that has passed the contract check, or a refusal.
Plan PlanPreProcessBwdKernelMerged(const OpCall &call, const ChipSpec &chip);

}  // namespace fla

#endif  // PRE_PROCESS_BWD_KERNEL_MERGED_PLAN_H
