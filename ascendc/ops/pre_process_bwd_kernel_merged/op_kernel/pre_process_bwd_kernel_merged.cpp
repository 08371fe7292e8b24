// SPDX-License-Identifier: Apache-2.0
// Entry of pre_process_bwd_kernel_merged: the state_grad stage over a window. What is particular to
// it: common/stages/summary/summary.h.
#include "kernel_operator.h"

#include "pre_process_bwd_kernel_merged_tiling_data.h"
#include "stage_bodies.h"
#include "state_grad/state_grad_cube.h"
#include "state_grad/state_grad_vector.h"
#include "summary/summary.h"

// The scalar gate g is refused by the contract: its slot is there because the prototype has it.
extern "C" __global__ __aicore__ void pre_process_bwd_kernel_merged(
    GM_ADDR q, GM_ADDR k, GM_ADDR w, GM_ADDR dO, GM_ADDR dv, GM_ADDR /* g */, GM_ADDR gk,
    GM_ADDR cuSeqlens, GM_ADDR dhm, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(PreProcessBwdKernelMergedTilingData);
    GET_TILING_DATA_WITH_STRUCT(PreProcessBwdKernelMergedTilingData, t, tiling);
    AscendC::TPipe pipe;
    GM_ADDR none = nullptr;  // zeros or the identity to start from; no numbers of chunks
    GM_ADDR user = AscendC::GetUserWorkspace(workspace);
    GM_ADDR dh = fla::SummaryStates(user, kStateGradGroupBytes);
    GM_ADDR dvScan = fla::SummaryValues(user, kStateGradGroupBytes);
    const fla::StateGradArgs args = {q,         k,    w,  dO,  dv,     gk,   none,
                                     cuSeqlens, none, dh, dhm, dvScan, user, t.stateGrad};
    fla::RunStage<fla::StateGradCube, fla::StateGradVector>(pipe, args);
}
