/* SPDX-License-Identifier: Apache-2.0
 *
 * prepare - everything of Chunk KDA that chunks can do on their own
 *
 *   gamma   step of the decay, from g (decay.h)            G = running sum of gamma in the chunk
 *   hats    q_hat, k_hat = rows of q, k scaled to length 1 (hats.h)
 *   scores  Aqk = scale tril(q_hat k_hat^T o E)            L = stril(beta k_hat k_hat^T o E)
 *   solve   Akk = (I + L)^-1                               E_ij = E(G_i - G_j), E(x) = 2^x or e^x
 *   wy      w = Akk (beta k_hat E(G)),  u = (Akk diag(beta)) v: v is read as it is, so the rounding
 *           of u's operands is that of Akk diag(beta) below its diagonal (merge_cube.h)
 *   relay   qg = q_hat E(G), qg_scaled = scale qg          kg = k_hat E(G_last - G)
 *
 * Sums    No difference of two sums is ever taken: what an exponent needs is summed directly, so
 *         steps of -1000 cost no digits and steps of -inf (resets) make no NaN. A chunk is four
 *         bands of 16 rows; band i starts at row a_i. Per row r of band i
 *             P_r = sum of gamma over a_i + 1 .. r        S_r = sum over r + 1 .. end of the band
 *         and rows of the chain join bands: Ga_i = G at a_i, C_ij = sum over (end of band j) + 1 ..
 *         a_i. G_r - G_j = P_r + C_ij + S_j for j in an earlier band: every part is a sum of steps,
 *         <= 0, over rows not after r. No exponent overflows, no later row can change a bit.
 * Bands   Aqk, L below the diagonal blocks: rows x E(P) against columns x E(C + S), on the cube.
 *         Diagonal blocks, bounded gate: columns x 1 / E(P), at most 15 steps of 7.3 octaves.
 * Levels  Diagonal blocks where the gate has no bound: halve. In a block of 2s rows the lower s
 *         rows meet the upper s with the row between them as anchor, both exponents <= 0. s = 8, 4,
 *         2, 1 and the diagonal itself: five tiles on the cube, of which a mask picks what counts.
 * Solve   Substitution for the four 16 x 16 diagonal blocks side by side on the vector core, then
 *         merges 16 -> 32 -> 64 on the cube in fp32:
 *             inv [[A, 0], [B, D]] = [[A', 0], [-D' B A', D']]
 * Work    A task is one chunk of one value head and belongs to one vector core; the cube core of
 *         the group serves both. Round n of a vector core: operands of task n, then the solve of
 *         task n - 1, so that it computes while the cube works on what it left before.
 * Shapes  q, k, v, w, u, kg, qg* bf16 [64, 128]; g, gk, P, S fp32 [64, 128]; Aqk, Akk bf16 [64, 64]
 * Memory  UB: PrepareUb (vector_core.h); L1, L0: PrepareL1, PrepareL0 (cube_core.h); GM workspace:
 *         two slots per vector core, PrepareSlot below, whatever T is
 * Flags   per round, even and odd ids (never two sets outstanding):
 *             kOperands V->C  rows, columns, levels are in GM     kScores C->V  products are in GM
 *             kInverse  V->C  diagonal inverses, k E(G) are in GM kFree   C->V  both have been read
 * Tails   rows beyond the valid ones are zero (gamma 0, q, k, v, beta 0), tiles stay full-size,
 *         stores are cut. G of such rows is G of the last valid row, which kg needs anyway.
 * Limits  chunk 64, K = V = 128; with the bounded gate k_hat times 2^109 must stay finite
 */
#ifndef FLA_PREPARE_H
#define FLA_PREPARE_H

#include "kernel_operator.h"

#include "prepare_tiling_data.h"
#include "cross_core.h"
#include "local_memory.h"
#include "pair_rounds.h"

namespace fla
{

constexpr uint32_t kBand = 16;
constexpr uint32_t kBands = kChunk / kBand;
constexpr uint32_t kBandElems = kBand * kDim;
constexpr uint32_t kBlockElems = kBand * kBand;
// The vector core works on half a chunk at a time where a temporary tile is needed.
constexpr uint32_t kHalves = 2;
constexpr uint32_t kHalfRows = kChunk / kHalves;
constexpr uint32_t kHalfElems = kHalfRows * kDim;
constexpr uint32_t kScoreRows = 2 * kBand;  // q rows of a band, then its k rows

/// GM addresses in kernel order, and the tiling data.
struct PrepareArgs {
    GM_ADDR q;
    GM_ADDR k;
    GM_ADDR v;
    GM_ADDR g;
    GM_ADDR beta;
    GM_ADDR aLog;
    GM_ADDR dtBias;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR gk;
    GM_ADDR aqk;
    GM_ADDR akk;
    GM_ADDR w;
    GM_ADDR u;
    GM_ADDR uWide;
    GM_ADDR qg;
    GM_ADDR kg;
    GM_ADDR qgScaled;
    GM_ADDR qHat;
    GM_ADDR kHat;
    GM_ADDR qRstd;
    GM_ADDR kRstd;
    GM_ADDR betaEff;
    GM_ADDR workspace;
    PrepareTiling t;
};

/// Cross-core flags; FlagOf() makes the id of a round.
enum PrepareFlag : uint16_t { kOperands, kScores, kInverse, kFree, kPrepareFlags };
static_assert(2 * kPrepareFlags <= kCrossFlags, "cross-core flag ids end at 10");

__aicore__ inline uint16_t FlagOf(PrepareFlag flag, uint32_t round)
{
    return 2 * flag + round % 2;
}

/// Byte offsets in a slot of GM workspace.
struct PrepareSlot {
    static constexpr uint32_t tile = kChunkElems * sizeof(bfloat16_t);
    static constexpr uint32_t rowQ = 0;               // q_hat E(P), bf16 [64, 128]
    static constexpr uint32_t rowK = rowQ + tile;     // k_hat E(P)
    static constexpr uint32_t columns = rowK + tile;  // per band i: i + 1 blocks [16, 128] of k
    static constexpr uint32_t keys = columns + 10 * kBandElems * sizeof(bfloat16_t);
    static constexpr uint32_t rest = keys + tile;  // of beta, bf16 [16, 64], see hats.h
    static constexpr uint32_t off = rest + kBand * kChunk * sizeof(bfloat16_t);  // see OffElement()
    static constexpr uint32_t diagonal = off + 6 * kScoreRows * kBand * sizeof(float);
    static constexpr uint32_t diagonalTile = kBands * kScoreRows * kBand * sizeof(float);
    static constexpr uint32_t inverse = diagonal + diagonalTile;  // fp32 2 x [16, 64], see solve.h
    static constexpr uint32_t below = inverse + 2 * kBand * kChunk * sizeof(float);  // -L, 1..3
    static constexpr uint32_t trips = below + 6 * kBlockElems * sizeof(float);  // see merge_cube.h
    static constexpr uint32_t end = trips + 15 * kBlockElems * sizeof(float);
    // Where the gate has no bound: per level q and k tiles, then the products of all levels.
    static constexpr uint32_t levels = end;
    static constexpr uint32_t levelTile = 2 * tile;
    static constexpr uint32_t levelDiagonals = levels + kPrepareLevels * levelTile;
};
static_assert(PrepareSlot::end == kPrepareSlotBytes, "prepare: the plan reserves another slot");
static_assert(PrepareSlot::levelTile + PrepareSlot::diagonalTile == kPrepareLevelBytes,
              "prepare: the plan reserves other level tiles");

/// First row of column block `from` of band `band` in PrepareSlot::columns.
__aicore__ inline uint32_t ColumnRow(uint32_t band, uint32_t from)
{
    return 8 * band * (band + 1) + kBand * from;
}

/// First element of the products of band `band` > 0 in PrepareSlot::off.
__aicore__ inline uint32_t OffElement(uint32_t band)
{
    return kScoreRows * kBand * (band * (band - 1) / 2);
}

/// First element of band `band` > 0 where only the 16 rows of q or k are kept: [16, 16 i] per band.
__aicore__ inline uint32_t BelowElement(uint32_t band)
{
    return kBlockElems * (band * (band - 1) / 2);
}

/// Bytes of a slot, and of everything that belongs to one vector core.
__aicore__ inline uint64_t SlotAt(const PrepareTiling &t, uint32_t core, uint32_t round)
{
    const uint32_t coreBytes = PrepareCoreBytes(t.gate);
    const uint32_t slotBytes = (coreBytes - kPrepareUnitBytes) / kPrepareSlots;
    return static_cast<uint64_t>(core) * coreBytes + round % kPrepareSlots * slotBytes;
}

/// Unit blocks that a vector core leaves for its cube core, behind the slots.
__aicore__ inline uint64_t UnitAt(const PrepareTiling &t, uint32_t core)
{
    const uint32_t coreBytes = PrepareCoreBytes(t.gate);
    return static_cast<uint64_t>(core) * coreBytes + coreBytes - kPrepareUnitBytes;
}

/// Valid rows of a part of the chunk: `size` rows from `first`.
__aicore__ inline uint32_t RowsIn(uint32_t rows, uint32_t first, uint32_t size)
{
    return rows <= first ? 0 : (rows - first < size ? rows - first : size);
}

}  // namespace fla
#endif  // FLA_PREPARE_H
