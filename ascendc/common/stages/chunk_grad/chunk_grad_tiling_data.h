// SPDX-License-Identifier: Apache-2.0
// Tiling of the chunk_grad stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_CHUNK_GRAD_TILING_DATA_H
#define FLA_CHUNK_GRAD_TILING_DATA_H

#include <cstdint>

#include "prepare/prepare_tiling_data.h"

struct ChunkGradTiling {
    uint32_t tokens;         // T of one batch entry
    uint32_t valueHeads;     // HV
    uint32_t headsPerGroup;  // HV / HK
    uint32_t sequences;      // N
    uint32_t chunks;         // NT of one batch entry, or of all packed sequences
    uint32_t packed;         // 1 = cu_seqlens and chunk_indices are given
    uint32_t gate;           // a PrepareGate
    uint32_t gateIsBf16;     // raw_g: 1 = bf16, 0 = fp32
    uint32_t hasBias;        // dt_bias is given
    uint32_t aLogIsBf16;     // a_log: 1 = bf16, 0 = fp32
    uint32_t betaIsBf16;     // beta and dbeta: 1 = bf16, 0 = fp32
    uint32_t hasRstd;        // dq and dk go through the l2norm
    uint32_t keysAreWide;    // dq and dk: 1 = fp32, 0 = bf16
    uint32_t planes;         // v_new is the sum of this many planes
    uint32_t stateVFirst;    // h is [V, K]
    uint32_t sumsBias;       // ddt_bias is given
    float scale;
    float lowerBound;  // of the bounded gate
};

/// GM workspace, in bytes (chunk_grad.h): a ring of slots per vector core, then its sums of dq and
/// dk over a group; for the whole launch one record of parameter gradients per chunk and head.
constexpr uint32_t kChunkGradSlots = 2;
constexpr uint32_t kChunkGradLevels = 4;  // extra operands where the gate has no bound
constexpr uint32_t kChunkGradSlotBytes = 600 * 1024;
constexpr uint32_t kChunkGradLevelBytes = 200 * 1024;
constexpr uint32_t kChunkGradSumBytes = 64 * 1024;
constexpr uint32_t kChunkGradRecordBytes = 1024;

/// Bytes of a slot.
constexpr uint32_t ChunkGradSlotBytes(uint32_t gate)
{
    return kChunkGradSlotBytes +
           (gate == kGateBounded ? 0 : kChunkGradLevels * kChunkGradLevelBytes);
}

/// Workspace bytes of one vector core.
constexpr uint32_t ChunkGradCoreBytes(uint32_t gate)
{
    return kChunkGradSlots * ChunkGradSlotBytes(gate) + kChunkGradSumBytes;
}

/// Chunks of all sequences.
constexpr uint64_t ChunkGradChunks(const ChunkGradTiling &t)
{
    return t.packed ? t.chunks : static_cast<uint64_t>(t.sequences) * t.chunks;
}

/// Workspace bytes of the records, in front of what belongs to the cores: [HV][chunks].
constexpr uint64_t ChunkGradRecords(const ChunkGradTiling &t)
{
    return t.gate == kGateNone ? 0 : ChunkGradChunks(t) * t.valueHeads * kChunkGradRecordBytes;
}

#endif  // FLA_CHUNK_GRAD_TILING_DATA_H
