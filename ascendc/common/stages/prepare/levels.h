/* SPDX-License-Identifier: Apache-2.0
 *
 * levels - operands of the diagonal blocks where the gate has no bound
 *
 * A block of 2s rows, split in two: row r of the lower half and row j of the upper half meet with
 * the last upper row as anchor,
 *
 *   G_r - G_j = P_r + S_j     P_r = sum over the lower half up to r, S_j = over the upper after j
 *
 * both of them sums of steps, <= 0. While the scan of decay.h has P and S of blocks of s rows at
 * hand, level s writes two tiles: q and k times X, X = E(P) in lower rows and E(S) in upper rows. k
 * serves as row and as column. The cube multiplies whole bands, [q; k] against k; of the 16 x 16
 * results the mask of the level keeps the s x s blocks below the diagonal (solve.h). Level 0 is q
 * and k as they are, of which only the diagonal is kept; hats.h has stored it.
 *
 * Shapes  per level q X, k X bf16 [64, 128] in the slot of the round
 * UB      X in work tile A, q or k times X in work tile B, half a chunk at a time
 * Flags   out: staging
 */
#ifndef FLA_PREPARE_LEVELS_H
#define FLA_PREPARE_LEVELS_H

#include "vector_core.h"

namespace fla
{

/// Index of the level of `size` rows: 1, 2, 3, 4 for 1, 2, 4, 8.
__aicore__ inline uint32_t LevelOf(uint32_t size)
{
    return size == 1 ? 1 : size == 2 ? 2 : size == 4 ? 3 : 4;
}

class LevelStage
{
  public:
    __aicore__ inline void Run(VectorCore &c, uint32_t size)
    {
        const uint32_t slot = PrepareSlot::levels + LevelOf(size) * PrepareSlot::levelTile;
        for (uint32_t half = 0; half < kHalves; ++half) {
            const uint32_t at = half * kHalfElems;
            Factors(c.work[0], c.prefix[at], c.suffix[at], size);
            const uint32_t bytes = slot + at * sizeof(bfloat16_t);
            Store(c, c.q[at], bytes);
            Store(c, c.k[at], bytes + PrepareSlot::tile);
        }
    }

    /// X of half a chunk.
    __aicore__ static inline void Factors(const Float &x, const Float &prefix, const Float &suffix,
                                          uint32_t size)
    {
        const uint32_t span = size * kDim;
        if (size >= 4) {
            for (uint32_t at = 0; at < kHalfElems; at += 2 * span) {
                AscendC::Exp(x[at], suffix[at], span);
                AscendC::Exp(x[at + span], prefix[at + span], span);
            }
            return;
        }
        const uint8_t step = 2 * size * kRowBlocks;
        const uint8_t blocks = kHalfRows / (2 * size);
        for (uint32_t at = 0; at < span; at += kLanesF32) {
            if (size == 1) {  // nothing lies between an upper row and itself
                AscendC::Duplicate(x[at], 1.0f, kLanesF32, blocks, 1, step);
            } else {
                AscendC::Exp(x[at], suffix[at], kLanesF32, blocks, {1, 1, step, step});
            }
            AscendC::Exp(x[at + span], prefix[at + span], kLanesF32, blocks, {1, 1, step, step});
        }
    }

  private:
    __aicore__ static inline void Store(VectorCore &c, const Half &from, uint32_t bytes)
    {
        const Float &wide = c.work[1];
        Widen(wide, from, kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(wide, wide, c.work[0], kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
        c.StoreSlot(bytes, wide, kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_LEVELS_H
