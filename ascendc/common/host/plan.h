// SPDX-License-Identifier: Apache-2.0
// What tiling answers: a plan that can be launched, or a refusal that says what clashes with what.
#ifndef FLA_COMMON_HOST_PLAN_H
#define FLA_COMMON_HOST_PLAN_H

#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "chip.h"

namespace fla
{

/// aclnn status codes of a refusal (CANN's numbers).
enum Status : int { kOk = 0, kNullPointer = 161001, kInvalid = 161002 };

struct Plan {
    int status = kOk;
    std::string refusal;          // empty when status is kOk
    std::vector<uint8_t> tiling;  // the op's tiling struct, byte for byte
    uint32_t blockDim = 0;        // groups (1 AIC + 2 AIV); 0 = nothing to launch
    uint64_t workspaceBytes = 0;  // user part; the system part is added by the caller
};

template <typename... Parts>
Plan Refuse(const Parts &...parts)
{
    std::ostringstream text;
    (text << ... << parts);
    Plan plan;
    plan.status = kInvalid;
    plan.refusal = text.str();
    return plan;
}

template <typename Tiling>
Plan Launchable(const Tiling &tiling, uint32_t blockDim, uint64_t workspaceBytes)
{
    static_assert(std::is_trivially_copyable<Tiling>::value && alignof(Tiling) <= 8,
                  "tiling data is plain data of at most 8-byte alignment");
    Plan plan;
    plan.tiling.resize(sizeof(Tiling));
    std::memcpy(plan.tiling.data(), &tiling, sizeof(Tiling));
    plan.blockDim = blockDim;
    plan.workspaceBytes = workspaceBytes;
    return plan;
}

template <typename Int>
constexpr Int CeilDiv(Int value, Int unit)
{
    return (value + unit - 1) / unit;
}

template <typename Int>
constexpr Int AlignUp(Int value, Int unit)
{
    return CeilDiv(value, unit) * unit;
}

}  // namespace fla
#endif  // FLA_COMMON_HOST_PLAN_H
