// SPDX-License-Identifier: Apache-2.0
// The two phases of an aclnn call on the twin. The generated entry points name the arguments;
// everything else is here: contract, overlap rules, plan, workspace, copies of strided inputs,
// launch.
#ifndef FLA_COMMON_ACLNN_TWO_PHASE_H
#define FLA_COMMON_ACLNN_TWO_PHASE_H

#include <memory>
#include <string>
#include <vector>

#include "aclnn/acl_meta.h"
#include "contract.h"

namespace fla
{

/// What a generated entry point knows of its operator.
struct OpEntry {
    const Contract *contract;
    const char *opType;                // names the kernel file
    std::vector<std::string> mutated;  // inputs that the operator writes
};

/// Collects the arguments of phase 1 in contract order.
class CallBuilder
{
  public:
    struct Port {
        const char *name;         // a literal of the entry point: outlives every call
        const aclTensor *tensor;  // null: absent, or an integer array
        bool output;
    };
    CallBuilder &In(const char *name, const aclTensor *tensor)
    {
        return Tensor(name, tensor, false);
    }
    CallBuilder &Out(const char *name, const aclTensor *tensor)
    {
        return Tensor(name, tensor, true);
    }
    CallBuilder &Ints(const char *name, const aclIntArray *values);
    CallBuilder &Attr(const char *name, bool value);
    CallBuilder &Attr(const char *name, int64_t value);
    CallBuilder &Attr(const char *name, double value);
    CallBuilder &Attr(const char *name, const char *value);

    OpCall call;
    std::vector<Port> ports;

  private:
    CallBuilder &Tensor(const char *name, const aclTensor *tensor, bool output);
};

/// Phase 1 after the arguments are named: checks, plans, makes the executor.
aclnnStatus PlanCall(const OpEntry &entry, CallBuilder &builder, uint64_t *workspaceSize,
                     aclOpExecutor **executor);

/// Phase 1 with exceptions kept inside the library.
template <typename NameArguments>
aclnnStatus PhaseOne(const OpEntry &entry, uint64_t *workspaceSize, aclOpExecutor **executor,
                     NameArguments &&nameArguments);

/// Phase 2 of every operator.
aclnnStatus PhaseTwo(aclOpExecutor *executor, void *workspace, uint64_t workspaceSize,
                     aclrtStream stream);

aclnnStatus OutOfMemory(const std::string &op);

template <typename NameArguments>
aclnnStatus PhaseOne(const OpEntry &entry, uint64_t *workspaceSize, aclOpExecutor **executor,
                     NameArguments &&nameArguments)
{
    try {
        CallBuilder builder;
        nameArguments(builder);
        return PlanCall(entry, builder, workspaceSize, executor);
    } catch (const std::exception &) {
        return OutOfMemory(entry.contract->Op());
    }
}

}  // namespace fla
#endif  // FLA_COMMON_ACLNN_TWO_PHASE_H
