// SPDX-License-Identifier: Apache-2.0
// Tiling of the prepare stage: plain data shared by plans and kernels. A plan sets every field.
#ifndef FLA_PREPARE_TILING_DATA_H
#define FLA_PREPARE_TILING_DATA_H

#include <cstdint>

struct PrepareTiling {
    uint32_t tokens;         // T of one batch entry
    uint32_t valueHeads;     // HV
    uint32_t headsPerGroup;  // HV / HK
    uint32_t sequences;      // N
    uint32_t chunks;         // NT of one batch entry, or of all packed sequences
    uint32_t packed;         // 1 = cu_seqlens and chunk_indices are given
    uint32_t tokenMajor;     // inputs are [B, T, H, *] (1) or [B, H, T, *] (0)
    uint32_t gate;           // a PrepareGate
    uint32_t gateIsBf16;     // g: 1 = bf16, 0 = fp32
    uint32_t hasBias;        // dt_bias is given
    uint32_t betaIsBf16;     // beta: 1 = bf16, 0 = fp32
    uint32_t betaSigmoids;   // 0 = beta as it is, 1 = sigmoid(beta), 2 = 2 * sigmoid(beta)
    uint32_t l2norm;         // q and k are normalised here
    uint32_t gateIsBase2;    // gk counts in powers of 2 (1) or of e (0)
    uint32_t outputs;        // bits of PrepareOutput
    float scale;
    float epsilon;
    float lowerBound;  // of the bounded gate
};

/// How a step gamma comes out of g.
enum PrepareGate : uint32_t {
    kGateNone = 0,      // gamma = g
    kGateSoftplus = 1,  // gamma = -exp(a_log) * softplus(g + dt_bias)
    kGateBounded = 2,   // gamma = lowerBound * sigmoid(exp(a_log) * (g + dt_bias))
};

/// Outputs that an operator may do without. gk, aqk, w and kg always exist.
enum PrepareOutput : uint32_t {
    kOutAkk = 1 << 0,
    kOutU = 1 << 1,      // bf16
    kOutWideU = 1 << 2,  // the same in fp32
    kOutQg = 1 << 3,
    kOutQgScaled = 1 << 4,
    kOutQHat = 1 << 5,
    kOutKHat = 1 << 6,
    kOutQRstd = 1 << 7,
    kOutKRstd = 1 << 8,
    kOutBetaEff = 1 << 9,
    kOutHats = kOutQHat | kOutKHat | kOutQRstd | kOutKRstd | kOutBetaEff,
};

/// GM workspace of one vector core, in bytes: a ring of slots, then the unit tile (prepare.h).
constexpr uint32_t kPrepareSlots = 2;
constexpr uint32_t kPrepareSlotBytes = 139 * 1024;
constexpr uint32_t kPrepareLevels = 5;  // extra operand tiles where the gate has no bound
constexpr uint32_t kPrepareLevelBytes = (32 + 8) * 1024;
constexpr uint32_t kPrepareUnitBytes = 4 * 1024;

/// Workspace bytes of one vector core.
constexpr uint32_t PrepareCoreBytes(uint32_t gate)
{
    return kPrepareSlots * (kPrepareSlotBytes +
                            (gate == kGateBounded ? 0 : kPrepareLevels * kPrepareLevelBytes)) +
           kPrepareUnitBytes;
}

#endif  // FLA_PREPARE_TILING_DATA_H
