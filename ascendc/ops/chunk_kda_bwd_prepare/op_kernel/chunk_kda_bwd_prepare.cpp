// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_bwd_prepare. The stage itself: common/stages/output_grad/output_grad.h.
#include "kernel_operator.h"

#include "chunk_kda_bwd_prepare_tiling_data.h"
#include "output_grad/output_grad_cube.h"
#include "output_grad/output_grad_vector.h"
#include "stage_bodies.h"

extern "C" __global__ __aicore__ void chunk_kda_bwd_prepare(GM_ADDR aqk, GM_ADDR vNew, GM_ADDR dO,
                                                            GM_ADDR h, GM_ADDR cuSeqlens,
                                                            GM_ADDR chunkIndices, GM_ADDR dAqk,
                                                            GM_ADDR dvLocal, GM_ADDR dqRaw,
                                                            GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaBwdPrepareTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaBwdPrepareTilingData, t, tiling);
    AscendC::TPipe pipe;
    const fla::OutputGradArgs args = {
        aqk,          vNew, dO,      h,     cuSeqlens,
        chunkIndices, dAqk, dvLocal, dqRaw, AscendC::GetUserWorkspace(workspace),
        t.outputGrad};
    fla::RunStage<fla::OutputGradCube, fla::OutputGradVector>(pipe, args);
}
