// SPDX-License-Identifier: Apache-2.0
// The other libraries of this OPP, found by their place relative to libcust_opapi.so and opened
// when an operator is first called. A library of another build is refused.
#ifndef FLA_COMMON_ACLNN_OPP_FILES_H
#define FLA_COMMON_ACLNN_OPP_FILES_H

#include <string>

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace twin
{
struct KernelEntry;
}

namespace fla
{

using PlanFn = void (*)(const OpCall &call, const ChipSpec &chip, Plan &plan);

struct OpLibraries {
    PlanFn plan = nullptr;
    const twin::KernelEntry *kernel = nullptr;
    int status = 0;     // aclnn status when something is missing
    std::string fault;  // and what
};

/// Plan and kernel of one operator. Good answers are kept; a fault is looked at afresh next time.
OpLibraries OpenOp(const std::string &op, const std::string &opType);

}  // namespace fla
#endif  // FLA_COMMON_ACLNN_OPP_FILES_H
