// SPDX-License-Identifier: Apache-2.0
#include "pre_process_bwd_kernel_merged_plan.h"

#include "pre_process_bwd_kernel_merged_tiling_data.h"
#include "stages/summary_plan.h"

namespace fla
{

Plan PlanPreProcessBwdKernelMerged(const OpCall &call, const ChipSpec &chip)
{
    return LaunchOne<PreProcessBwdKernelMergedTilingData>("pre_process_bwd_kernel_merged",
                                                          PlanSummaryGrad(call, chip));
}

}  // namespace fla
