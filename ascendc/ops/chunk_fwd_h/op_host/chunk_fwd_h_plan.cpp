// SPDX-License-Identifier: Apache-2.0
#include "chunk_fwd_h_plan.h"

#include "chunk_fwd_h_tiling_data.h"
#include "stages/state_plan.h"

namespace fla
{

Plan PlanChunkFwdH(const OpCall &call, const ChipSpec &chip)
{
    StateUse use;
    use.gateIsBf16 = call.Is("gk", DType::kBFloat16);
    use.valuesAreWide = call.Is("u", DType::kFloat);
    use.valuePlanes = call.Tensor("v_new")->dims.size() == 5 ? 2 : 1;
    return LaunchOne<ChunkFwdHTilingData>("chunk_fwd_h", PlanState(call, chip, use));
}

}  // namespace fla
