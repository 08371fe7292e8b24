// SPDX-License-Identifier: Apache-2.0
#include "@op@_plan.h"

#include <algorithm>
#include <cmath>

#include "@op@_tiling_data.h"

namespace fla {

Plan Plan@OpType@(const OpCall &call, const ChipSpec &chip)
{
    if (!std::isfinite(call.Real("scale"))) {
        return Refuse("@op@: scale = ", call.Real("scale"), "; it must be finite");
    }
    @OpType@TilingData t{};
    t.elements = static_cast<uint64_t>(call.Dim("R") * call.Dim("W"));
    t.scale = static_cast<float>(call.Real("scale"));
    t.tiles = static_cast<uint32_t>(CeilDiv<uint64_t>(t.elements, k@OpType@TileElements));
    return Launchable(t, std::min(CeilDiv(t.tiles, 2U), chip.cubeCores), 0);
}

}  // namespace fla
