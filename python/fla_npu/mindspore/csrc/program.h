// SPDX-License-Identifier: Apache-2.0
// A recorded sequence of operator calls and rearrangements, replayed without Python: what a compiled
// graph runs. Python records it once per set of shapes (fla_npu.mindspore.record). On the host only.
#ifndef FLA_NPU_BRIDGE_PROGRAM_H
#define FLA_NPU_BRIDGE_PROGRAM_H

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "acl_call.h"

namespace fla_bridge
{

/// A tensor of a program: where its first element is, and how it is laid out.
struct Region {
    int64_t param;   // number of the graph's parameter it lives in, or -1: in the program's scratch
    int64_t offset;  // of the first element, in bytes
    int dtype;       // aclDataType
    std::vector<int64_t> dims;
    std::vector<int64_t> strides;  // in elements
};

/// An operator. The TensorRefs of `values` count in `inputs` and `outputs`, which are dense.
struct CallStep {
    const Target *target;
    std::vector<Value> values;
    std::vector<Region> inputs, outputs;
};

/// to = from, converted to the dtype of `to` (float32 and bfloat16; others only to themselves).
struct CopyStep {
    Region from, to;
};

/// Every byte of a dense region becomes 0.
struct ZeroStep {
    Region to;
};

/// Dense float32: to = factor * s(logit), or with a gradient grad * factor * s(logit) * s(-logit),
/// where s is the sigmoid.
struct SigmoidStep {
    Region logit, to;
    std::vector<Region> grad;  // one or none
    float factor;
};

/// Throws std::runtime_error with this text.
struct RefuseStep {
    std::string text;
};

using Step = std::variant<CallStep, CopyStep, ZeroStep, SigmoidStep, RefuseStep>;

struct Program {
    uint64_t scratch = 0;  // bytes
    std::vector<Step> steps;
};

/// Runs the steps in order on the parameters of the graph; throws std::runtime_error.
void Run(const Program &program, void **params);

/// Programs by key: [number, then rank, dimensions and aclDataType of every parameter].
void Keep(const std::vector<int64_t> &key, std::shared_ptr<const Program> program);
std::shared_ptr<const Program> Find(const std::vector<int64_t> &key);

}  // namespace fla_bridge
#endif  // FLA_NPU_BRIDGE_PROGRAM_H
