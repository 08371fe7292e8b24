// SPDX-License-Identifier: Apache-2.0
// Entry of pre_process_fwd_kernel_merged: the state stage over windows. What is particular to it:
// common/stages/summary/summary.h.
#include "kernel_operator.h"

#include "pre_process_fwd_kernel_merged_tiling_data.h"
#include "stage_bodies.h"
#include "state/state_cube.h"
#include "state/state_vector.h"
#include "summary/summary.h"

// g, bg and v are refused by the contract: their slots are there because the prototype has them.
extern "C" __global__ __aicore__ void pre_process_fwd_kernel_merged(
    GM_ADDR k, GM_ADDR w, GM_ADDR u, GM_ADDR /* g */, GM_ADDR gk, GM_ADDR /* bg */, GM_ADDR /* v */,
    GM_ADDR cuSeqlens, GM_ADDR hm, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(PreProcessFwdKernelMergedTilingData);
    GET_TILING_DATA_WITH_STRUCT(PreProcessFwdKernelMergedTilingData, t, tiling);
    AscendC::TPipe pipe;
    GM_ADDR none = nullptr;  // zeros or the identity to start from; no numbers of chunks
    GM_ADDR user = AscendC::GetUserWorkspace(workspace);
    GM_ADDR h = fla::SummaryStates(user, kStateExchangeBytes);
    GM_ADDR vNew = fla::SummaryValues(user, kStateExchangeBytes);
    const fla::StateArgs args = {k, w, u, gk, none, cuSeqlens, none, h, vNew, hm, user, t.state};
    fla::RunStage<fla::StateCube, fla::StateVector>(pipe, args);
}
