// SPDX-License-Identifier: Apache-2.0
#include "contract.h"

#include <algorithm>

#include "contract_check.h"

namespace fla
{
namespace
{

std::vector<std::string> Split(const std::string &text, char at)
{
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, at);) {
        if (!part.empty()) {
            parts.push_back(part);
        }
    }
    return parts;
}

}  // namespace

Param &Param::Types(std::vector<DType> accepted)
{
    dtypes = std::move(accepted);
    return *this;
}

Param &Param::Dims(const std::string &layout, const std::string &letters)
{
    DimsRule rule{layout, letters, {}};
    for (const std::string &axis : Split(letters, ' ')) {
        rule.axes.push_back(Split(axis, '*'));
    }
    rules.push_back(std::move(rule));
    return *this;
}

Param &Param::Optional()
{
    optional = true;
    return *this;
}

Param &Param::PresentIf(const std::string &flag)
{
    presentIf = flag;
    return *this;
}

Param &Param::Refused(const std::string &reason)
{
    refused = reason;
    return *this;
}

Param &Param::Windows(bool onlyFirst)
{
    windows = true;
    onlyFirstWindow = onlyFirst;
    return *this;
}

Param &Param::Values(std::vector<int64_t> accepted)
{
    intValues = std::move(accepted);
    return *this;
}

Param &Param::Values(std::vector<std::string> accepted)
{
    textValues = std::move(accepted);
    return *this;
}

Param &Contract::Add(Role role, const std::string &name)
{
    params_.emplace_back(role, name);
    return params_.back();
}

void Contract::Mode(const std::string &mode, std::vector<std::string> outputs)
{
    modes_.emplace_back(mode, std::move(outputs));
}

Refusal Contract::Check(OpCall &call) const
{
    return ContractCheck(*this, call, true).Run();
}

Refusal Contract::CheckInputs(OpCall &call) const
{
    return ContractCheck(*this, call, false).Run();
}

std::vector<int64_t> Contract::ShapeOf(const Param &param, const OpCall &call) const
{
    const std::string layout = layoutAttr_.empty() ? "" : call.Text(layoutAttr_);
    std::vector<int64_t> shape;
    for (const Param::DimsRule &rule : param.rules) {
        if (rule.layout.empty() || rule.layout == layout) {
            for (const std::vector<std::string> &factors : rule.axes) {
                int64_t size = 1;
                for (const std::string &factor : factors) {
                    size *= factor[0] <= '9' ? std::stoll(factor) : call.Dim(factor);
                }
                shape.push_back(size);
            }
            break;
        }
    }
    return shape;
}

std::string DTypeName(DType dtype)
{
    switch (dtype) {
        case DType::kFloat:
            return "float32";
        case DType::kFloat16:
            return "float16";
        case DType::kInt32:
            return "int32";
        case DType::kInt64:
            return "int64";
        case DType::kBFloat16:
            return "bfloat16";
    }
    return "dtype " + std::to_string(static_cast<int>(dtype));
}

}  // namespace fla
