// SPDX-License-Identifier: Apache-2.0
// The chip as tiling sees it. What differs between chips is a value in this struct, nothing else.
#ifndef FLA_COMMON_HOST_CHIP_H
#define FLA_COMMON_HOST_CHIP_H

#include <cstdint>

namespace fla
{

struct ChipSpec {
    uint32_t cubeCores;        // AIC count = number of groups a MIX kernel may launch
    uint32_t vectorCores;      // AIV count, two per AIC on arch 220
    uint64_t systemWorkspace;  // bytes the framework takes in front of the user workspace
};

/// Bytes the 220 family reserves in front of every MIX kernel's workspace.
constexpr uint64_t kSystemWorkspace = 16ULL << 20;

}  // namespace fla
#endif  // FLA_COMMON_HOST_CHIP_H
