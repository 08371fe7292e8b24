// SPDX-License-Identifier: Apache-2.0
// Places of what the stages of an aggregate leave for each other, and the workspace they take.
#ifndef FLA_COMMON_HOST_STAGES_RELAY_PLAN_H
#define FLA_COMMON_HOST_STAGES_RELAY_PLAN_H

#include <algorithm>

#include "aggregate/relay_tiling_data.h"
#include "stages/stage_plan.h"

namespace fla
{

/// Hands out the workspace from its start, in whole lines of 512 bytes.
class RelayPlan
{
  public:
    uint64_t Take(uint64_t bytes)
    {
        constexpr uint64_t line = 512;
        const uint64_t at = bytes_;
        bytes_ += AlignUp(bytes, line);
        return at;
    }
    /// In the caller's tensor where there is one.
    uint64_t Place(const OpCall &call, const char *port, uint64_t bytes)
    {
        return call.Has(port) ? kInTensor : Take(bytes);
    }
    uint64_t Bytes() const { return bytes_; }

  private:
    uint64_t bytes_ = 0;
};

/// Bytes of tensors that every aggregate knows, from the letters of a checked call.
struct RelaySizes {
    explicit RelaySizes(const OpCall &call)
        : rows(static_cast<uint64_t>(call.Dim("B")) * call.Dim("HV") * call.Dim("T")),
          states(static_cast<uint64_t>(call.Dim("B")) * call.Dim("NT") * call.Dim("HV"))
    {
    }
    uint64_t Narrow() const { return rows * kHeadWidth * 2; }  // bf16 [B, HV, T, 128]
    uint64_t Wide() const { return rows * kHeadWidth * 4; }    // fp32 [B, HV, T, 128]
    uint64_t Scores() const { return rows * kHeadWidth; }      // bf16 [B, HV, T, 64]
    uint64_t States() const
    {
        return states * kHeadWidth * kHeadWidth * 2;
    }  // bf16 [B, NT, HV, ..]
    uint64_t rows, states;
};

/// Several stages in one launch, which run in turn: as many groups as the widest needs, scratch as
/// large as the largest wants. The first refusal stays.
struct Together {
    bool Refused() const { return refusal.status != kOk; }
    uint64_t Scratch() const { return sharedBytes + groups * groupBytes; }

    template <typename Tiling>
    void Add(const StagePlan<Tiling> &stage, Tiling &tiling)
    {
        refusal = Refused() ? refusal : stage.refusal;
        tiling = stage.tiling;
        groups = std::max(groups, stage.groups);
        groupBytes = std::max(groupBytes, stage.groupBytes);
        sharedBytes = std::max(sharedBytes, stage.sharedBytes);
    }

    Plan refusal;
    uint32_t groups = 0;
    uint64_t groupBytes = 0;
    uint64_t sharedBytes = 0;
};

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_RELAY_PLAN_H
