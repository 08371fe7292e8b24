// SPDX-License-Identifier: Apache-2.0
// Inputs and attributes are numbered as the OpDef lists them: contract order, tensors and integer
// arrays counting as inputs. Operators with optional outputs have one attribute more, the last:
// output_mask, bit i set when output i is wanted (an unwanted one is a placeholder).
#include "host_entry.h"

#include <algorithm>
#include <cstdio>

#include "tiling/platform/platform_ascendc.h"

namespace fla
{
namespace cann
{
namespace
{

const gert::Shape *InputShape(const gert::TilingContext &context, size_t index)
{
    const gert::StorageShape *shape = context.GetOptionalInputShape(index);
    return shape == nullptr ? nullptr : &shape->GetStorageShape();
}

const gert::Shape *InputShape(const gert::InferShapeContext &context, size_t index)
{
    return context.GetOptionalInputShape(index);
}

TensorArg Argument(const gert::Shape &shape, ge::DataType dtype)
{
    TensorArg arg;
    arg.dtype = static_cast<DType>(dtype);  // ge and acl number dtypes alike
    for (size_t axis = 0; axis < shape.GetDimNum(); ++axis) {
        arg.dims.push_back(shape.GetDim(axis));
    }
    return arg;
}

void ReadAttribute(const Param &param, const gert::RuntimeAttrs &attrs, size_t index, OpCall &call)
{
    if (param.role == Role::kBool) {
        const bool *value = attrs.GetBool(index);
        call.ints[param.name] = value != nullptr && *value ? 1 : 0;
    } else if (param.role == Role::kInt) {
        const int64_t *value = attrs.GetInt(index);
        call.ints[param.name] = value != nullptr ? *value : 0;
    } else if (param.role == Role::kDouble) {
        const float *value = attrs.GetFloat(index);
        call.reals[param.name] = value != nullptr ? *value : 0.0;
    } else if (attrs.GetStr(index) != nullptr) {
        call.texts[param.name] = attrs.GetStr(index);
    }
}

/// Inputs and attributes into `call`; returns how many attributes the contract has.
template <typename Context>
size_t ReadInputs(const Contract &contract, const Context &context, OpCall &call)
{
    size_t input = 0, attr = 0;
    for (const Param &param : contract.Params()) {
        if (param.role == Role::kInput) {
            const gert::Shape *shape = InputShape(context, input);
            const gert::CompileTimeTensorDesc *desc = context.GetOptionalInputDesc(input);
            if (shape != nullptr && desc != nullptr) {
                call.tensors[param.name] = Argument(*shape, desc->GetDataType());
            }
            ++input;
        } else if (param.role == Role::kInts) {
            const gert::Tensor *tensor = context.GetOptionalInputTensor(input++);
            const int64_t *data = tensor == nullptr ? nullptr : tensor->GetData<int64_t>();
            if (data != nullptr) {
                call.intArrays[param.name].assign(data, data + tensor->GetShapeSize());
            }
        } else if (param.role != Role::kOutput && context.GetAttrs() != nullptr) {
            ReadAttribute(param, *context.GetAttrs(), attr++, call);
        }
    }
    return attr;
}

void ReadOutputs(const Contract &contract, const gert::TilingContext &context, size_t maskAttr,
                 OpCall &call)
{
    const int64_t *mask =
        context.GetAttrs() == nullptr ? nullptr : context.GetAttrs()->GetInt(maskAttr);
    size_t output = 0;
    for (const Param &param : contract.Params()) {
        if (param.role != Role::kOutput) {
            continue;
        }
        const bool wanted = !param.optional || mask == nullptr || (*mask >> output & 1) != 0;
        const gert::StorageShape *shape = context.GetOutputShape(output);
        const gert::CompileTimeTensorDesc *desc = context.GetOutputDesc(output);
        if (wanted && shape != nullptr && desc != nullptr) {
            call.tensors[param.name] = Argument(shape->GetStorageShape(), desc->GetDataType());
        }
        ++output;
    }
}

ge::graphStatus Report(const std::string &refusal)
{
    std::fprintf(stderr, "fla-npu: %s\n", refusal.c_str());
    return ge::GRAPH_FAILED;
}

/// Shapes may be unknown when a graph is compiled, and so may offsets that outputs depend on.
bool ShapesKnown(const Contract &contract, const OpCall &call)
{
    for (const Param &param : contract.Params()) {
        if (param.role == Role::kInts && !param.optional && call.Ints(param.name) == nullptr) {
            return false;
        }
    }
    return std::all_of(call.tensors.begin(), call.tensors.end(), [](const auto &entry) {
        const std::vector<int64_t> &dims = entry.second.dims;
        return std::all_of(dims.begin(), dims.end(), [](int64_t size) { return size >= 0; });
    });
}

/// Number of an input among all inputs.
size_t InputIndex(const Contract &contract, const std::string &name)
{
    size_t index = 0;
    for (const Param &param : contract.Params()) {
        if (param.name == name) {
            break;
        }
        index += param.role == Role::kInput || param.role == Role::kInts ? 1 : 0;
    }
    return index;
}

}  // namespace

ge::graphStatus Tiling(const Contract &contract, PlanOp plan, gert::TilingContext &context)
{
    OpCall call;
    const size_t maskAttr = ReadInputs(contract, context, call);
    ReadOutputs(contract, context, maskAttr, call);
    const Refusal refusal = contract.Check(call);
    if (refusal.Refuses()) {
        return Report(refusal.text);
    }
    const platform_ascendc::PlatformAscendC platform(context.GetPlatformInfo());
    const ChipSpec chip{platform.GetCoreNumAic(), platform.GetCoreNumAiv(), kSystemWorkspace};
    const Plan made = plan(call, chip);
    if (made.status != kOk) {
        return Report(made.refusal);
    }
    gert::TilingData *buffer = context.GetRawTilingData();
    size_t *workspaces = context.GetWorkspaceSizes(1);
    if (buffer == nullptr || workspaces == nullptr || buffer->GetCapacity() < made.tiling.size()) {
        return Report(contract.Op() + ": no room for " + std::to_string(made.tiling.size()) +
                      " bytes of tiling data");
    }
    std::memcpy(buffer->GetData(), made.tiling.data(), made.tiling.size());
    buffer->SetDataSize(made.tiling.size());
    context.SetBlockDim(made.blockDim);
    context.SetScheduleMode(1);  // all blocks start together: they wait for each other's flags
    workspaces[0] = kSystemWorkspace + made.workspaceBytes;
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferShapes(const Contract &contract, gert::InferShapeContext &context,
                            const Names &mutated)
{
    OpCall call;
    ReadInputs(contract, context, call);
    const bool known = ShapesKnown(contract, call);
    const Refusal refusal = known ? contract.CheckInputs(call) : Refusal{};
    if (refusal.Refuses()) {
        return Report(refusal.text);
    }
    size_t output = 0;
    for (const Param &param : contract.Params()) {
        if (param.role != Role::kOutput) {
            continue;
        }
        gert::Shape *shape = context.GetOutputShape(output++);
        if (shape == nullptr) {
            return Report(contract.Op() + ": no shape for output " + param.name);
        }
        shape->SetDimNum(0);
        for (int64_t size : contract.ShapeOf(param, call)) {
            shape->AppendDim(known ? size : -1);
        }
    }
    for (const std::string &name : mutated) {
        const gert::Shape *given = context.GetInputShape(InputIndex(contract, name));
        gert::Shape *shape = context.GetOutputShape(output++);
        if (given == nullptr || shape == nullptr) {
            return Report(contract.Op() + ": no shape for " + name + ", which is written");
        }
        *shape = *given;
    }
    return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferDataTypes(const Contract &contract, gert::InferDataTypeContext &context,
                               const Names &mutated)
{
    size_t output = 0;
    for (const Param &param : contract.Params()) {
        if (param.role == Role::kOutput) {
            context.SetOutputDataType(output++, static_cast<ge::DataType>(param.dtypes.front()));
        }
    }
    for (const std::string &name : mutated) {
        context.SetOutputDataType(output++, context.GetInputDataType(InputIndex(contract, name)));
    }
    return ge::GRAPH_SUCCESS;
}

}  // namespace cann
}  // namespace fla
