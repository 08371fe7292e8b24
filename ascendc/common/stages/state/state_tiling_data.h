// SPDX-License-Identifier: Apache-2.0
// Tiling of the state stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_STATE_TILING_DATA_H
#define FLA_STATE_TILING_DATA_H

#include <cstdint>

struct StateTiling {
    uint32_t tokens;         // T of one batch entry
    uint32_t valueHeads;     // HV
    uint32_t headsPerGroup;  // HV / HK, HK the heads of kg
    uint32_t sequences;      // N
    uint32_t chunks;         // NT of one batch entry, or of all packed sequences
    uint32_t packed;         // 1 = cu_seqlens and chunk_indices are given
    uint32_t gateIsBf16;     // gk: 1 = bf16, 0 = fp32
    uint32_t gateIsBase2;    // gk counts in powers of 2 (1) or of e (0)
    uint32_t initialState;   // 0 = none (zeros), else a StateDtype
    uint32_t finalState;     // 0 = not wanted, else a StateDtype
    uint32_t stateVFirst;    // state tiles are [V, K]
    uint32_t valuesAreWide;  // u: 1 = fp32, 0 = bf16
    uint32_t valuePlanes;    // of v_new: 1 = bf16(v_new), 2 = and behind it what that leaves
    uint32_t summary;        // 1 = states are [E | M] of windows, and no h or v_new is kept
};

/// What a state port holds.
enum StateDtype : uint32_t { kStateAbsent = 0, kStateFloat = 1, kStateBf16 = 2 };

/// Items a group serves in turn, and its workspace: one fp32 product [128, 128] per lane.
constexpr uint32_t kStateLanes = 2;
constexpr uint32_t kStateExchangeBytes = kStateLanes * 128 * 128 * 4;

#endif  // FLA_STATE_TILING_DATA_H
