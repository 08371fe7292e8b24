// SPDX-License-Identifier: Apache-2.0
#include "pre_process_fwd_kernel_merged_plan.h"

#include "pre_process_fwd_kernel_merged_tiling_data.h"
#include "stages/summary_plan.h"

namespace fla
{

Plan PlanPreProcessFwdKernelMerged(const OpCall &call, const ChipSpec &chip)
{
    return LaunchOne<PreProcessFwdKernelMergedTilingData>("pre_process_fwd_kernel_merged",
                                                          PlanSummary(call, chip));
}

}  // namespace fla
