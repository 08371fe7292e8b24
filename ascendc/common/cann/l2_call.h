// SPDX-License-Identifier: Apache-2.0
// Phase 1 of an aclnn call on CANN: the same contract and plan as on the twin, then opdev's
// executor.
#ifndef FLA_COMMON_CANN_L2_CALL_H
#define FLA_COMMON_CANN_L2_CALL_H

#include <string>

#include "aclnn/aclnn_base.h"
#include "contract.h"

namespace fla
{

using PlanOp = Plan (*)(const OpCall &call, const ChipSpec &chip);

namespace cann
{

class L2Call
{
  public:
    explicit L2Call(const Contract &contract) : contract_(contract) {}

    L2Call &In(const char *name, const aclTensor *tensor) { return Tensor(name, tensor, false); }
    L2Call &Out(const char *name, const aclTensor *tensor) { return Tensor(name, tensor, true); }
    L2Call &Ints(const char *name, const aclIntArray *values);
    L2Call &Attr(const char *name, bool value);
    L2Call &Attr(const char *name, int64_t value);
    L2Call &Attr(const char *name, double value);
    L2Call &Attr(const char *name, const char *value);

    /// Contract, then plan. Refusals are logged and reported to aclGetRecentErrMsg.
    aclnnStatus Check(PlanOp plan);
    /// False when the plan has no work; then phase 2 runs an empty executor.
    bool Launches() const { return launches_; }
    /// Bit i is set when output i was given.
    int64_t OutputMask() const { return outputMask_; }

    // What the kernel is given. A null result means that the executor is out of memory, unless the
    // argument was null itself; Complete() tells.
    const aclTensor *Ready(const aclTensor *input, aclOpExecutor *executor);
    const aclTensor *ReadyInts(const char *name, aclOpExecutor *executor);
    const aclTensor *ReadyOutput(const char *name, const aclTensor *output,
                                 aclOpExecutor *executor);
    bool Complete() const { return complete_; }

  private:
    L2Call &Tensor(const char *name, const aclTensor *tensor, bool output);

    const Contract &contract_;
    OpCall call_;
    int64_t outputMask_ = 0;
    int outputs_ = 0;
    bool launches_ = true, complete_ = true;
};

}  // namespace cann
}  // namespace fla
#endif  // FLA_COMMON_CANN_L2_CALL_H
