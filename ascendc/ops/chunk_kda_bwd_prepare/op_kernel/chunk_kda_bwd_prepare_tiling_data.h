// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_kda_bwd_prepare tells its kernel: the tiling of its one stage.
#ifndef CHUNK_KDA_BWD_PREPARE_TILING_DATA_H
#define CHUNK_KDA_BWD_PREPARE_TILING_DATA_H

#include "output_grad/output_grad_tiling_data.h"

struct ChunkKdaBwdPrepareTilingData {
    OutputGradTiling outputGrad;
};

#endif  // CHUNK_KDA_BWD_PREPARE_TILING_DATA_H
