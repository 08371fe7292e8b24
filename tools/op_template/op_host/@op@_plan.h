// SPDX-License-Identifier: Apache-2.0
// Tiling of @op@: a pure function of the call and the chip.
#ifndef @OP@_PLAN_H
#define @OP@_PLAN_H

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla {

/// The launch of a call that has passed the contract check, or a refusal.
Plan Plan@OpType@(const OpCall &call, const ChipSpec &chip);

}  // namespace fla
#endif  // @OP@_PLAN_H
