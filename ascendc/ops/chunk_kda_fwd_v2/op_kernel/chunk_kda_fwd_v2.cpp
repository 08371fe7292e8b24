// SPDX-License-Identifier: Apache-2.0
// Entry of chunk_kda_fwd_v2: prepare, state, output, in a row. The stages: common/stages.
#include "kernel_operator.h"

#include "aggregate/run_stage.h"
#include "chunk_kda_fwd_v2_tiling_data.h"
#include "output/output_cube.h"
#include "output/output_vector.h"
#include "prepare/prepare_cube.h"
#include "prepare/prepare_vector.h"
#include "state/state_cube.h"
#include "state/state_vector.h"

// Inputs and outputs in the order of op.json. Which of them exist is told by the tiling data; absent
// ones are never touched, whatever their pointer is.
extern "C" __global__ __aicore__ void chunk_kda_fwd_v2(
    GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR g, GM_ADDR beta, GM_ADDR aLog, GM_ADDR dtBias,
    GM_ADDR initialState, GM_ADDR cuSeqlens, GM_ADDR chunkIndices, GM_ADDR attnOut,
    GM_ADDR finalState, GM_ADDR gk, GM_ADDR aqk, GM_ADDR akk, GM_ADDR w, GM_ADDR u, GM_ADDR qg,
    GM_ADDR kg, GM_ADDR vNew, GM_ADDR h, GM_ADDR qHat, GM_ADDR kHat, GM_ADDR qRstd, GM_ADDR kRstd,
    GM_ADDR betaEff, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(ChunkKdaFwdV2TilingData);
    GET_TILING_DATA_WITH_STRUCT(ChunkKdaFwdV2TilingData, t, tiling);
    AscendC::TPipe pipe;
    GM_ADDR user = AscendC::GetUserWorkspace(workspace);
    GM_ADDR scratch = user + t.scratch;
    gk = fla::RelayAt(t.relay[kForwardGk], gk, user);
    w = fla::RelayAt(t.relay[kForwardW], w, user);
    kg = fla::RelayAt(t.relay[kForwardKg], kg, user);
    vNew = fla::RelayAt(t.relay[kForwardVNew], vNew, user);
    h = fla::RelayAt(t.relay[kForwardH], h, user);
    GM_ADDR uWide = user + t.relay[kForwardWideU];
    GM_ADDR qgScaled = user + t.relay[kForwardQgScaled];

    const fla::PrepareArgs prepare = {
        q,    k,    v,     g,     beta,    aLog,    dtBias,   cuSeqlens, chunkIndices,
        gk,   aqk,  akk,   w,     u,       uWide,   qg,       kg,        qgScaled,
        qHat, kHat, qRstd, kRstd, betaEff, scratch, t.prepare};
    fla::RunStage<fla::PrepareCube, fla::PrepareVector>(pipe, prepare);
    fla::NextStage(pipe);

    const fla::StateArgs state = {kg,           w, uWide, gk,         initialState, cuSeqlens,
                                  chunkIndices, h, vNew,  finalState, scratch,      t.state};
    fla::RunStage<fla::StateCube, fla::StateVector>(pipe, state);
    fla::NextStage(pipe);

    const fla::OutputArgs output = {qgScaled,     aqk,     vNew,    h,       cuSeqlens,
                                    chunkIndices, attnOut, scratch, t.output};
    fla::RunStage<fla::OutputCube, fla::OutputVector>(pipe, output);
}
