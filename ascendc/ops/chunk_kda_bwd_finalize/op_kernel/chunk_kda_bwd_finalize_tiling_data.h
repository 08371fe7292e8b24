// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_kda_bwd_finalize tells its kernel: the tiling of its one stage.
#ifndef CHUNK_KDA_BWD_FINALIZE_TILING_DATA_H
#define CHUNK_KDA_BWD_FINALIZE_TILING_DATA_H

#include "chunk_grad/chunk_grad_tiling_data.h"

struct ChunkKdaBwdFinalizeTilingData {
    ChunkGradTiling chunkGrad;
};

#endif  // CHUNK_KDA_BWD_FINALIZE_TILING_DATA_H
