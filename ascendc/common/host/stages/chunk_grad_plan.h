// SPDX-License-Identifier: Apache-2.0
// Tiling of the chunk_grad stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_CHUNK_GRAD_PLAN_H
#define FLA_COMMON_HOST_STAGES_CHUNK_GRAD_PLAN_H

#include "chunk_grad/chunk_grad_tiling_data.h"
#include "stages/stage_plan.h"

namespace fla
{

/// Read from the call: the ports raw_g, beta, a_log, dt_bias, v_new, q_rstd, k_rstd, dbeta, da_log,
/// ddt_bias; the attributes of the gate, scale and state_v_first.
StagePlan<ChunkGradTiling> PlanChunkGrad(const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_CHUNK_GRAD_PLAN_H
