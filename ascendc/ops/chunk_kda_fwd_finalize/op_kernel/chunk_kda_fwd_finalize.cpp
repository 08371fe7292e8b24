// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_fwd_finalize. The stage itself: common/stages/output/output.h.
#include "kernel_operator.h"

#include "chunk_kda_fwd_finalize_tiling_data.h"
#include "output/output_cube.h"
#include "output/output_vector.h"
#include "stage_bodies.h"

extern "C" __global__ __aicore__ void chunk_kda_fwd_finalize(GM_ADDR qgScaled, GM_ADDR aqk,
                                                             GM_ADDR vNew, GM_ADDR h,
                                                             GM_ADDR cuSeqlens,
                                                             GM_ADDR chunkIndices, GM_ADDR attnOut,
                                                             GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaFwdFinalizeTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaFwdFinalizeTilingData, t, tiling);
    AscendC::TPipe pipe;
    const fla::OutputArgs args = {
        qgScaled,  aqk,          vNew,    h,
        cuSeqlens, chunkIndices, attnOut, AscendC::GetUserWorkspace(workspace),
        t.output};
    fla::RunStage<fla::OutputCube, fla::OutputVector>(pipe, args);
}
