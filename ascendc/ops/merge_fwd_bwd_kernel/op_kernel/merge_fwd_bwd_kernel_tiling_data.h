// SPDX-License-Identifier: Apache-2.0
// What the plan of merge_fwd_bwd_kernel tells its kernel. A plan sets every field.
#ifndef MERGE_FWD_BWD_KERNEL_TILING_DATA_H
#define MERGE_FWD_BWD_KERNEL_TILING_DATA_H

#include <cstdint>

struct MergeFwdBwdKernelTilingData {
    uint32_t heads;        // HV
    uint32_t count;        // N, maps that are joined; 0 = zeros
    uint32_t first;        // rank of the first of them
    uint32_t backwards;    // the next one is the rank after (0) or before (1)
    uint32_t stateVFirst;  // the result is [V, K]
    uint32_t isBf16;       // h and ag_hm: 1 = bf16, 0 = fp32
    uint32_t laneColumns;  // of V that a lane serves, 32 or 16; two lanes are an item
};

/// Workspace of a group, in bytes: the unit tile and a running tile per lane (fold.h), and with bf16
/// behind them a ring of widened maps.
constexpr uint32_t kFoldLanes = 2;
constexpr uint32_t kFoldRing = 2;
constexpr uint32_t kFoldUnitBytes = 32 * 32 * 4;
constexpr uint32_t kFoldRunningBytes = 128 * 32 * 4;
constexpr uint32_t kFoldNarrowBytes = kFoldUnitBytes + kFoldLanes * kFoldRunningBytes;
constexpr uint32_t kFoldWidenedBytes = 128 * (kFoldLanes * 32 + 128) * 4;
constexpr uint32_t kFoldGroupBytes = kFoldNarrowBytes + kFoldRing * kFoldWidenedBytes;

#endif  // MERGE_FWD_BWD_KERNEL_TILING_DATA_H
