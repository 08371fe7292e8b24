// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_fwd_prepare. The stages: common/stages/prepare/prepare.h.
#include "kernel_operator.h"

#include "chunk_kda_fwd_prepare_tiling_data.h"
#include "prepare/prepare_cube.h"
#include "prepare/prepare_vector.h"
#include "stage_bodies.h"

// Inputs and outputs in the order of op.json. Which optional outputs exist is told by t.outputs;
// absent ones are never touched, whatever their pointer is.
extern "C" __global__ __aicore__ void chunk_kda_fwd_prepare(
    GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR g, GM_ADDR beta, GM_ADDR aLog, GM_ADDR dtBias,
    GM_ADDR cuSeqlens, GM_ADDR chunkIndices, GM_ADDR gk, GM_ADDR aqk, GM_ADDR akk, GM_ADDR w,
    GM_ADDR u, GM_ADDR qg, GM_ADDR kg, GM_ADDR qgScaled, GM_ADDR qHat, GM_ADDR kHat, GM_ADDR qRstd,
    GM_ADDR kRstd, GM_ADDR betaEff, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaFwdPrepareTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaFwdPrepareTilingData, t, tiling);
    // The pipe sets up the core; the bodies below take their memory from it.
    AscendC::TPipe pipe;
    const fla::PrepareArgs args = {q,        k,         v,
                                   g,        beta,      aLog,
                                   dtBias,   cuSeqlens, chunkIndices,
                                   gk,       aqk,       akk,
                                   w,        u,         u,
                                   qg,       kg,        qgScaled,
                                   qHat,     kHat,      qRstd,
                                   kRstd,    betaEff,   AscendC::GetUserWorkspace(workspace),
                                   t.prepare};
    fla::RunStage<fla::PrepareCube, fla::PrepareVector>(pipe, args);
}
