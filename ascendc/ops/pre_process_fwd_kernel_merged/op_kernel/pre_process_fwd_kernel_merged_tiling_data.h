// SPDX-License-Identifier: Apache-2.0
// What the plan of pre_process_fwd_kernel_merged tells its kernel: the tiling of its one stage.
#ifndef PRE_PROCESS_FWD_KERNEL_MERGED_TILING_DATA_H
#define PRE_PROCESS_FWD_KERNEL_MERGED_TILING_DATA_H

#include "state/state_tiling_data.h"

struct PreProcessFwdKernelMergedTilingData {
    StateTiling state;
};

#endif  // PRE_PROCESS_FWD_KERNEL_MERGED_TILING_DATA_H
