// SPDX-License-Identifier: Apache-2.0
// The place of an intermediate, as plans and kernels of aggregates agree on it.
#ifndef FLA_AGGREGATE_RELAY_TILING_DATA_H
#define FLA_AGGREGATE_RELAY_TILING_DATA_H

#include <cstdint>

namespace fla
{

/// In the tensor that the caller gave. Any other place is a byte offset in the workspace.
constexpr uint64_t kInTensor = ~uint64_t{0};

}  // namespace fla
#endif  // FLA_AGGREGATE_RELAY_TILING_DATA_H
