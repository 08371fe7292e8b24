// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_bwd_v2. The stages in a row: common/stages/aggregate/backward.h.
#include "kernel_operator.h"

#include "aggregate/backward.h"
#include "chunk_kda_bwd_v2_tiling_data.h"

// Inputs and outputs in the order of op.json. Which of them exist is told by the tiling data; absent
// ones are never touched, whatever their pointer is.
extern "C" __global__ __aicore__ void chunk_kda_bwd_v2(
    GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR beta, GM_ADDR gk, GM_ADDR aqk, GM_ADDR akk, GM_ADDR w,
    GM_ADDR qg, GM_ADDR kg, GM_ADDR vNew, GM_ADDR h, GM_ADDR dO, GM_ADDR rawG, GM_ADDR aLog,
    GM_ADDR dtBias, GM_ADDR initialState, GM_ADDR dht, GM_ADDR cuSeqlens, GM_ADDR chunkIndices,
    GM_ADDR qRstd, GM_ADDR kRstd, GM_ADDR dq, GM_ADDR dk, GM_ADDR dv, GM_ADDR dBeta, GM_ADDR dG,
    GM_ADDR dh0, GM_ADDR dALog, GM_ADDR dDtBias, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaBwdV2TilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaBwdV2TilingData, t, tiling);
    // One pipe for all stages: each takes its local memory from it and gives it back.
    AscendC::TPipe pipe;
    const fla::BackwardArgs args = {q,
                                    k,
                                    v,
                                    beta,
                                    gk,
                                    aqk,
                                    akk,
                                    w,
                                    qg,
                                    kg,
                                    vNew,
                                    h,
                                    dO,
                                    rawG,
                                    aLog,
                                    dtBias,
                                    initialState,
                                    dht,
                                    cuSeqlens,
                                    chunkIndices,
                                    qRstd,
                                    kRstd,
                                    dq,
                                    dk,
                                    dv,
                                    dBeta,
                                    dG,
                                    dh0,
                                    dALog,
                                    dDtBias,
                                    AscendC::GetUserWorkspace(workspace),
                                    t.backward};
    fla::BackwardStages().Run(pipe, args);
}
