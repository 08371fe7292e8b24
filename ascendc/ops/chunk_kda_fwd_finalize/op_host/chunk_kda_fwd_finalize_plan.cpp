// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_finalize_plan.h"

#include "chunk_kda_fwd_finalize_tiling_data.h"
#include "stages/output_plan.h"

namespace fla
{

Plan PlanChunkKdaFwdFinalize(const OpCall &call, const ChipSpec &chip)
{
    const std::string layout = call.Text("output_layout");
    const bool tokenMajor = layout == "BSND" || layout == "TND";
    return LaunchOne<ChunkKdaFwdFinalizeTilingData>("chunk_kda_fwd_finalize",
                                                    PlanOutput(call, chip, tokenMajor));
}

}  // namespace fla
