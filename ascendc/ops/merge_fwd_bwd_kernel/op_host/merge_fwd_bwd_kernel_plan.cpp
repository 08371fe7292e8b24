// SPDX-License-Identifier: Apache-2.0
#include "merge_fwd_bwd_kernel_plan.h"

#include <algorithm>

#include "merge_fwd_bwd_kernel_tiling_data.h"

namespace fla
{
namespace
{

constexpr const char *kOp = "merge_fwd_bwd_kernel: ";
constexpr int64_t kMostRanks = 1024, kMostHeads = 256, kWidth = 128;

/// Which ranks take part, and whether there are such.
Plan CheckRanks(int64_t ranks, int64_t count, int64_t rank, bool forward)
{
    if (rank < 0 || rank >= ranks) {
        return Refuse(kOp, "rank = ", rank, ", but ag_hm has S = ", ranks,
                      " ranks; it must be one of 0 to ", ranks - 1);
    }
    if (count < 0 || count > ranks) {
        return Refuse(kOp, "pre_or_post_num_ranks = ", count, ", but ag_hm has S = ", ranks,
                      " ranks; it must be one of 0 to ", ranks);
    }
    if (ranks == 1 && count == 1) {
        return {};  // a rank alone may ask for its own map
    }
    if (forward && rank < count) {
        return Refuse(kOp, "pre_or_post_num_ranks = ", count, " ranks before rank = ", rank,
                      ": there are ", rank, "; pass fewer, or another rank");
    }
    if (!forward && rank + count >= ranks) {
        return Refuse(kOp, "pre_or_post_num_ranks = ", count, " ranks behind rank = ", rank,
                      " of S = ", ranks, ": there are ", ranks - 1 - rank,
                      "; pass fewer, or another rank");
    }
    return {};
}

Plan Check(const OpCall &call)
{
    const int64_t ranks = call.Dim("S"), heads = call.Dim("HV");
    const TensorArg &h = *call.Tensor("h");
    if (h.dtype != call.Tensor("ag_hm")->dtype) {
        return Refuse(kOp,
                      "h and ag_hm differ in dtype; the result has the dtype of the summaries");
    }
    if (!h.contiguous) {
        return Refuse(kOp, "h is not contiguous; it is written in place, so it must be");
    }
    if (ranks > kMostRanks) {
        return Refuse(kOp, "ag_hm has S = ", ranks, " ranks; at most ", kMostRanks,
                      "; merge in groups of ranks");
    }
    if (heads > kMostHeads) {
        return Refuse(kOp, "h has HV = ", heads, " heads; at most ", kMostHeads,
                      "; merge the heads in parts");
    }
    return CheckRanks(ranks, call.Int("pre_or_post_num_ranks"), call.Int("rank"),
                      call.Flag("forward"));
}

}  // namespace

Plan PlanMergeFwdBwdKernel(const OpCall &call, const ChipSpec &chip)
{
    Plan refusal = Check(call);
    if (refusal.status != kOk) {
        return refusal;
    }
    const int64_t count = call.Int("pre_or_post_num_ranks"), rank = call.Int("rank");
    const bool forward = call.Flag("forward");
    const int64_t first = forward ? rank - count : rank + count;
    MergeFwdBwdKernelTilingData t;
    t.heads = static_cast<uint32_t>(call.Dim("HV"));
    t.count = static_cast<uint32_t>(count);
    // Out of range where a rank alone asks for its own map, and for none.
    t.first = static_cast<uint32_t>(std::min(std::max<int64_t>(first, 0), call.Dim("S") - 1));
    t.backwards = !forward;
    t.stateVFirst = call.Flag("state_v_first");
    t.isBf16 = call.Is("h", DType::kBFloat16);
    // Narrow lanes only where all of their items still run side by side.
    t.laneColumns = t.heads * (kWidth / 32) <= chip.cubeCores ? 16 : 32;
    const uint32_t items = count == 0 ? t.heads : t.heads * (kWidth / (kFoldLanes * t.laneColumns));
    const uint32_t groups = std::min(chip.cubeCores, items);
    const uint64_t groupBytes = t.isBf16 ? kFoldGroupBytes : kFoldNarrowBytes;
    return Launchable(t, groups, groups * groupBytes);
}

}  // namespace fla
