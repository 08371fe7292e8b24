// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_fwd_h. The stage itself: common/stages/state/state.h.
#include "kernel_operator.h"

#include "chunk_fwd_h_tiling_data.h"
#include "stage_bodies.h"
#include "state/state_cube.h"
#include "state/state_vector.h"

// The scalar gate g is refused by the contract: its slot is there because the prototype has it.
extern "C" __global__ __aicore__ void chunk_fwd_h(GM_ADDR k, GM_ADDR w, GM_ADDR u, GM_ADDR /* g */,
                                                  GM_ADDR gk, GM_ADDR initialState,
                                                  GM_ADDR cuSeqlens, GM_ADDR chunkIndices,
                                                  GM_ADDR h, GM_ADDR vNew, GM_ADDR finalState,
                                                  GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkFwdHTilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkFwdHTilingData, t, tiling);
    AscendC::TPipe pipe;
    const fla::StateArgs args = {k,
                                 w,
                                 u,
                                 gk,
                                 initialState,
                                 cuSeqlens,
                                 chunkIndices,
                                 h,
                                 vNew,
                                 finalState,
                                 AscendC::GetUserWorkspace(workspace),
                                 t.state};
    fla::RunStage<fla::StateCube, fla::StateVector>(pipe, args);
}
