// SPDX-License-Identifier: Apache-2.0
// Tiling data of chunk_kda_fwd_v2: that of its stages, and where the intermediates lie. The plan
// sets every field.
#ifndef CHUNK_KDA_FWD_V2_TILING_DATA_H
#define CHUNK_KDA_FWD_V2_TILING_DATA_H

#include "aggregate/relay_tiling_data.h"
#include "output/output_tiling_data.h"
#include "prepare/prepare_tiling_data.h"
#include "state/state_tiling_data.h"

/// What one stage leaves for another.
enum ForwardRelay : uint32_t {
    kForwardGk,
    kForwardW,
    kForwardWideU,
    kForwardKg,
    kForwardQgScaled,
    kForwardVNew,
    kForwardH,
    kForwardRelays
};

struct ChunkKdaFwdV2TilingData {
    PrepareTiling prepare;
    StateTiling state;
    OutputTiling output;
    uint64_t relay[kForwardRelays];  // a place (relay_tiling_data.h) each
    uint64_t scratch;                // workspace of the stages, one after another
};

#endif  // CHUNK_KDA_FWD_V2_TILING_DATA_H
