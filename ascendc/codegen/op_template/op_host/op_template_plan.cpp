// SPDX-License-Identifier: Apache-2.0
#include "op_template_plan.h"

#include <algorithm>
#include <cmath>

#include "op_template_tiling_data.h"

namespace fla
{

Plan PlanOpTemplate(const OpCall &call, const ChipSpec &chip)
{
    if (!std::isfinite(call.Real("scale"))) {
        return Refuse("op_template: scale = ", call.Real("scale"), "; it must be finite");
    }
    OpTemplateTilingData t{};
    t.elements = static_cast<uint64_t>(call.Dim("R") * call.Dim("W"));
    t.scale = static_cast<float>(call.Real("scale"));
    t.tiles = static_cast<uint32_t>(CeilDiv<uint64_t>(t.elements, kOpTemplateTileElements));
    return Launchable(t, std::min(CeilDiv(t.tiles, 2U), chip.cubeCores), 0);
}

}  // namespace fla
