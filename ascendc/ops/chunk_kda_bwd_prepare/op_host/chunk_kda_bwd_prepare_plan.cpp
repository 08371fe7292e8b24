// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_prepare_plan.h"

#include "chunk_kda_bwd_prepare_tiling_data.h"
#include "stages/output_grad_plan.h"

namespace fla
{
namespace
{

/// The contract allows both ranks at every port; a call has to choose one of them.
Plan CheckRanks(const OpCall &call)
{
    const size_t rank = call.Tensor("aqk")->dims.size();
    for (const char *name : {"v_new", "d_o", "d_aqk", "dv_local", "dq_raw", "h"}) {
        const size_t wanted = rank + (name == std::string("h") ? 1 : 0);
        const size_t found = call.Tensor(name)->dims.size();
        if (found != wanted) {
            return Refuse(name, " has rank ", found, ", but aqk has rank ", rank,
                          ": give all tensors with a batch axis, or none");
        }
    }
    return {};
}

}  // namespace

Plan PlanChunkKdaBwdPrepare(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal = CheckRanks(call);
    if (refusal.status != kOk) {
        return Named("chunk_kda_bwd_prepare", refusal);
    }
    return LaunchOne<ChunkKdaBwdPrepareTilingData>("chunk_kda_bwd_prepare",
                                                   PlanOutputGrad(call, chip));
}

}  // namespace fla
