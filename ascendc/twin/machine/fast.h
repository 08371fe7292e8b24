// SPDX-License-Identifier: Apache-2.0
// The fast machine: groups of three fibers on a few OS threads, flags as counters, nothing else.
#ifndef FLA_TWIN_MACHINE_FAST_H
#define FLA_TWIN_MACHINE_FAST_H

#include "launch.h"
#include "options.h"

namespace twin
{

Result RunFast(const Launch &launch, const Options &options);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_FAST_H
