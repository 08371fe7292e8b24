// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_kda_fwd_prepare tells its kernel: the tiling of its one stage.
#ifndef CHUNK_KDA_FWD_PREPARE_TILING_DATA_H
#define CHUNK_KDA_FWD_PREPARE_TILING_DATA_H

#include "prepare/prepare_tiling_data.h"

struct ChunkKdaFwdPrepareTilingData {
    PrepareTiling prepare;
};

#endif  // CHUNK_KDA_FWD_PREPARE_TILING_DATA_H
