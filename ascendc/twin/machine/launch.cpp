// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include "checked.h"
#include "fast.h"
#include "options.h"
#include "subnormals.h"

namespace twin
{

Result Run(const Launch &launch)
{
    Options options = Options::Read();
    if (!options.error.empty()) {
        return Result{kStatusFault, options.error};
    }
    if (launch.blockDim == 0) {
        return Result{kStatusFault, "op " + std::string(launch.kernel->op) +
                                        ": blockDim is 0; launch at least one group"};
    }
    FlushSubnormals flush;
    return options.checked ? RunChecked(launch, options) : RunFast(launch, options);
}

uint32_t CubeCores()
{
    return Options::Read().CubeCores();
}

}  // namespace twin
