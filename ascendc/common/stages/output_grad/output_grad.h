/* SPDX-License-Identifier: Apache-2.0
 *
 * output_grad - from the gradient of a chunk's output to those of its scores, values and queries
 *
 *   dAqk[c]     = scale * tril(dO[c] @ v_new[c]^T)        fp32
 *   dv_local[c] = bf16(tril(Aqk[c])^T @ dO[c])            fp32 sum, one rounding
 *   dq_raw[c]   = dO[c] @ h[c]^T                          fp32
 *
 * Shapes  v_new, dO [64, 128] bf16; Aqk [64, 64] bf16; h [128 K, 128 V] bf16, or [V, K] with
 *         stateVFirst
 *
 * Tasks   Every chunk of every value head; a group takes a contiguous range and walks it in pairs.
 *
 * Vector  Each core serves one task of a pair. It clears what a caller's Aqk holds above the
 *         diagonal (bits, not a product: it may be NaN) on the way to the cube, one pair ahead; and
 *         it scales and clears dO @ v_new^T on the way back, then stores it.
 *
 * Cube    Three products. dq_raw and dv_local leave L0C straight for the caller's tensors.
 *
 * UB      triangle of 16-bit entries 8K, of 32-bit entries 16K | per ring slot: Aqk 8K, scores 16K
 * L1      two task slots of dO 16K | v_new 16K | h 32K | Aqk 8K
 * L0      A: dO 16K | Aqk^T 8K; B: v_new^T 16K | h^T 32K | dO 16K; C: scores 16K | dq 32K | dv 32K.
 *         A part is filled for the next task as soon as this task's product has left it.
 *
 * Flags   two rings of pairs, per slot:
 *           masked ready  V -> C   both Aqk tiles are in GM
 *           masked free   C -> V   both are in L1
 *           score ready   C -> V   both score tiles are in GM
 *           score free    V -> C   both are in UB
 *         A credit of the masked ring answers the store it follows, so a slot's UB tile is free
 *         again with its GM slot. So is its score tile: the scores of a pair answer masked tiles
 *         that were stored after the d_aqk of two pairs before.
 *
 * Tails   Rows beyond the valid ones are zero in L1, never stored, never read from GM. Columns
 *         beyond them lie above the diagonal of every valid row.
 *
 * Limits  chunk 64, K = V = 128; any T >= 1; packed sequences may be empty
 */
#ifndef FLA_OUTPUT_GRAD_H
#define FLA_OUTPUT_GRAD_H

#include "kernel_operator.h"

#include "output_grad_tiling_data.h"
#include "chunk_walk.h"
#include "local_memory.h"
#include "output/masked_ring.h"
#include "output/task_operands.h"

namespace fla
{

using OutputGradMasked = RingFlags<0, kOutputGradRingDepth>;
using OutputGradScores = RingFlags<OutputGradMasked::next, kOutputGradRingDepth>;

/// GM addresses in kernel order, and the tiling data.
struct OutputGradArgs {
    GM_ADDR aqk;
    GM_ADDR vNew;
    GM_ADDR dO;
    GM_ADDR h;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR dAqk;
    GM_ADDR dvLocal;
    GM_ADDR dqRaw;
    GM_ADDR workspace;
    OutputGradTiling t;
};

/// Byte offsets in UB: what masks Aqk, then what scales and masks dAqk.
struct OutputGradUb {
    static constexpr uint32_t masked = 0;
    static constexpr uint32_t wideTriangle = masked + MaskedProducer<OutputGradMasked>::kBytes;
    static constexpr uint32_t score = wideTriangle + kScoreElems * sizeof(float);  // per ring slot
    static constexpr uint32_t scoreBytes = kScoreElems * sizeof(float);
    static constexpr uint32_t end = score + kOutputGradRingDepth * scoreBytes;
};
static_assert(OutputGradUb::end <= kUbBytes, "output_grad: the UB plan is too big");

/// Byte offsets in L0A, L0B and L0C. L1: task_operands.h.
struct OutputGradL0 {
    static constexpr uint32_t dO = 0;  // L0A
    static constexpr uint32_t masked = dO + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t endA = masked + kScoreElems * sizeof(bfloat16_t);
    static constexpr uint32_t value = 0;  // L0B
    static constexpr uint32_t state = value + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t dORight = state + kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t endB = dORight + kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t score = 0;  // L0C
    static constexpr uint32_t dq = score + kScoreElems * sizeof(float);
    static constexpr uint32_t dv = dq + kChunkElems * sizeof(float);
    static constexpr uint32_t endC = dv + kChunkElems * sizeof(float);
};
static_assert(OutputGradL0::endA <= kL0aBytes && OutputGradL0::endB <= kL0bBytes &&
                  OutputGradL0::endC <= kL0cBytes,
              "output_grad: the L0 plan is too big");

static_assert(OutputGradMasked::depth * kVectorCores * kScoreElems * sizeof(bfloat16_t) ==
                  kOutputGradMaskedBytes,
              "output_grad: the plan reserves another workspace");

/// A group's part of the GM workspace: the ring of masked tiles and, behind it, that of scores.
__aicore__ inline GM_ADDR OutputGradMaskedOf(const OutputGradArgs &args, uint32_t group)
{
    return args.workspace + static_cast<uint64_t>(group) * kOutputGradGroupBytes;
}
__aicore__ inline AscendC::GlobalTensor<float> OutputGradScoresOf(const OutputGradArgs &args,
                                                                  uint32_t group)
{
    return GmAt<float>(OutputGradMaskedOf(args, group) + kOutputGradMaskedBytes);
}

}  // namespace fla
#endif  // FLA_OUTPUT_GRAD_H
