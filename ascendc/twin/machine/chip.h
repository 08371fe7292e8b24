// SPDX-License-Identifier: Apache-2.0
// Core counts, clock and data rates of the chips the twin can pose as.
#ifndef FLA_TWIN_MACHINE_CHIP_H
#define FLA_TWIN_MACHINE_CHIP_H

#include <cstdint>

#include "instruction.h"

namespace twin
{

struct ChipTable {
    const char *name;
    uint32_t cubeCores;  // AIC; AIV are twice as many
    uint32_t megahertz;
};

/// Looks a chip up by the name of its platform file; null when there is none.
const ChipTable *FindChip(const char *name);
/// The smallest part, which kernels must be planned for.
constexpr const char *kDefaultChip = "Ascend910B3";

/// Bytes per cycle of one core on each route. GM routes take the share that HBM leaves a core when
/// all run (ddr 32 B/cycle); L1 to L0A/L0B is the lower of the two published pairs.
constexpr uint32_t kRouteBytesPerCycle[static_cast<int>(Route::kCount)] = {
    32, 32, 32, 32, 32, 256, 128, 32, 32, 32, 128, 256, 256};

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_CHIP_H
