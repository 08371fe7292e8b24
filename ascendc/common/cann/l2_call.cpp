// SPDX-License-Identifier: Apache-2.0
#include "l2_call.h"

#include "aclnn_kernels/contiguous.h"
#include "opdev/common_types.h"
#include "opdev/op_executor.h"
#include "opdev/op_log.h"
#include "opdev/platform.h"
#include "opdev/tensor_view_utils.h"

namespace fla
{
namespace cann
{

L2Call &L2Call::Tensor(const char *name, const aclTensor *tensor, bool output)
{
    if (tensor != nullptr) {
        TensorArg &arg = call_.tensors[name];
        arg.dtype = static_cast<DType>(tensor->GetDataType());  // ge and acl number dtypes alike
        const op::Shape &shape = tensor->GetViewShape();
        for (size_t axis = 0; axis < shape.GetDimNum(); ++axis) {
            arg.dims.push_back(shape.GetDim(axis));
        }
        arg.contiguous = op::IsContiguous(tensor);
        outputMask_ |= output ? int64_t{1} << outputs_ : 0;
    }
    outputs_ += output ? 1 : 0;
    return *this;
}

L2Call &L2Call::Ints(const char *name, const aclIntArray *values)
{
    if (values != nullptr) {
        call_.intArrays[name].assign(values->GetData(), values->GetData() + values->Size());
    }
    return *this;
}

L2Call &L2Call::Attr(const char *name, bool value)
{
    call_.ints[name] = value ? 1 : 0;
    return *this;
}

L2Call &L2Call::Attr(const char *name, int64_t value)
{
    call_.ints[name] = value;
    return *this;
}

L2Call &L2Call::Attr(const char *name, double value)
{
    call_.reals[name] = value;
    return *this;
}

L2Call &L2Call::Attr(const char *name, const char *value)
{
    if (value != nullptr) {
        call_.texts[name] = value;
    }
    return *this;
}

aclnnStatus L2Call::Check(PlanOp plan)
{
    const Refusal refusal = contract_.Check(call_);
    if (refusal.Refuses()) {
        OP_LOGE(refusal.status, "%s", refusal.text.c_str());
        return refusal.status;
    }
    const op::PlatformInfo &platform = op::GetCurrentPlatformInfo();
    const Plan made =
        plan(call_, {platform.GetCubeCoreNum(), platform.GetVectorCoreNum(), kSystemWorkspace});
    if (made.status != kOk) {
        OP_LOGE(made.status, "%s", made.refusal.c_str());
        return made.status;
    }
    launches_ = made.blockDim != 0;
    return ACLNN_SUCCESS;
}

const aclTensor *L2Call::Ready(const aclTensor *input, aclOpExecutor *executor)
{
    if (input == nullptr) {
        return nullptr;
    }
    const aclTensor *ready = l0op::Contiguous(input, executor);
    complete_ = complete_ && ready != nullptr;
    return ready;
}

const aclTensor *L2Call::ReadyInts(const char *name, aclOpExecutor *executor)
{
    const std::vector<int64_t> *values = call_.Ints(name);
    if (values == nullptr) {
        return nullptr;
    }
    const aclTensor *ready =
        executor->ConvertToTensor(values->data(), values->size(), op::DataType::DT_INT64);
    complete_ = complete_ && ready != nullptr;
    return ready;
}

const aclTensor *L2Call::ReadyOutput(const char *name, const aclTensor *output,
                                     aclOpExecutor *executor)
{
    if (output != nullptr) {
        return output;
    }
    // The kernel never writes it (output_mask says that it is absent), but a kernel binary is
    // chosen by the dtypes of all ports.
    DType dtype = DType::kFloat;
    for (const Param &param : contract_.Params()) {
        dtype = param.name == name ? param.dtypes.front() : dtype;
    }
    const aclTensor *placeholder =
        executor->AllocTensor(op::Shape{1}, static_cast<op::DataType>(dtype));
    complete_ = complete_ && placeholder != nullptr;
    return placeholder;
}

}  // namespace cann
}  // namespace fla
