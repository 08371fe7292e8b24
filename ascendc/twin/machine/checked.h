// SPDX-License-Identifier: Apache-2.0
// The checked machine: every core of the chip as a fiber on one OS thread, every rule on.
#ifndef FLA_TWIN_MACHINE_CHECKED_H
#define FLA_TWIN_MACHINE_CHECKED_H

#include "launch.h"
#include "options.h"

namespace twin
{

Result RunChecked(const Launch &launch, const Options &options);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_CHECKED_H
