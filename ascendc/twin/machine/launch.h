// SPDX-License-Identifier: Apache-2.0
// Starting a kernel: what the ACL side hands to the machine and gets back.
#ifndef FLA_TWIN_MACHINE_LAUNCH_H
#define FLA_TWIN_MACHINE_LAUNCH_H

#include <cstdint>
#include <string>
#include <vector>

#include "types.h"

namespace twin
{

/// A stretch of global memory the kernel may touch. Overlapping ranges are legal when a caller
/// aliases arguments.
struct GmRange {
    void *base;
    uint64_t bytes;
    enum Kind { kInput, kOutput, kInOut, kWorkspace, kTiling } kind;
    const char *name;
};

/// args are the GM_ADDRs in kernel order: inputs, outputs, workspace, tiling.
using KernelFn = void (*)(void *const *args);

/// One per operator, exported by its kernel library as `extern "C" const twin::KernelEntry
/// fla_kernel_<op>`. A core type the kernel has no code for is null.
struct KernelEntry {
    const char *op;
    KernelFn fastAic, fastAiv, checkedAic, checkedAiv;
};

struct Launch {
    const KernelEntry *kernel;
    void *const *args;
    std::vector<GmRange> gm;  // read by the checked machine only
    uint32_t blockDim;        // groups (MIX, AIC) or vector cores (AIV only)
};

/// status is 0, or 507015 (device exception) with one line of text.
struct Result {
    int status;
    std::string message;
};
constexpr int kStatusFault = 507015;

TWIN_EXPORT Result Run(const Launch &launch);

/// AIC count that tiling is told: from the number of OS threads in the fast machine, the chip's in
/// the checked.
TWIN_EXPORT uint32_t CubeCores();

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_LAUNCH_H
