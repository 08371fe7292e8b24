// SPDX-License-Identifier: Apache-2.0
#include "chunk_kda_fwd_finalize_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "chunk_kda_fwd_finalize_tiling_data.h"

namespace fla
{
namespace
{

constexpr int64_t kIndexLimit = std::numeric_limits<uint32_t>::max();
constexpr int64_t kHeadWidth = 128;
// A group walks its tasks in pairs: one per vector core.
constexpr uint32_t kTasksPerPair = 2;

/// The kernel counts tokens, tasks and the output's row stride in 32 bits. Divisions, so that no
/// product wraps.
std::string LimitFault(const OpCall &call, int64_t batch)
{
    const int64_t tokens = call.Dim("T");
    const int64_t heads = call.Dim("HV");
    const int64_t chunks = call.Dim("NT");
    std::ostringstream text;
    if (tokens > kIndexLimit - 64) {
        text << "T = " << tokens << " is above " << kIndexLimit - 64 << "; split the sequence";
    } else if (heads > kIndexLimit / kHeadWidth) {
        text << "HV = " << heads << " is above " << kIndexLimit / kHeadWidth
             << ": a row of attn_out would not fit a 32-bit stride; split the heads";
    } else if (chunks > kIndexLimit / batch / heads) {
        text << "B = " << batch << " times NT = " << chunks << " times HV = " << heads
             << " chunks are more than " << kIndexLimit << "; split the batch or the heads";
    }
    return text.str();
}

}  // namespace

Plan PlanChunkKdaFwdFinalize(const OpCall &call, const ChipSpec &chip)
{
    const bool packed = call.Ints("cu_seqlens") != nullptr;
    const int64_t batch = std::max<int64_t>(call.Dim("B"), 1);  // rank-3 layouts have no B
    const std::string fault = LimitFault(call, batch);
    if (!fault.empty()) {
        return Refuse("chunk_kda_fwd_finalize: ", fault);
    }
    const std::string layout = call.Text("output_layout");
    ChunkKdaFwdFinalizeTilingData data{};
    OutputTiling &t = data.output;
    t.tokens = static_cast<uint32_t>(call.Dim("T"));
    t.valueHeads = static_cast<uint32_t>(call.Dim("HV"));
    t.sequences = static_cast<uint32_t>(packed ? call.Ints("cu_seqlens")->size() - 1 : batch);
    t.chunks = static_cast<uint32_t>(call.Dim("NT"));
    t.packed = packed;
    t.tokenMajor = layout == "BSND" || layout == "TND";
    t.stateVFirst = call.Flag("state_v_first");
    const uint32_t tasks = (packed ? t.chunks : t.sequences * t.chunks) * t.valueHeads;
    const uint32_t groups = std::min(chip.cubeCores, CeilDiv(tasks, kTasksPerPair));
    return Launchable(data, groups, static_cast<uint64_t>(groups) * kOutputRingBytes);
}

}  // namespace fla
