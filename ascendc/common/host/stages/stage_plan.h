// SPDX-License-Identifier: Apache-2.0
// What the plan of a stage answers. An operator launches one stage or several of them in a row; the
// checks and the tiling of a stage stand once, here beside, for all of its users.
#ifndef FLA_COMMON_HOST_STAGES_STAGE_PLAN_H
#define FLA_COMMON_HOST_STAGES_STAGE_PLAN_H

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "chip.h"
#include "op_call.h"
#include "plan.h"

namespace fla
{

// Kernels count tokens, tasks and chunks in 32 bits; offsets are 64-bit.
constexpr int64_t kIndexLimit = std::numeric_limits<uint32_t>::max();
constexpr int64_t kHeadWidth = 128;

/// One stage of a launch, or why it cannot run (a text that does not name the operator).
template <typename Tiling>
struct StagePlan {
    StagePlan() = default;
    StagePlan(Plan why) : refusal(std::move(why)) {}
    bool Refused() const { return refusal.status != kOk; }

    Plan refusal;
    Tiling tiling{};
    uint32_t groups = 0;       // that find work; further ones leave at once
    uint64_t groupBytes = 0;   // workspace of each group of the launch
    uint64_t sharedBytes = 0;  // workspace in front of the groups'
};

using Ports = std::initializer_list<const char *>;

/// The contract allows two ranks at every port, with a batch axis and without; a call has to choose
/// one. Ports with as many axes as the first, with one more, with one less. Two planes of v_new have
/// a batch axis in any case.
inline Plan CheckRanks(const OpCall &call, const char *first, Ports same, Ports more,
                       Ports less = {})
{
    constexpr size_t kPlanesRank = 5;
    const size_t rank = call.Tensor(first)->dims.size();
    const std::pair<Ports, size_t> groups[] = {{same, rank}, {more, rank + 1}, {less, rank - 1}};
    for (const auto &[ports, wanted] : groups) {
        for (const std::string port : ports) {
            const TensorArg *tensor = call.Tensor(port);
            const size_t found = tensor == nullptr ? wanted : tensor->dims.size();
            if (found != wanted && !(port == "v_new" && found == kPlanesRank)) {
                return Refuse(port, " has rank ", found, ", but ", first, " has rank ", rank,
                              ": give all tensors with a batch axis, or none");
            }
        }
    }
    return {};
}

/// Value heads have to share out over the key heads.
inline Plan CheckHeads(const OpCall &call)
{
    const int64_t keyHeads = call.Dim("HK");
    const int64_t valueHeads = call.Dim("HV");
    if (valueHeads % keyHeads != 0) {
        return Refuse("HV = ", valueHeads, " value heads do not share HK = ", keyHeads,
                      " key heads evenly; HV must be a multiple of HK");
    }
    return {};
}

/// Of one batch entry; the end of the last chunk must not wrap either.
inline Plan CheckTokens(const OpCall &call)
{
    const int64_t tokens = call.Dim("T");
    if (tokens > kIndexLimit - 64) {
        return Refuse("T = ", tokens, " is above ", kIndexLimit - 64, "; split the sequence");
    }
    return {};
}

/// A task is a chunk of a value head. Divisions, so that no product wraps.
inline Plan CheckTasks(const OpCall &call)
{
    const int64_t batch = call.Dim("B");
    const int64_t heads = call.Dim("HV");
    const int64_t chunks = call.Dim("NT");
    if (chunks > kIndexLimit / batch / heads) {
        return Refuse("B = ", batch, " times NT = ", chunks, " chunks of HV = ", heads,
                      " heads are more than ", kIndexLimit, " tasks; split the batch or the heads");
    }
    return {};
}

/// Attributes are doubles in the prototype and fp32 in the kernel: rules hold for the fp32 value.
inline Plan CheckScale(const OpCall &call)
{
    if (!std::isfinite(static_cast<float>(call.Real("scale")))) {
        return Refuse("scale = ", call.Real("scale"), " is not a finite float32");
    }
    return {};
}

/// What the tiling of every stage says of the shape.
template <typename Tiling>
void SetShape(const OpCall &call, Tiling &t)
{
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.sequences = static_cast<uint32_t>(call.Dim("N"));
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = call.Ints("cu_seqlens") != nullptr;
}

/// Groups that find work where a chunk of one of `heads` heads is a task: two keep a group busy, one
/// per vector core.
inline uint32_t GroupsOfPairs(const OpCall &call, const ChipSpec &chip, const char *heads = "HV")
{
    const int64_t tasks = call.Dim("B") * call.Dim("NT") * call.Dim(heads);
    return static_cast<uint32_t>(std::min<int64_t>(chip.cubeCores, CeilDiv<int64_t>(tasks, 2)));
}

/// The refusal of an operator: `why` with its name in front.
inline Plan Named(const std::string &op, Plan why)
{
    why.refusal = op + ": " + why.refusal;
    return why;
}

/// The launch of an operator that is one stage; `Data` is its tiling data, a struct around that of
/// the stage.
template <typename Data, typename Tiling>
Plan LaunchOne(const std::string &op, const StagePlan<Tiling> &stage)
{
    if (stage.Refused()) {
        return Named(op, stage.refusal);
    }
    return Launchable(Data{stage.tiling}, stage.groups,
                      stage.sharedBytes + stage.groups * stage.groupBytes);
}

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_STAGE_PLAN_H
