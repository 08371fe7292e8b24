// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_finalize_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "chunk_kda_bwd_finalize_tiling_data.h"
#include "stages/chunk_grad_plan.h"

namespace fla
{
namespace
{

/// The contract allows both ranks at every port; a call has to choose one of them.
Plan CheckRanks(const OpCall &call)
{
    constexpr size_t kPlanesRank = 5;  // of v_new, whatever the others have
    const size_t rank = call.Tensor("q")->dims.size();
    const std::pair<std::vector<std::string>, size_t> wanted[] = {
        {{"k", "v", "gk", "raw_g", "akk", "v_new", "dv_scan", "d_aqk", "dq_raw"}, rank},
        {{"dq", "dk", "dv", "dg"}, rank},
        {{"beta", "q_rstd", "k_rstd", "dbeta"}, rank - 1},
        {{"h", "dh"}, rank + 1}};
    for (const auto &[ports, axes] : wanted) {
        for (const std::string &port : ports) {
            const TensorArg *tensor = call.Tensor(port);
            const size_t found = tensor == nullptr ? axes : tensor->dims.size();
            if (found != axes && !(port == "v_new" && found == kPlanesRank)) {
                return Refuse(port, " has rank ", found, ", but q has rank ", rank,
                              ": give all tensors with a batch axis, or none");
            }
        }
    }
    return {};
}

}  // namespace

Plan PlanChunkKdaBwdFinalize(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal = CheckRanks(call);
    if (refusal.status != kOk) {
        return Named("chunk_kda_bwd_finalize", refusal);
    }
    return LaunchOne<ChunkKdaBwdFinalizeTilingData>("chunk_kda_bwd_finalize",
                                                    PlanChunkGrad(call, chip));
}

}  // namespace fla
