// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_gated_delta_rule_bwd_dhu tells its kernel: the tiling of its one stage.
#ifndef CHUNK_GATED_DELTA_RULE_BWD_DHU_TILING_DATA_H
#define CHUNK_GATED_DELTA_RULE_BWD_DHU_TILING_DATA_H

#include "state_grad/state_grad_tiling_data.h"

struct ChunkGatedDeltaRuleBwdDhuTilingData {
    StateGradTiling stateGrad;
};

#endif  // CHUNK_GATED_DELTA_RULE_BWD_DHU_TILING_DATA_H
