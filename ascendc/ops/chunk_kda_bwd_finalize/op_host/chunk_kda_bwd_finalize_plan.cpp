// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_bwd_finalize_plan.h"

#include "chunk_kda_bwd_finalize_tiling_data.h"
#include "stages/chunk_grad_plan.h"

namespace fla
{

Plan PlanChunkKdaBwdFinalize(const OpCall &call, const ChipSpec &chip)
{
    const Plan refusal = CheckRanks(call, "q",
                                    {"k", "v", "gk", "raw_g", "akk", "v_new", "dv_scan", "d_aqk",
                                     "dq_raw", "dq", "dk", "dv", "dg"},
                                    {"h", "dh"}, {"beta", "q_rstd", "k_rstd", "dbeta"});
    if (refusal.status != kOk) {
        return Named("chunk_kda_bwd_finalize", refusal);
    }
    return LaunchOne<ChunkKdaBwdFinalizeTilingData>("chunk_kda_bwd_finalize",
                                                    PlanChunkGrad(call, chip));
}

}  // namespace fla
