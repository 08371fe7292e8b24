/* SPDX-License-Identifier: Apache-2.0
 *
 * output - attention output of a chunk
 *
 *   o[c] = bf16(qg_scaled[c] @ h[c] + tril(Aqk[c]) @ v_new[c])      fp32 sum, one rounding
 *
 * Shapes  qg_scaled, v_new [64, 128] bf16; Aqk [64, 64] bf16; h [128 K, 128 V] bf16, or [V, K] with
 *         stateVFirst
 * Tasks   Every chunk of every value head; a group takes a contiguous range and walks it in pairs.
 * Vector  Each core masks the Aqk of one task of the pair: above the diagonal a caller's buffer may
 *         hold anything, NaN included, so the bits are cleared (And with a triangle of ones), not
 *         multiplied. Out to the ring in GM.
 * Cube    Both products accumulate in L0C; Fixpipe rounds and stores straight into attn_out.
 *
 * UB      triangle 8K | Aqk 8K per ring slot
 * L1      two task slots of qg_scaled 16K | v_new 16K | h 32K | Aqk 8K
 * L0      A: qg_scaled 16K | Aqk 8K; B: h 32K | v_new 16K; C: two slots of 32K, so that a store
 *         runs under the next task's products
 *
 * Flags   ring of pairs, per slot:
 *           ready  V -> C   both masked tiles are in GM
 *           free   C -> V   both are in L1
 *         A credit answers the store it follows, so a slot's UB tile is free again with its GM slot.
 * Tails   Rows beyond the valid ones are zero in L1, never stored, never read from GM. Columns
 *         beyond them lie above the diagonal of every valid row.
 * Limits  chunk 64, K = V = 128; any T >= 1; packed sequences may be empty
 */
#ifndef FLA_OUTPUT_H
#define FLA_OUTPUT_H

#include "kernel_operator.h"

#include "output_tiling_data.h"
#include "chunk_walk.h"
#include "local_memory.h"
#include "masked_ring.h"
#include "task_operands.h"

namespace fla
{

using OutputRing = RingFlags<0, kOutputRingDepth>;

/// GM addresses in kernel order, and the tiling data.
struct OutputArgs {
    GM_ADDR qgScaled;
    GM_ADDR aqk;
    GM_ADDR vNew;
    GM_ADDR h;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR attnOut;
    GM_ADDR workspace;
    OutputTiling t;
};

/// Byte offsets in UB: the triangle and the tiles of the ring.
struct OutputUb {
    static constexpr uint32_t masked = 0;
    static constexpr uint32_t end = masked + MaskedProducer<OutputRing>::kBytes;
};
static_assert(OutputUb::end <= kUbBytes, "output: the UB plan is too big");

/// Byte offsets in L0A, L0B and L0C. L1: task_operands.h.
struct OutputL0 {
    static constexpr uint32_t query = 0;  // L0A
    static constexpr uint32_t score = query + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t endA = score + kScoreElems * sizeof(bfloat16_t);
    static constexpr uint32_t state = 0;  // L0B
    static constexpr uint32_t value = state + kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t endB = value + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t slotC = kChunkElems * sizeof(float);
};
static_assert(OutputL0::endA <= kL0aBytes && OutputL0::endB <= kL0bBytes &&
                  kTaskSlots * OutputL0::slotC <= kL0cBytes,
              "output: the L0 plan is too big");

static_assert(OutputRing::depth * kVectorCores * kScoreElems * sizeof(bfloat16_t) ==
                  kOutputRingBytes,
              "output: the plan reserves another workspace");

/// A group's part of the GM workspace: its ring.
__aicore__ inline GM_ADDR OutputRingOf(const OutputArgs &args, uint32_t group)
{
    return args.workspace + static_cast<uint64_t>(group) * kOutputRingBytes;
}

}  // namespace fla
#endif  // FLA_OUTPUT_H
