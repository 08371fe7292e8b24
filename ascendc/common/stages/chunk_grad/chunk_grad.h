/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_grad - gradients of everything that prepare made, chunk by chunk
 *
 *   Given q, k, v, beta, the steps gamma (decay.h) and A = Akk; S = h, D = dh, dU = dv_scan, dAqk,
 *   dq_raw. E(x) = e^x of sums of steps; G = sum of the steps of the chunk.
 *
 *   values  Rv = A^T dU          Rk = -Rv S^T                            dv = beta Rv
 *           V  = A (beta v) - (A (beta k E(G))) S                        dL = -stril(Rv V^T)
 *   scores  rowQ_i = sum_{j<i} dAqk_ij k_j E(G_i - G_j)     rowK_i = sum_{j<i} dL_ij k_j E(G_i - G_j)
 *           col_j  = sum_{i>j} (dAqk_ij q_i + dL_ij beta_i k_i) E(G_i - G_j)
 *   beta    y = rowK + Rk E(G)                              dbeta = rowsum(Rv v + k y)
 *   q, k    x = rowQ + scale E(G) dq_raw                    dq = x + dAqk_ii k
 *           z = col + E(G_last - G) (v_new D^T)             dk = beta y + z + dAqk_ii q
 *   decay   dG = q x + k (beta y - z), at the last row + E(G_last) rowsum(S D)
 *                + colsum(k E(G_last - G) (v_new D^T)); dgamma = sum of dG from the row on
 *   gate    dg, da_log, ddt_bias (gate_grad.h)              l2norm (norm_grad.h)
 *
 * Why     dL = -stril(A^T dA A^T) with dA = dU (beta v)^T - (dU S^T) (beta k E(G))^T is the product
 *         of Rv with V: three products less, no tile in between goes back to the cube in fp32, and
 *         equal keys with beta near 2 keep their digits (dA rounded to bf16 between two A loses
 *         them, as A diag(beta) does: dbeta 4 times as far off). rowsum(dL P)_i is k_i rowK_i, so
 *         P itself is never formed. The diagonal of dAqk has no decay: it stays on the vector core,
 *         exact, and out of dG, where its two parts cancel.
 * Types   operands of values are bf16 (A, dU, S, D, v_new as they come; Rv, V, beta v, beta k E(G)
 *         rounded once); those of scores are fp32: rounding them would leave noise in dG, which the
 *         sum over rows gathers (dg 1.6 times as far off under a saturated gate).
 * Decays  as in prepare.h: four bands of 16 rows, P, S, the chain; every exponent is a sum of steps.
 *         E(G_i - G_j) = X_i link Y_j with X_i = E(P_i), Y_j = E(S_j) and a link per pair of bands;
 *         rows of band i meet columns of band j as X [k Y link] and, transposed, Y [q X link].
 *         With the bounded gate both are anchored in the middle of a band's decay (operands.h), half
 *         the sum of a band from its first row, so that X Y serves inside a band too: neither is
 *         more than 8 steps of 7.3 octaves from 1, and half a sum (at most 38) costs no digits.
 *         Without a bound the levels of levels.h serve the blocks inside a band: lower rows meet
 *         upper rows, both with factors <= 1, and masks keep each pair in one level.
 * Work    A task is one chunk of one key head; the value heads of its group follow one another, one
 *         per round. Tasks belong to vector cores in turn; the cube core of the group serves both.
 *         Round n of a vector core: operands of n, gradients of n - 1, mask of dL of n, so that it
 *         computes while the cube works on what it left before.
 * Sums    dq and dk of a group gather in GM, in fp32, in the order of the heads. Parameter gradients:
 *         one record per chunk and head in GM, summed in one order by the last phase, after all
 *         cores have met. No result depends on the number of cores.
 * Memory  UB: GradUb (grad_core.h); L1, L0: GradL1, GradL0 (grad_cube.h); GM workspace: records,
 *         then per vector core two slots (GradSlot) and the sums of its group
 * Flags   per round, even and odd ids (never two sets outstanding):
 *             kGradOperands V->C  operands are in GM         kGradLow  C->V  dL is in GM
 *             kGradStrict   V->C  the masked dL is in GM     kGradDone C->V  all products are in GM
 *         No credits: a slot is written again two rounds later, after answers that follow its use.
 * Tails   rows beyond the valid ones are zero (gamma 0, q, k, v, beta, dU, v_new, A 0) or dropped
 *         on arrival, tiles stay full-size, stores are cut; records hold valid rows only
 * Limits  chunk 64, K = V = 128; with the bounded gate products of scores with q, k stay below 2^72
 */
#ifndef FLA_CHUNK_GRAD_CHUNK_GRAD_H
#define FLA_CHUNK_GRAD_CHUNK_GRAD_H

#include "kernel_operator.h"

#include "chunk_grad_tiling_data.h"
#include "cross_core.h"
#include "local_memory.h"
#include "pair_rounds.h"
#include "prepare/prepare.h"

namespace fla
{

/// GM addresses in kernel order, and the tiling data.
struct ChunkGradArgs {
    GM_ADDR q;
    GM_ADDR k;
    GM_ADDR v;
    GM_ADDR rawG;
    GM_ADDR beta;
    GM_ADDR aLog;
    GM_ADDR dtBias;
    GM_ADDR akk;
    GM_ADDR vNew;
    GM_ADDR h;
    GM_ADDR dh;
    GM_ADDR dvScan;
    GM_ADDR dAqk;
    GM_ADDR dqRaw;
    GM_ADDR qRstd;
    GM_ADDR kRstd;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR dq;
    GM_ADDR dk;
    GM_ADDR dv;
    GM_ADDR dBeta;
    GM_ADDR dG;
    GM_ADDR dALog;
    GM_ADDR dDtBias;
    GM_ADDR workspace;
    ChunkGradTiling t;
};

/// Cross-core flags; GradFlagOf() makes the id of a round.
enum GradFlag : uint16_t { kGradOperands, kGradLow, kGradStrict, kGradDone, kGradFlags };
static_assert(2 * kGradFlags <= kCrossFlags, "cross-core flag ids end at 10");

__aicore__ inline uint16_t GradFlagOf(GradFlag flag, uint32_t round)
{
    return 2 * flag + round % 2;
}

// Bytes in fp32 of a chunk tile [64, 128], a band of it, a score tile [64, 64].
constexpr uint32_t kGradTile = kChunkElems * sizeof(float);
constexpr uint32_t kGradBand = kBandElems * sizeof(float);
constexpr uint32_t kGradScores = kScoreElems * sizeof(float);
// Blocks (i, j), i >= j, of four bands.
constexpr uint32_t kGradBlocks = kBands * (kBands + 1) / 2;

/// Byte offsets in a slot of GM workspace; fp32 unless said otherwise.
struct GradSlot {
    static constexpr uint32_t columns = 0;  // per band i: blocks j <= i of k, [16, 128]
    static constexpr uint32_t rowsQ =
        columns + kGradBlocks * kGradBand;                              // per band j: blocks i >= j
    static constexpr uint32_t rowsK = rowsQ + kGradBlocks * kGradBand;  // the same of beta k
    static constexpr uint32_t strictQ = rowsK + kGradBlocks * kGradBand;  // stril(dAqk)
    static constexpr uint32_t strictK = strictQ + kGradScores;            // dL
    static constexpr uint32_t values = strictK + kGradScores;             // bf16 -beta v
    static constexpr uint32_t keys = values + kGradTile / 2;              // bf16 beta k E(G)
    static constexpr uint32_t inverse = keys + kGradTile / 2;             // bf16 tril(A)
    // Factors that the vector core needs again: X, Y, the links.
    static constexpr uint32_t prefix = inverse + kGradScores / 2;
    static constexpr uint32_t suffix = prefix + kGradTile;
    static constexpr uint32_t chain = suffix + kGradTile;
    // Products.
    static constexpr uint32_t rv = chain + 16 * kDim * sizeof(float);
    static constexpr uint32_t rk = rv + kGradTile;     // Rv S^T = -Rk
    static constexpr uint32_t state = rk + kGradTile;  // v_new D^T
    static constexpr uint32_t low = state + kGradTile;
    static constexpr uint32_t square = low + kGradScores;  // diagonal blocks of S D^T: [16, 128]
    static constexpr uint32_t rowQ = square + kGradBand;
    static constexpr uint32_t rowK = rowQ + kGradTile;
    static constexpr uint32_t col = rowK + kGradTile;
    static constexpr uint32_t end = col + kGradTile;
    // Where the gate has no bound, per level of 2, 4, 8, 16 rows.
    static constexpr uint32_t levels = end;
    static constexpr uint32_t levelFactor = 0;                    // X of levels.h
    static constexpr uint32_t levelQ = levelFactor + kGradTile;   // q X
    static constexpr uint32_t levelK = levelQ + kGradTile;        // k X, lower rows times beta
    static constexpr uint32_t levelStrictQ = levelK + kGradTile;  // masked blocks, [64, 16] each
    static constexpr uint32_t levelStrictK = levelStrictQ + kBands * kBlockElems * sizeof(float);
    static constexpr uint32_t levelRowQ = levelStrictK + kBands * kBlockElems * sizeof(float);
    static constexpr uint32_t levelRowK = levelRowQ + kGradTile;
    static constexpr uint32_t levelCol = levelRowK + kGradTile;
    static constexpr uint32_t level = levelCol + kGradTile;
};
static_assert(GradSlot::end <= kChunkGradSlotBytes, "chunk_grad: the plan reserves another slot");
static_assert(GradSlot::level == kChunkGradLevelBytes,
              "chunk_grad: the plan reserves other levels");

/// First block of band `band` among the blocks (i, j >= i) of GradSlot::rowsQ, rowsK.
__aicore__ inline uint32_t RowBlock(uint32_t column, uint32_t band)
{
    return column * kBands - column * (column - 1) / 2 + band - column;
}

/// First block of column blocks of a band in GradSlot::columns.
__aicore__ inline uint32_t ColumnBlockOf(uint32_t band, uint32_t from)
{
    return band * (band + 1) / 2 + from;
}

/// Byte offset of level `level` in a slot.
__aicore__ inline uint32_t LevelAt(uint32_t level)
{
    return GradSlot::levels + level * GradSlot::level;
}

/// Byte offset of a slot in the workspace.
__aicore__ inline uint64_t GradSlotAt(const ChunkGradTiling &t, uint32_t core, uint32_t round)
{
    return ChunkGradRecords(t) + static_cast<uint64_t>(core) * ChunkGradCoreBytes(t.gate) +
           static_cast<uint64_t>(round % kChunkGradSlots) * ChunkGradSlotBytes(t.gate);
}

/// Byte offset of the sums of dq and dk of a vector core.
__aicore__ inline uint64_t GradSumsAt(const ChunkGradTiling &t, uint32_t core)
{
    return GradSlotAt(t, core, 0) +
           static_cast<uint64_t>(kChunkGradSlots) * ChunkGradSlotBytes(t.gate);
}

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_CHUNK_GRAD_H
