// SPDX-License-Identifier: Apache-2.0
// What the plan of pre_process_bwd_kernel_merged tells its kernel: the tiling of its one stage.
#ifndef PRE_PROCESS_BWD_KERNEL_MERGED_TILING_DATA_H
#define PRE_PROCESS_BWD_KERNEL_MERGED_TILING_DATA_H

#include "state_grad/state_grad_tiling_data.h"

struct PreProcessBwdKernelMergedTilingData {
    StateGradTiling stateGrad;
};

#endif  // PRE_PROCESS_BWD_KERNEL_MERGED_TILING_DATA_H
