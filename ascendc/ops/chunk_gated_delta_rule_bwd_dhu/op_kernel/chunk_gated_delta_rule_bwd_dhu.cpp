// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_gated_delta_rule_bwd_dhu. The stage itself: common/stages/state_grad/state_grad.h.
#include "kernel_operator.h"

#include "chunk_gated_delta_rule_bwd_dhu_tiling_data.h"
#include "stage_bodies.h"
#include "state_grad/state_grad_cube.h"
#include "state_grad/state_grad_vector.h"

// The scalar gate g is refused by the contract, and of h0 only the presence matters: their slots are
// there because the prototype has them.
extern "C" __global__ __aicore__ void chunk_gated_delta_rule_bwd_dhu(
    GM_ADDR q, GM_ADDR k, GM_ADDR w, GM_ADDR dO, GM_ADDR dv, GM_ADDR /* g */, GM_ADDR gk,
    GM_ADDR /* h0 */, GM_ADDR dht, GM_ADDR cuSeqlens, GM_ADDR chunkIndices, GM_ADDR dh, GM_ADDR dh0,
    GM_ADDR dv2, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkGatedDeltaRuleBwdDhuTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkGatedDeltaRuleBwdDhuTilingData, t, tiling);
    AscendC::TPipe pipe;
    const fla::StateGradArgs args = {q,
                                     k,
                                     w,
                                     dO,
                                     dv,
                                     gk,
                                     dht,
                                     cuSeqlens,
                                     chunkIndices,
                                     dh,
                                     dh0,
                                     dv2,
                                     AscendC::GetUserWorkspace(workspace),
                                     t.stateGrad};
    fla::RunStage<fla::StateGradCube, fla::StateGradVector>(pipe, args);
}
