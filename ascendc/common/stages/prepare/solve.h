/* SPDX-License-Identifier: Apache-2.0
 *
 * solve - Aqk, and the inverses of the diagonal blocks
 *
 *   The cube left, per level (one level where the gate is bounded), the diagonal blocks
 *       D[band] = [q; k] k^T      fp32 [4 bands][16 q rows, 16 k rows][16]
 *   of which the mask of the level picks what is valid. And, below the blocks, [q; k] k^T of bands
 *   1..3: fp32 [32, 16 i]. Rows of k times -beta, in fp32, are -L.
 *
 *   Aqk = scale * (those blocks and D), zero above the diagonal
 *   X_b = (I + L_b)^-1 for the four 16 x 16 blocks b side by side, by substitution:
 *       X = I;  for j = 0 .. 14:  X[i] += (-L)[i][j] X[j]  for all rows i > j
 *   and X_b diag(beta), with which the cube makes Akk diag(beta) beside Akk (merge_cube.h)
 *
 * Lanes   a row of X is [2 column halves][4 blocks][8 columns], so that one 32-byte block is 8
 *         columns of one block and the cube finds its fractals; factors -L[i][j] of the four blocks
 *         are spread over neighbouring 32-byte blocks by Brcb, index (i, j, block).
 * Shapes  D fp32 [4, 32, 16] per level; X fp32 [16, 64]; Aqk bf16 [64, 64]
 * UB      D and q k^T in work tile B (levels 0..3 of D in the prefix tile), k k^T in the chain
 *         tile, X and X diag(beta) in work tile A, factors 32K in the prefix tile
 * Flags   in: kInScores; out: kOutAqk, kOutWork (-L, then X)
 */
#ifndef FLA_PREPARE_SOLVE_H
#define FLA_PREPARE_SOLVE_H

#include "levels.h"
#include "vector_core.h"

namespace fla
{

class SolveStage
{
  public:
    /// Constants: unit blocks, masks of the levels, the zeros of Aqk.
    __aicore__ inline void Open(VectorCore &c)
    {
        levels_ = c.args.t.gate == kGateBounded ? 1 : kPrepareLevels;
        AscendC::Duplicate(c.aqk.ReinterpretCast<int16_t>(), static_cast<int16_t>(0), kScoreElems);
        AscendC::Duplicate(c.unit, 0.0f, kBand * kChunk);
        AscendC::Duplicate(c.diagonal, 0.0f, kBand * kChunk);
        AscendC::Duplicate(Mask(c, 0).ReinterpretCast<int16_t>(), static_cast<int16_t>(0),
                           levels_ * kBands * kScoreRows);
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t row = 0; row < kBand; ++row) {
            const uint64_t four = 0x01010101ULL << row % 8;
            uint64_t lanes[2] = {row < 8 ? four : four << 32, 0};
            AscendC::Duplicate(c.unit[row * kChunk], 1.0f, lanes, 1, 1, kLaneBlocks);
            uint64_t columns[2] = {0x0001000100010001ULL << row, 0};
            AscendC::Duplicate(c.diagonal[row * kChunk], 1.0f, columns, 1, 1, kLaneBlocks);
            for (uint32_t level = 0; level < levels_; ++level) {
                MaskRow(c, level, row);
            }
        }
    }

    /// Fetches the products of round `c.round - 1`, whose slot `previous` is. MTE2.
    __aicore__ inline void Fetch(VectorCore &c, uint64_t previous)
    {
        GM_ADDR slot = c.args.workspace + previous;
        const Float &low = c.work[1];
        if (levels_ == 1) {
            AscendC::DataCopy(low, GmAt<float>(slot + PrepareSlot::diagonal), kDiagonalElems);
        } else {
            const auto products = GmAt<float>(slot + PrepareSlot::levelDiagonals);
            const uint32_t last = (kPrepareLevels - 1) * kDiagonalElems;
            AscendC::DataCopy(c.prefix, products, last);
            AscendC::DataCopy(low, products[last], kDiagonalElems);
        }
        const auto below = GmAt<float>(slot + PrepareSlot::off);
        for (uint32_t band = 1; band < kBands; ++band) {
            const uint32_t count = band * kBlockElems;
            AscendC::DataCopy(low[kOff + BelowElement(band)], below[OffElement(band)], count);
            AscendC::DataCopy(c.chain[BelowElement(band)], below[OffElement(band) + count], count);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kInScores);
    }

    /// Aqk and X of the task `of` of round `c.round - 1`.
    __aicore__ inline void Run(VectorCore &c, const VectorTask &of, uint64_t previous)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kInScores);
        PickBlocks(c);
        Scores(c, of);
        Below(c, previous);
        Factors(c);
        Substitute(c, previous);
    }

  private:
    static constexpr uint32_t kDiagonalElems = kBands * kScoreRows * kBand;
    static constexpr uint32_t kOff = kDiagonalElems;  // q k^T below the blocks, behind D
    static constexpr uint32_t kOffElems = 6 * kBlockElems;
    static_assert(kOff + kOffElems <= kHalfElems && kOffElems <= Chain::rows * kDim,
                  "solve: products don't fit");

    /// One bit per element of D: 16 bits a row.
    __aicore__ static inline AscendC::LocalTensor<uint16_t> Mask(VectorCore &c, uint32_t level)
    {
        return View<uint16_t>(c.ub, PrepareUb::masks + level * PrepareUb::mask,
                              kPrepareLevels * kBands * kScoreRows);
    }

    /// Valid columns of row `row` of every block. Bounded gate: the triangle, with diagonal for q.
    __aicore__ inline void MaskRow(VectorCore &c, uint32_t level, uint32_t row) const
    {
        uint32_t forQ = (2U << row) - 1;
        uint32_t forK = (1U << row) - 1;
        if (levels_ > 1 && level == 0) {
            forQ = 1U << row;
            forK = 0;
        } else if (levels_ > 1) {
            const uint32_t size = 1U << (level - 1);
            const uint32_t upper = row / (2 * size) * (2 * size);
            forQ = forK = (row & size) == 0 ? 0 : ((1U << size) - 1) << upper;
        }
        const uint64_t pattern = 0x0000000100000001ULL << row;  // q rows of two bands
        uint64_t queries[2] = {pattern, pattern};
        uint64_t keys[2] = {pattern << kBand, pattern << kBand};
        const auto mask = Mask(c, level);
        AscendC::Duplicate(mask, static_cast<uint16_t>(forQ), queries, 1, 1, 8);
        AscendC::Duplicate(mask, static_cast<uint16_t>(forK), keys, 1, 1, 8);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// D of all levels -> one tile, in which the k rows become -L.
    __aicore__ inline void PickBlocks(VectorCore &c) const
    {
        const Float &d = c.work[1];
        AscendC::Select(d, Mask(c, levels_ - 1), d, 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE,
                        kDiagonalElems);
        for (uint32_t level = 0; level + 1 < levels_; ++level) {
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Select(d, Mask(c, level), c.prefix[level * kDiagonalElems], d,
                            AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, kDiagonalElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
        const Float betaNeg = c.BetaNeg(c.round - 1);
        for (uint32_t band = 0; band < kBands; ++band) {
            const Float rows = d[(2 * band + 1) * kBlockElems];
            AscendC::Mul(rows, rows, betaNeg[band * kBand * kBlockF32], kBand, kBand,
                         {1, 1, 0, 2, 2, 1});
        }
    }

    /// -L below the diagonal blocks, for the cube.
    __aicore__ static inline void Below(VectorCore &c, uint64_t previous)
    {
        const Float betaNeg = c.BetaNeg(c.round - 1);
        for (uint32_t band = 1; band < kBands; ++band) {
            const Float rows = c.chain[BelowElement(band)];
            const uint8_t width = 2 * band;
            AscendC::Mul(rows, rows, betaNeg[band * kBand * kBlockF32], band * kBand, kBand,
                         {1, 1, 0, width, width, 1});
        }
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutWork + 1);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutWork + 1);
        AscendC::DataCopy(GmAt<float>(c.args.workspace + previous + PrepareSlot::below), c.chain,
                          kOffElems);
    }

    __aicore__ inline void Scores(VectorCore &c, const VectorTask &of) const
    {
        const Float &d = c.work[1];
        for (uint32_t band = 0; band < kBands; ++band) {
            const Float rows = d[2 * band * kBlockElems];
            AscendC::Muls(rows, rows, c.args.t.scale, kBlockElems);
        }
        AscendC::Muls(d[kOff], d[kOff], c.args.t.scale, kOffElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutAqk);
        constexpr uint8_t row = kChunk * sizeof(bfloat16_t) / kBlockBytes;
        for (uint32_t band = 0; band < kBands; ++band) {
            const Half rows = c.aqk[band * kBand * kChunk];
            if (band > 0) {
                const uint8_t width = 2 * band;
                AscendC::Cast(rows, d[kOff + BelowElement(band)], AscendC::RoundMode::CAST_RINT,
                              band * kBand, kBand, {1, 1, row, width});
            }
            AscendC::Cast(rows[band * kBand], d[2 * band * kBlockElems],
                          AscendC::RoundMode::CAST_RINT, kBand, kBand, {1, 1, row, 2});
        }
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutAqk);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutAqk);
        AscendC::DataCopy(GmAt<bfloat16_t>(c.args.aqk)[of.valueOut * kChunk], c.aqk,
                          of.at.rows * kChunk);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutAqk);
    }

    /// -L[i][j] of block b over the 32-byte block (16 i + j) * 4 + b of the prefix tile.
    __aicore__ static inline void Factors(VectorCore &c)
    {
        for (uint32_t band = 0; band < kBands; ++band) {
            AscendC::Brcb(c.prefix[band * kBlockF32], c.work[1][(2 * band + 1) * kBlockElems],
                          kBlockElems / 8, {kBands, 8 * kBands});
        }
        AscendC::DataCopy(c.work[0], c.unit, kBand * kChunk);
        AscendC::PipeBarrier<PIPE_V>();
    }

    __aicore__ static inline void Substitute(VectorCore &c, uint64_t previous)
    {
        const Float &x = c.work[0];
        constexpr uint32_t half = kChunk / 2;  // lanes of one column half
        for (uint32_t j = 0; j + 1 < kBand; ++j) {
            const uint32_t i = j + 1;
            const Float factor = c.prefix[(i * kBand + j) * kBands * kBlockF32];
            const uint8_t rowStep = kBand * kBands;
            // X[j] is zero in the second column half as long as j is in the first.
            for (uint32_t lane = 0; lane <= j / 8 * half; lane += half) {
                AscendC::MulAddDst(x[i * kChunk + lane], factor, x[j * kChunk + lane], half,
                                   kBand - i, {1, 1, 1, kLaneBlocks, rowStep, 0});
            }
            AscendC::PipeBarrier<PIPE_V>();
        }
        MulLanes(x[kBand * kChunk], x, c.BetaLanes(c.round - 1), kBand * kChunk);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutWork);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutWork);
        AscendC::DataCopy(GmAt<float>(c.args.workspace + previous + PrepareSlot::inverse), x,
                          2 * kBand * kChunk);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutWork);
    }

    uint32_t levels_ = 1;
};

}  // namespace fla
#endif  // FLA_PREPARE_SOLVE_H
