// SPDX-License-Identifier: Apache-2.0
// Constants of summaries that plans and kernels share; the tiling is that of the stage that makes
// them.
#ifndef FLA_SUMMARY_TILING_DATA_H
#define FLA_SUMMARY_TILING_DATA_H

#include <cstdint>

#include "state/state_tiling_data.h"
#include "state_grad/state_grad_tiling_data.h"

/// Column blocks of a summary, items of their own: E and M.
constexpr uint32_t kSummaryBlocks = 2;

/// Workspace of a group behind the stage's own: per lane a state [128, 128] and the values of a
/// chunk [64, 128], both bf16, which a stage that keeps nothing passes from vector to cube core.
static_assert(kStateLanes == kStateGradLanes, "both directions use the same slots");
constexpr uint32_t kSummaryStateBytes = kStateLanes * 128 * 128 * 2;
constexpr uint32_t kSummaryValueBytes = kStateLanes * 64 * 128 * 2;
constexpr uint32_t kSummarySlotBytes = kSummaryStateBytes + kSummaryValueBytes;

#endif  // FLA_SUMMARY_TILING_DATA_H
