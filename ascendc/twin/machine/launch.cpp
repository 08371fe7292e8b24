// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include "checked.h"
#include "fast.h"
#include "options.h"
#include "prims/prims.h"
#include "subnormals.h"

namespace twin
{

Result Run(const Launch &launch)
{
    Options options = Options::Read();
    if (!options.error.empty()) {
        return Result{kStatusFault, options.error};
    }
    if (!UseIsa(options.isa.c_str())) {
        return Result{kStatusFault, "FLA_NPU_TWIN_ISA=" + options.isa +
                                        " is not understood; use baseline, avx2 or avx512, as far "
                                        "as the CPU has them"};
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
