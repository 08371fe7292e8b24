// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_prepare_plan.h"

#include "chunk_kda_fwd_prepare_tiling_data.h"
#include "stages/prepare_plan.h"

namespace fla
{

Plan PlanChunkKdaFwdPrepare(const OpCall &call, const ChipSpec &chip)
{
    return LaunchOne<ChunkKdaFwdPrepareTilingData>(
        "chunk_kda_fwd_prepare", PlanForwardPrepare(call, chip, GivenPrepareOutputs(call)));
}

}  // namespace fla
