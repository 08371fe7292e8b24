// SPDX-License-Identifier: Apache-2.0
// Tiling of chunk_kda_fwd_prepare: a pure function of the call and the chip.
#ifndef CHUNK_KDA_FWD_PREPARE_PLAN_H
#define CHUNK_KDA_FWD_PREPARE_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

/// The launch of a call that has passed the contract check, or a refusal.
fla::Plan PlanChunkKdaFwdPrepare(const fla::OpCall &call, const fla::ChipSpec &chip);

#endif  // CHUNK_KDA_FWD_PREPARE_PLAN_H
