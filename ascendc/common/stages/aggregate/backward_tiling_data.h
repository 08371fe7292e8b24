// SPDX-License-Identifier: Apache-2.0
// Tiling of the backward stages in a row: that of each, and where the intermediates lie. A plan sets
// every field.
#ifndef FLA_BACKWARD_TILING_DATA_H
#define FLA_BACKWARD_TILING_DATA_H

#include "aggregate/relay_tiling_data.h"
#include "chunk_grad/chunk_grad_tiling_data.h"
#include "output_grad/output_grad_tiling_data.h"
#include "prepare/prepare_tiling_data.h"
#include "state/state_tiling_data.h"
#include "state_grad/state_grad_tiling_data.h"

/// What one stage leaves for another: first what the forward made, then gradients.
enum BackwardRelay : uint32_t {
    kBackwardGk,
    kBackwardAqk,
    kBackwardAkk,
    kBackwardW,
    kBackwardWideU,
    kBackwardQg,
    kBackwardKg,
    kBackwardVNew,
    kBackwardH,
    kBackwardDAqk,
    kBackwardDv,  // dv_local, then dv_scan in its place
    kBackwardDqRaw,
    kBackwardDh,
    kBackwardDALog,
    kBackwardRelays
};

struct BackwardTiling {
    PrepareTiling prepare;  // prepare and state: with recompute only
    StateTiling state;
    OutputGradTiling outputGrad;
    StateGradTiling stateGrad;
    ChunkGradTiling chunkGrad;
    uint32_t recompute;               // 1 = make again what the forward made
    uint64_t relay[kBackwardRelays];  // a place (relay_tiling_data.h) each
    uint64_t scratch;                 // workspace of the stages, one after another
};

#endif  // FLA_BACKWARD_TILING_DATA_H
