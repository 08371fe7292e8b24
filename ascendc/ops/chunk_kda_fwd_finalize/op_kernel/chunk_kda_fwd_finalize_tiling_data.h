// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_kda_fwd_finalize tells its kernel: the tiling of its one stage.
#ifndef CHUNK_KDA_FWD_FINALIZE_TILING_DATA_H
#define CHUNK_KDA_FWD_FINALIZE_TILING_DATA_H

#include "output/output_tiling_data.h"

struct ChunkKdaFwdFinalizeTilingData {
    OutputTiling output;
};

#endif  // CHUNK_KDA_FWD_FINALIZE_TILING_DATA_H
