// SPDX-License-Identifier: Apache-2.0
// Tiling of the output stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_OUTPUT_TILING_DATA_H
#define FLA_OUTPUT_TILING_DATA_H

#include <cstdint>

struct OutputTiling {
    uint32_t tokens;       // T of one batch entry
    uint32_t valueHeads;   // HV
    uint32_t sequences;    // N
    uint32_t chunks;       // NT of one batch entry, or of all packed sequences
    uint32_t packed;       // 1 = cu_seqlens and chunk_indices are given
    uint32_t tokenMajor;   // attn_out: 1 = [B, T, HV, V], 0 = [B, HV, T, V]
    uint32_t stateVFirst;  // h tiles are [V, K]
};

/// Workspace of one group: masked Aqk tiles [64, 64] bf16, one per vector core in each slot of the
/// ring.
constexpr uint32_t kOutputRingDepth = 2;
constexpr uint32_t kOutputRingBytes = kOutputRingDepth * 2 * 64 * 64 * 2;

#endif  // FLA_OUTPUT_TILING_DATA_H
