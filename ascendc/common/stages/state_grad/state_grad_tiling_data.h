// SPDX-License-Identifier: Apache-2.0
// Tiling of the state_grad stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_STATE_GRAD_TILING_DATA_H
#define FLA_STATE_GRAD_TILING_DATA_H

#include <cstdint>

struct StateGradTiling {
    uint32_t tokens;           // T of one batch entry
    uint32_t valueHeads;       // HV
    uint32_t headsPerGroup;    // HV / HK, HK the heads of qg and kg
    uint32_t sequences;        // N
    uint32_t chunks;           // NT of one batch entry, or of all packed sequences
    uint32_t packed;           // 1 = cu_seqlens and chunk_indices are given
    uint32_t hasGate;          // 0 = no gk, no decay
    uint32_t gateIsBf16;       // gk: 1 = bf16, 0 = fp32
    uint32_t gateIsBase2;      // gk counts in powers of 2 (1) or of e (0)
    uint32_t finalGradient;    // dht: 0 = none (zeros), else a StateDtype
    uint32_t initialGradient;  // dh0: 0 = not wanted, else a StateDtype
    uint32_t stateVFirst;      // tiles of dht and dh0 are [V, K]
    uint32_t summary;  // 1 = gradients are [E | M] of a window, and no dh or dv_scan is kept
    float scale;       // of the queries
};

/// Items a group serves in turn, and its workspace. A lane has one slot for the products that answer
/// the vector cores, and two for the product of queries and output gradients, which runs ahead. All
/// of them fp32 [128, 128].
constexpr uint32_t kStateGradLanes = 2;
constexpr uint32_t kStateGradQuerySlots = 2;
constexpr uint32_t kStateGradLaneBytes = (1 + kStateGradQuerySlots) * 128 * 128 * 4;
constexpr uint32_t kStateGradGroupBytes = kStateGradLanes * kStateGradLaneBytes;

#endif  // FLA_STATE_GRAD_TILING_DATA_H
