// SPDX-License-Identifier: Apache-2.0
// One run of a contract over one call. Steps stop at the first clash; its text names the argument,
// the value and what it clashes with. Private to contract.cpp.
#ifndef FLA_COMMON_HOST_CONTRACT_CHECK_H
#define FLA_COMMON_HOST_CONTRACT_CHECK_H

#include <map>
#include <string>

#include "contract.h"

namespace fla
{

class ContractCheck
{
  public:
    ContractCheck(const Contract &contract, OpCall &call, bool outputs)
        : contract_(contract), call_(call), outputs_(outputs)
    {
    }
    Refusal Run();

  private:
    void CheckAttribute(const Param &param);
    void CheckPresence(const Param &param);
    void CheckModes();
    void CheckTensor(const Param &param);
    const Param::DimsRule *ChooseRule(const Param &param, const TensorArg &tensor);
    void CheckAxis(const Param &param, size_t axis, const std::vector<std::string> &factors,
                   int64_t size);
    int64_t Letter(const std::string &letter);
    void BindSequences();
    void BindWindows(const Param &param);
    template <typename... Parts>
    void Refuse(int status, const Parts &...parts);
    bool Refused() const { return refusal_.Refuses(); }

    const Contract &contract_;
    OpCall &call_;
    const bool outputs_;  // false: there are none yet
    Refusal refusal_;
    std::string layout_;
    std::map<std::string, std::string> owner_;  // letter -> what gave it its value
    bool sequencesBound_ = false;
};

}  // namespace fla
#endif  // FLA_COMMON_HOST_CONTRACT_CHECK_H
