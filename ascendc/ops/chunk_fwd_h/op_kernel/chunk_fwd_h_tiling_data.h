// SPDX-License-Identifier: Apache-2.0
// What the plan of chunk_fwd_h tells its kernel: the tiling of its one stage.
#ifndef CHUNK_FWD_H_TILING_DATA_H
#define CHUNK_FWD_H_TILING_DATA_H

#include "state/state_tiling_data.h"

struct ChunkFwdHTilingData {
    StateTiling state;
};

#endif  // CHUNK_FWD_H_TILING_DATA_H
