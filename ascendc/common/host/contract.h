// SPDX-License-Identifier: Apache-2.0
// The contract of one operator (op.json) at run time, and the check of a call against it.
//
// The check runs before every plan, in the twin's aclnn entry, in CANN's L2 entry and in CANN's
// tiling adapter alike. It covers what op.json says: which ports must be given, dtypes, ranks,
// dimension letters that have to agree, allowed attribute values, patterns of optional outputs,
// sequence offsets. What only the operator knows (HV a multiple of HK, which attributes go
// together) is its plan's part.
#ifndef FLA_COMMON_HOST_CONTRACT_H
#define FLA_COMMON_HOST_CONTRACT_H

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "op_call.h"
#include "plan.h"

namespace fla
{

enum class Role { kInput, kOutput, kInts, kBool, kInt, kDouble, kString };

/// One parameter of the frozen aclnn order. The setters are for the generated contract tables.
struct Param {
    Param(Role r, std::string n) : role(r), name(std::move(n)) {}

    Param &Types(std::vector<DType> accepted);
    /// Dimension letters, "B HV T K"; an axis may be a number or a product ("HV*K").
    Param &Dims(const std::string &letters) { return Dims("", letters); }
    /// The same for one value of the layout attribute. Several rules of one layout differ in rank.
    Param &Dims(const std::string &layout, const std::string &letters);
    Param &Optional();
    /// An optional output that must be given exactly when this bool attribute is true.
    Param &PresentIf(const std::string &flag);
    /// An input of the frozen prototype that is not served; it must be null.
    Param &Refused(const std::string &reason);
    /// cu_seqlens holds the edges of windows inside of T, not sequences end to end. `onlyFirst`: all
    /// but the first window is ignored.
    Param &Windows(bool onlyFirst);
    Param &Values(std::vector<int64_t> accepted);
    Param &Values(std::vector<std::string> accepted);

    bool IsTensor() const { return role == Role::kInput || role == Role::kOutput; }

    struct DimsRule {
        std::string layout;                          // "" = any
        std::string text;                            // as in op.json
        std::vector<std::vector<std::string>> axes;  // factors of every axis
    };
    Role role;
    std::string name;
    std::vector<DType> dtypes;
    std::vector<DimsRule> rules;
    bool optional = false;
    bool windows = false, onlyFirstWindow = false;
    std::string presentIf, refused;
    std::vector<int64_t> intValues;
    std::vector<std::string> textValues;
};

struct Refusal {
    int status = kOk;
    std::string text;
    bool Refuses() const { return status != kOk; }
};

class Contract
{
  public:
    explicit Contract(std::string op) : op_(std::move(op)) {}

    Param &Add(Role role, const std::string &name);
    void Fixed(const std::string &letter, int64_t value) { fixed_[letter] = value; }
    /// The string attribute that chooses between Dims rules.
    void Layout(const std::string &attr) { layoutAttr_ = attr; }
    /// A named set of optional outputs; with modes, those given must be one of the sets.
    void Mode(const std::string &mode, std::vector<std::string> outputs);

    /// Checks the call, binds its dimension letters and completes chunk_indices.
    Refusal Check(OpCall &call) const;
    /// The same for the inputs alone, before there are outputs (shape inference).
    Refusal CheckInputs(OpCall &call) const;
    /// Shape that the letters of a checked call give a port; its first rule of the layout counts.
    std::vector<int64_t> ShapeOf(const Param &param, const OpCall &call) const;

    const std::string &Op() const { return op_; }
    const std::deque<Param> &Params() const { return params_; }

  private:
    std::string op_, layoutAttr_;
    std::deque<Param> params_;  // a deque: Add() hands out references
    std::map<std::string, int64_t> fixed_;
    std::vector<std::pair<std::string, std::vector<std::string>>> modes_;
    friend class ContractCheck;
};

/// "bfloat16", "float32", ...
std::string DTypeName(DType dtype);

}  // namespace fla
#endif  // FLA_COMMON_HOST_CONTRACT_H
