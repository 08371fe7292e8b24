// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_prepare_plan.h"

#include "chunk_kda_bwd_prepare_tiling_data.h"
#include "stages/output_grad_plan.h"

namespace fla
{

Plan PlanChunkKdaBwdPrepare(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal =
        CheckRanks(call, "aqk", {"v_new", "d_o", "d_aqk", "dv_local", "dq_raw"}, {"h"});
    if (refusal.status != kOk) {
        return Named("chunk_kda_bwd_prepare", refusal);
    }
    return LaunchOne<ChunkKdaBwdPrepareTilingData>("chunk_kda_bwd_prepare",
                                                   PlanOutputGrad(call, chip));
}

}  // namespace fla
