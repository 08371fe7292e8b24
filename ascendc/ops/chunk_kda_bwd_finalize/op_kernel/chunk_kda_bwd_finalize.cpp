// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_bwd_finalize. The stage: common/stages/chunk_grad/chunk_grad.h.
#include "kernel_operator.h"

#include "chunk_grad/chunk_grad_cube.h"
#include "chunk_grad/chunk_grad_vector.h"
#include "chunk_kda_bwd_finalize_tiling_data.h"
#include "stage_bodies.h"

// Inputs and outputs in the order of op.json. Which optional ones exist is told by the tiling data;
// absent ones are never touched, whatever their pointer is. gk is in the ABI only.
extern "C" __global__ __aicore__ void chunk_kda_bwd_finalize(
    GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR /* gk */, GM_ADDR rawG, GM_ADDR beta, GM_ADDR aLog,
    GM_ADDR dtBias, GM_ADDR akk, GM_ADDR vNew, GM_ADDR h, GM_ADDR dh, GM_ADDR dvScan, GM_ADDR dAqk,
    GM_ADDR dqRaw, GM_ADDR qRstd, GM_ADDR kRstd, GM_ADDR cuSeqlens, GM_ADDR chunkIndices,
    GM_ADDR dq, GM_ADDR dk, GM_ADDR dv, GM_ADDR dBeta, GM_ADDR dG, GM_ADDR dALog, GM_ADDR dDtBias,
    GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaBwdFinalizeTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaBwdFinalizeTilingData, t, tiling);
    // The pipe sets up the core; the bodies below take their memory from it.
    AscendC::TPipe pipe;
    const fla::ChunkGradArgs args = {q,          k,
                                     v,          rawG,
                                     beta,       aLog,
                                     dtBias,     akk,
                                     vNew,       h,
                                     dh,         dvScan,
                                     dAqk,       dqRaw,
                                     qRstd,      kRstd,
                                     cuSeqlens,  chunkIndices,
                                     dq,         dk,
                                     dv,         dBeta,
                                     dG,         dALog,
                                     dDtBias,    AscendC::GetUserWorkspace(workspace),
                                     t.chunkGrad};
    fla::RunStage<fla::ChunkGradCube, fla::ChunkGradVector>(pipe, args);
}
