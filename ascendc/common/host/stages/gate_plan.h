// SPDX-License-Identifier: Apache-2.0
// The gate of Chunk KDA as the host sees it: which attributes and tensors go together.
#ifndef FLA_COMMON_HOST_STAGES_GATE_PLAN_H
#define FLA_COMMON_HOST_STAGES_GATE_PLAN_H

#include "op_call.h"
#include "plan.h"
#include "prepare/prepare_tiling_data.h"

namespace fla
{

/// Refuses gate parameters without their gate, and a bound that the cube path could not hold.
/// Reads use_gate_in_kernel, safe_gate, lower_bound, a_log and dt_bias.
Plan CheckGate(const OpCall &call);

/// Which gate a checked call asks for.
PrepareGate GateOf(const OpCall &call);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_GATE_PLAN_H
