// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_prepare_plan.h"

#include "chunk_kda_fwd_prepare_tiling_data.h"
#include "stages/prepare_plan.h"

namespace fla
{
namespace
{

/// The contract has settled that the optional outputs form one of the four modes.
uint32_t OutputsOf(const OpCall &call)
{
    if (call.Has("qg")) {
        return kOutputsSave;
    }
    if (call.Has("beta_eff")) {
        return kOutputsRecompute;
    }
    return call.Has("akk") ? kOutputsForward : kOutputsNone;
}

}  // namespace

Plan PlanChunkKdaFwdPrepare(const OpCall &call, const ChipSpec &chip)
{
    return LaunchOne<ChunkKdaFwdPrepareTilingData>("chunk_kda_fwd_prepare",
                                                   PlanForwardPrepare(call, chip, OutputsOf(call)));
}

}  // namespace fla
