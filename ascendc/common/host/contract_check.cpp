// SPDX-License-Identifier: Apache-2.0
#include "contract_check.h"

#include <algorithm>

#include "varlen.h"

namespace fla
{
namespace
{

template <typename Item, typename Format>
std::string Join(const std::vector<Item> &items, const char *between, Format format)
{
    std::ostringstream out;
    for (size_t i = 0; i < items.size(); ++i) {
        out << (i == 0 ? "" : between) << format(items[i]);
    }
    return out.str();
}

template <typename Item>
std::string Join(const std::vector<Item> &items, const char *between)
{
    return Join(items, between, [](const Item &item) { return item; });
}

template <typename Item>
bool Contains(const std::vector<Item> &items, const Item &item)
{
    return std::find(items.begin(), items.end(), item) != items.end();
}

bool IsNumber(const std::string &factor)
{
    return factor[0] >= '0' && factor[0] <= '9';
}

/// "B HV T K" -> "[B, HV, T, K]"
std::string Bracketed(const std::string &letters)
{
    std::string out = "[";
    for (char c : letters) {
        out += c == ' ' ? std::string(", ") : std::string(1, c);
    }
    return out + "]";
}

const char *Article(const Param &param)
{
    return param.role == Role::kOutput ? "output " : "";
}

}  // namespace

template <typename... Parts>
void ContractCheck::Refuse(int status, const Parts &...parts)
{
    if (Refused()) {
        return;
    }
    std::ostringstream text;
    text << contract_.op_ << ": ";
    (text << ... << parts);
    refusal_ = {status, text.str()};
}

Refusal ContractCheck::Run()
{
    for (const Param &param : contract_.params_) {
        if (outputs_ || param.role != Role::kOutput) {
            CheckPresence(param);
        }
        CheckAttribute(param);
    }
    if (outputs_) {
        CheckModes();
    }
    if (!Refused()) {
        layout_ = contract_.layoutAttr_.empty() ? "" : call_.Text(contract_.layoutAttr_);
        for (const auto &[letter, size] : contract_.fixed_) {
            call_.dims[letter] = size;
            owner_[letter] = "fixed";
        }
    }
    for (const Param &param : contract_.params_) {
        if (!Refused() && param.IsTensor() && call_.Has(param.name)) {
            CheckTensor(param);
        }
    }
    if (!Refused()) {
        BindSequences();
    }
    return refusal_;
}

void ContractCheck::CheckPresence(const Param &param)
{
    const bool given = call_.Has(param.name);
    if (!param.refused.empty() && given) {
        Refuse(kInvalid, param.name, " is given; ", param.refused);
    }
    const bool pointer = param.IsTensor() || param.role == Role::kInts;
    if (pointer && !param.optional && !given) {
        Refuse(kNullPointer, Article(param), param.name, " is missing (null); it is required");
    }
    if (param.role == Role::kString && call_.texts.count(param.name) == 0) {
        Refuse(kNullPointer, "attribute ", param.name, " is missing (null); it is one of ",
               Join(param.textValues, ", "));
    }
    if (!param.presentIf.empty() && given != call_.Flag(param.presentIf)) {
        Refuse(kInvalid, "output ", param.name,
               given ? " is given, but " : " is missing (null), but ", param.presentIf,
               given ? " is false" : " is true");
    }
}

void ContractCheck::CheckAttribute(const Param &param)
{
    if (!param.textValues.empty() && !Contains(param.textValues, call_.Text(param.name))) {
        Refuse(kInvalid, param.name, " is \"", call_.Text(param.name), "\"; it must be one of ",
               Join(param.textValues, ", "));
    }
    if (!param.intValues.empty() && !Contains(param.intValues, call_.Int(param.name))) {
        const auto text = [&param](int64_t value) {
            return param.role == Role::kBool ? (value != 0 ? "true" : "false")
                                             : std::to_string(value);
        };
        Refuse(kInvalid, param.name, " is ", text(call_.Int(param.name)), "; it must be ",
               Join(param.intValues, " or ", text));
    }
}

void ContractCheck::CheckModes()
{
    if (contract_.modes_.empty() || Refused()) {
        return;
    }
    std::vector<std::string> given;
    for (const Param &param : contract_.params_) {
        if (param.role == Role::kOutput && param.optional && call_.Has(param.name)) {
            given.push_back(param.name);
        }
    }
    for (const auto &mode : contract_.modes_) {
        const auto wanted = [&mode](const std::string &name) {
            return Contains(mode.second, name);
        };
        if (given.size() == mode.second.size() && std::all_of(given.begin(), given.end(), wanted)) {
            return;
        }
    }
    const auto format = [](const std::pair<std::string, std::vector<std::string>> &mode) {
        return mode.first + " (" + (mode.second.empty() ? "none" : Join(mode.second, ", ")) + ")";
    };
    Refuse(kInvalid, "optional outputs given: ", given.empty() ? "none" : Join(given, ", "),
           "; that is no mode. Modes: ", Join(contract_.modes_, "; ", format));
}

void ContractCheck::CheckTensor(const Param &param)
{
    const TensorArg &tensor = *call_.Tensor(param.name);
    if (!Contains(param.dtypes, tensor.dtype)) {
        Refuse(kInvalid, Article(param), param.name, " is ", DTypeName(tensor.dtype),
               "; it must be ", Join(param.dtypes, " or ", DTypeName));
        return;
    }
    const Param::DimsRule *rule = ChooseRule(param, tensor);
    if (rule == nullptr) {
        return;
    }
    for (size_t axis = 0; axis < tensor.dims.size() && !Refused(); ++axis) {
        CheckAxis(param, axis, rule->axes[axis], tensor.dims[axis]);
    }
    if (param.role == Role::kOutput && !tensor.contiguous) {
        Refuse(kInvalid, "output ", param.name, " is not contiguous; outputs must be");
    }
}

const Param::DimsRule *ContractCheck::ChooseRule(const Param &param, const TensorArg &tensor)
{
    std::vector<std::string> expected;
    for (const Param::DimsRule &rule : param.rules) {
        if (!rule.layout.empty() && rule.layout != layout_) {
            continue;
        }
        if (rule.axes.size() == tensor.dims.size()) {
            return &rule;
        }
        expected.push_back(Bracketed(rule.text));
    }
    const std::string where =
        layout_.empty() ? std::string() : " for " + contract_.layoutAttr_ + " " + layout_;
    Refuse(kInvalid, Article(param), param.name, " has rank ", tensor.dims.size(), ", shape [",
           Join(tensor.dims, ", "), "]; expected ", Join(expected, " or "), where);
    return nullptr;
}

void ContractCheck::CheckAxis(const Param &param, size_t axis,
                              const std::vector<std::string> &factors, int64_t size)
{
    const std::string &first = factors.front();
    if (factors.size() == 1 && !IsNumber(first) && Letter(first) == 0 && !Refused()) {
        if (size < 1) {
            Refuse(kInvalid, Article(param), param.name, " dim ", axis, " (", first, ") is ", size,
                   "; it must be at least 1");
        }
        call_.dims[first] = size;
        owner_[first] = param.name + " has " + first + " = ";
        return;
    }
    int64_t wanted = 1;
    for (const std::string &factor : factors) {
        wanted *= IsNumber(factor) ? std::stoll(factor) : Letter(factor);
    }
    if (size == wanted || Refused()) {
        return;
    }
    const std::string name = Join(factors, "*"), owner = owner_[first];
    if (IsNumber(name) || owner == "fixed") {
        Refuse(kInvalid, Article(param), param.name, " dim ", axis,
               IsNumber(name) ? "" : " (" + name + ")", " is ", size, "; it must be ", wanted);
    } else if (factors.size() > 1) {
        Refuse(kInvalid, Article(param), param.name, " dim ", axis, " is ", size, ", but ", name,
               " = ", wanted);
    } else {
        Refuse(kInvalid, Article(param), param.name, " dim ", axis, " (", name, ") is ", size,
               ", but ", owner, wanted);
    }
}

int64_t ContractCheck::Letter(const std::string &letter)
{
    if (letter == "N" || letter == "NT") {
        BindSequences();
    }
    return call_.Dim(letter);
}

/// N and NT follow from B, T and cu_seqlens. They are bound when first met, or at the end.
void ContractCheck::BindSequences()
{
    const int64_t tokens = call_.Dim("T"), chunk = call_.Dim("C");
    if (sequencesBound_ || tokens == 0 || chunk == 0) {
        return;
    }
    sequencesBound_ = true;
    const int64_t batch = call_.dims.emplace("B", 1).first->second;  // layouts of rank 3 have none
    owner_.emplace("B", "packed rank-3 input has B = ");
    const std::vector<int64_t> *offsets = call_.Ints("cu_seqlens");
    const std::vector<int64_t> *indices = call_.Ints("chunk_indices");
    if (offsets == nullptr) {
        if (indices != nullptr) {
            Refuse(kInvalid, "chunk_indices is given without cu_seqlens; they go together");
        }
        call_.dims["N"] = batch;
        owner_["N"] = "there is one state per batch entry, so N = ";
        call_.dims["NT"] = CeilDiv(tokens, chunk);
        owner_["NT"] = "T = " + std::to_string(tokens) + " in chunks of " + std::to_string(chunk) +
                       " makes NT = ";
        return;
    }
    if (batch != 1) {
        Refuse(kInvalid, "cu_seqlens is given with B = ", batch, "; packed sequences need B = 1");
    }
    for (const Param &param : contract_.params_) {
        if (param.windows && !Refused()) {
            BindWindows(param);
            return;
        }
    }
    const std::string fault = OffsetsFault(*offsets, tokens);
    if (!fault.empty()) {
        Refuse(kInvalid, fault);
        return;
    }
    std::vector<int64_t> canonical = CanonicalChunkIndices(*offsets, chunk);
    call_.dims["N"] = static_cast<int64_t>(offsets->size()) - 1;
    owner_["N"] = "cu_seqlens makes N = ";
    call_.dims["NT"] = static_cast<int64_t>(canonical.size() / 2);
    owner_["NT"] = "cu_seqlens makes NT = ";
    if (indices == nullptr) {
        call_.intArrays["chunk_indices"] = std::move(canonical);
    } else if (indices->size() != canonical.size()) {
        Refuse(kInvalid, "chunk_indices has ", indices->size(), " entries, but cu_seqlens makes ",
               canonical.size() / 2, " chunks, so ", canonical.size(), " entries");
    } else if (*indices != canonical) {
        const auto differ = std::mismatch(indices->begin(), indices->end(), canonical.begin());
        Refuse(kInvalid, "chunk_indices[", differ.first - indices->begin(), "] is ", *differ.first,
               ", but the canonical order of cu_seqlens has ", *differ.second, " there");
    }
}

/// N and NT of windows.
void ContractCheck::BindWindows(const Param &param)
{
    Offsets edges = *call_.Ints(param.name);
    if (param.onlyFirstWindow && edges.size() > 2) {
        edges.resize(2);
    }
    const std::string fault = WindowsFault(edges, call_.Dim("T"));
    if (!fault.empty()) {
        Refuse(kInvalid, fault);
        return;
    }
    call_.dims["N"] = static_cast<int64_t>(edges.size()) - 1;
    owner_["N"] = "cu_seqlens makes N = ";
    call_.dims["NT"] = CountChunks(edges, call_.Dim("C"));
    owner_["NT"] = "cu_seqlens makes NT = ";
}

}  // namespace fla
