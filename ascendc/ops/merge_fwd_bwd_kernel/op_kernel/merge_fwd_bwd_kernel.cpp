// SPDX-License-Identifier: Apache-2.0
// Entry of merge_fwd_bwd_kernel. The stage itself: fold.h.
#include "kernel_operator.h"

#include "fold_cube.h"
#include "fold_vector.h"
#include "merge_fwd_bwd_kernel_tiling_data.h"
#include "stage_bodies.h"

// h is written in place: an input that is not read, and the output.
extern "C" __global__ __aicore__ void merge_fwd_bwd_kernel(GM_ADDR /* h */, GM_ADDR agHm, GM_ADDR h,
                                                           GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(MergeFwdBwdKernelTilingData);
    GET_TILING_DATA_WITH_STRUCT(MergeFwdBwdKernelTilingData, t, tiling);
    AscendC::TPipe pipe;
    const fla::FoldArgs args = {agHm, h, AscendC::GetUserWorkspace(workspace), t};
    fla::RunStage<fla::FoldCube, fla::FoldVector>(pipe, args);
}
