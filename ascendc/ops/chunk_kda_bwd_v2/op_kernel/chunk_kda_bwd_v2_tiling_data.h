// SPDX-License-Identifier: Apache-2.0
// Tiling data of chunk_kda_bwd_v2: that of the backward stages in a row.
#ifndef CHUNK_KDA_BWD_V2_TILING_DATA_H
#define CHUNK_KDA_BWD_V2_TILING_DATA_H

#include "aggregate/backward_tiling_data.h"

struct ChunkKdaBwdV2TilingData {
    BackwardTiling backward;
};

#endif  // CHUNK_KDA_BWD_V2_TILING_DATA_H
