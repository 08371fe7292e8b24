// SPDX-License-Identifier: Apache-2.0
// Tiling of the output_grad stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_OUTPUT_GRAD_TILING_DATA_H
#define FLA_OUTPUT_GRAD_TILING_DATA_H

#include <cstdint>

struct OutputGradTiling {
    uint32_t tokens;       // T of one batch entry
    uint32_t valueHeads;   // HV
    uint32_t sequences;    // N
    uint32_t chunks;       // NT of one batch entry, or of all packed sequences
    uint32_t packed;       // 1 = cu_seqlens and chunk_indices are given
    uint32_t stateVFirst;  // h tiles are [V, K]
    float scale;           // of dAqk
};

/// Workspace of one group: two rings of [64, 64] tiles, one tile per vector core in each slot.
/// Masked Aqk in bf16 on the way to the cube, dO @ v_new^T in fp32 on the way back.
constexpr uint32_t kOutputGradRingDepth = 2;
constexpr uint32_t kOutputGradMaskedBytes = kOutputGradRingDepth * 2 * 64 * 64 * 2;
constexpr uint32_t kOutputGradScoreBytes = kOutputGradRingDepth * 2 * 64 * 64 * 4;
constexpr uint32_t kOutputGradGroupBytes = kOutputGradMaskedBytes + kOutputGradScoreBytes;

#endif  // FLA_OUTPUT_GRAD_TILING_DATA_H
