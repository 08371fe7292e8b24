/* SPDX-License-Identifier: Apache-2.0
 *
 * scores_grad - products with the masked scores, fp32 operands
 *
 *   band i   [dAqk_i; dL_i] (32) x columns of bands j <= i (k = 16 (i + 1))       rowQ_i, rowK_i
 *            [dAqk_.i^T dL_.i^T] (16) x rows of bands j >= i of q, then beta k    col_i
 *   levels   band by band: [dAqk; dL] of the level (32) x k X (k = 16), and its transpose (16) x
 *            q X, k X (k = 16 each)
 *
 * Where the gate has no bound, diagonal blocks are left to the levels: j < i and j > i above.
 *
 * Right operands lie row by row in GM and come to L1 in bands of 16 rows, whose 16 x 16 squares are
 * turned on the way to L0B; left operands are squares of the masked scores, turned for col.
 *
 * L1      masked scores [64, 64] twice, level blocks; columns and rows of a band in turn, 64K each
 * Flags   kL1Strict; kL1Turn, two in turn
 */
#ifndef FLA_CHUNK_GRAD_SCORES_GRAD_CUBE_H
#define FLA_CHUNK_GRAD_SCORES_GRAD_CUBE_H

#include "grad_cube.h"

namespace fla
{

class ScoresGradCube
{
  public:
    __aicore__ inline void Open(const GradCube &c)
    {
        bounded_ = c.args.t.gate == kGateBounded;
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Strict);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Turn + i);
        }
    }

    __aicore__ inline void Close() const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Strict);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Turn + i);
        }
    }

    /// Products of both vector cores.
    __aicore__ inline void Run(GradCube &c, uint32_t round)
    {
        const uint32_t lanes = c.rounds.Lanes(round);
        round_ = round;
        for (lane_ = 0; lane_ < lanes; ++lane_) {
            FetchStrict(c);
            Bands(c);
            for (uint32_t level = 0; !bounded_ && level < kChunkGradLevels; ++level) {
                Level(c, level);
            }
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Strict);
        }
    }

  private:
    static constexpr uint32_t kSquares = kDim / kFractal;  // of a band of 16 rows
    static constexpr uint32_t kBandFractals = kSquare * kSquares;
    /// The two operands in L1, fetched in turn.
    enum Operand : uint32_t { kColumns, kRows };

    /// Blocks that a band's products span, and the first of them.
    __aicore__ inline uint32_t ColumnBlocks(uint32_t band) const
    {
        return bounded_ ? band + 1 : band;
    }
    __aicore__ inline uint32_t FirstRow(uint32_t band) const { return bounded_ ? band : band + 1; }
    __aicore__ inline uint32_t RowBlocks(uint32_t band) const { return kBands - FirstRow(band); }

    __aicore__ inline void Bands(GradCube &c) const
    {
        FetchColumns(c, 0);
        FetchRows(c, 0);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Strict);
        for (uint32_t band = 0; band < kBands; ++band) {
            Columns(c, band);
            if (band + 1 < kBands) {
                FetchColumns(c, band + 1);
            }
            Rows(c, band);
            if (band + 1 < kBands) {
                FetchRows(c, band + 1);
            }
        }
    }

    __aicore__ static inline Wide Tile(GradCube &c, Operand operand)
    {
        return c.L1<float>(GradL1::turns + operand * GradL1::turn, GradL1::turn / sizeof(float));
    }
    /// 16 rows of a masked score tile, [16, 64].
    __aicore__ static inline Wide Strict(GradCube &c, uint32_t side, uint32_t band)
    {
        return c.L1<float>(
            GradL1::strict + side * kGradScores + band * kBand * kChunk * sizeof(float),
            (kBands - band) * kBand * kChunk);
    }
    /// A masked block of a level, [16, 16], and those behind it.
    __aicore__ static inline Wide Part(GradCube &c, uint32_t level, uint32_t side, uint32_t band)
    {
        const uint32_t block = (level * 2 + side) * kBands + band;
        return c.L1<float>(GradL1::parts + block * kBlockElems * sizeof(float),
                           (2 * kChunkGradLevels * kBands - block) * kBlockElems);
    }

    __aicore__ static inline void Open(Operand operand)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Turn + operand);
    }
    __aicore__ static inline void Loaded(Operand operand)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Turn + operand);
    }
    __aicore__ static inline void Take(Operand operand)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Turn + operand);
    }
    __aicore__ static inline void Leave(Operand operand)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Turn + operand);
    }

    __aicore__ inline void FetchStrict(GradCube &c) const
    {
        constexpr uint32_t band = kBand * kChunk;
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Strict);
        LoadMatrices(c.L1<float>(GradL1::strict, 2 * kScoreElems),
                     c.Slot(lane_, round_, GradSlot::strictQ), 2 * kBands, kBand, kChunk, kChunk,
                     band, band);
        for (uint32_t level = 0; !bounded_ && level < kChunkGradLevels; ++level) {
            LoadMatrices(Part(c, level, 0, 0),
                         c.Slot(lane_, round_, LevelAt(level) + GradSlot::levelStrictQ), 2 * kBands,
                         kBand, kBand, kBand, kBlockElems, kBlockElems);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Strict);
    }

    /// `count` blocks of 16 rows.
    __aicore__ inline void FetchBlocks(GradCube &c, const Wide &to, uint32_t bytes,
                                       uint32_t count) const
    {
        if (count > 0) {
            LoadMatrices(to, c.Slot(lane_, round_, bytes), count, kBand, kDim, kDim, kBandElems,
                         kBandElems);
        }
    }

    __aicore__ inline void FetchColumns(GradCube &c, uint32_t band) const
    {
        Open(kColumns);
        FetchBlocks(c, Tile(c, kColumns), GradSlot::columns + ColumnBlockOf(band, 0) * kGradBand,
                    ColumnBlocks(band));
        Loaded(kColumns);
    }

    __aicore__ inline void FetchRows(GradCube &c, uint32_t band) const
    {
        const uint32_t first = RowBlock(band, FirstRow(band)) * kGradBand;
        const Wide rows = Tile(c, kRows);
        Open(kRows);
        FetchBlocks(c, rows, GradSlot::rowsQ + first, RowBlocks(band));
        FetchBlocks(c, rows[kChunkElems], GradSlot::rowsK + first, RowBlocks(band));
        Loaded(kRows);
    }

    /// Right operand [16 count, 128].
    __aicore__ static inline void LoadBlocksRight(GradCube &c, uint32_t at, const Wide &l1,
                                                  uint32_t count)
    {
        for (uint32_t i = 0; i < count; ++i) {
            LoadSquares(c.B<float>((at + i) * kBandFractals), l1[i * kBandElems], 0, kSquares, 1, 1,
                        kSquares);
        }
    }

    /// rowQ, rowK of a band.
    __aicore__ inline void Columns(GradCube &c, uint32_t band) const
    {
        const uint32_t blocks = ColumnBlocks(band);
        Take(kColumns);
        if (blocks > 0) {
            c.TakeL0();
            for (uint32_t side = 0; side < 2; ++side) {
                LoadFractals(c.A<float>(side * blocks * kSquare), Strict(c, side, band), 0,
                             blocks * kSquare, 1);
            }
            LoadBlocksRight(c, 0, Tile(c, kColumns), blocks);
        }
        Leave(kColumns);
        if (blocks > 0) {
            Both(c, blocks * kBand, GradSlot::rowQ + band * kGradBand,
                 GradSlot::rowK + band * kGradBand);
        }
    }

    /// The product of this turn, 32 rows: 16 of q, 16 of k.
    __aicore__ inline void Both(GradCube &c, uint32_t k, uint32_t ofQ, uint32_t ofK) const
    {
        const Wide tile = c.MultiplyTurn<float>(2 * kBand, kDim, k);
        StoreRows(c.Slot(lane_, round_, ofQ), tile, kBand, 2 * kBand, kDim, kDim);
        StoreRows(c.Slot(lane_, round_, ofK), tile[kBlockElems], kBand, 2 * kBand, kDim, kDim);
        c.LeaveTile();
    }

    /// col of a band: rows of q, then rows of k on top.
    __aicore__ inline void Rows(GradCube &c, uint32_t band) const
    {
        const uint32_t blocks = RowBlocks(band);
        Take(kRows);
        if (blocks == 0) {
            Leave(kRows);
            return;
        }
        const Wide tile = c.TakeTile();
        for (uint32_t side = 0; side < 2; ++side) {
            c.TakeL0();
            LoadSquares(c.A<float>(0), Strict(c, side, 0), FirstRow(band) * kBands + band, blocks,
                        kBands, kSquare, 1);
            LoadBlocksRight(c, 0, Tile(c, kRows)[side * kChunkElems], blocks);
            if (side > 0) {
                Leave(kRows);
            }
            c.L0Loaded();
            if (side == 0) {
                Product(tile, c.A<float>(0), c.B<float>(0), kBand, kDim, blocks * kBand);
            } else {
                AscendC::PipeBarrier<PIPE_M>();  // a small tile's second product may overtake
                AddProduct(tile, c.A<float>(0), c.B<float>(0), kBand, kDim, blocks * kBand);
            }
            c.LeaveL0();
        }
        c.TileReady();
        StoreRows(c.Slot(lane_, round_, GradSlot::col + band * kGradBand), tile, kBand, kBand, kDim,
                  kDim);
        c.LeaveTile();
    }

    __aicore__ inline void Level(GradCube &c, uint32_t level) const
    {
        const uint32_t at = LevelAt(level);
        const Wide q = Tile(c, kRows);
        const Wide k = q[kChunkElems];
        Open(kRows);
        FetchBlocks(c, q, at + GradSlot::levelQ, kBands);
        FetchBlocks(c, k, at + GradSlot::levelK, kBands);
        Loaded(kRows);
        Take(kRows);
        for (uint32_t band = 0; band < kBands; ++band) {
            const uint32_t bytes = at + band * kGradBand;
            c.TakeL0();
            for (uint32_t side = 0; side < 2; ++side) {
                LoadFractals(c.A<float>(side * kSquare), Part(c, level, side, band), 0, kSquare, 1);
            }
            LoadBlocksRight(c, 0, k[band * kBandElems], 1);
            Both(c, kBand, bytes + GradSlot::levelRowQ, bytes + GradSlot::levelRowK);
            c.TakeL0();
            for (uint32_t side = 0; side < 2; ++side) {
                LoadSquares(c.A<float>(side * kSquare), Part(c, level, side, band), 0, 1, 1, 1, 1);
            }
            LoadBlocksRight(c, 0, q[band * kBandElems], 1);
            LoadBlocksRight(c, 1, k[band * kBandElems], 1);
            if (band + 1 == kBands) {
                Leave(kRows);
            }
            const Wide tile = c.MultiplyTurn<float>(kBand, kDim, 2 * kBand);
            StoreRows(c.Slot(lane_, round_, bytes + GradSlot::levelCol), tile, kBand, kBand, kDim,
                      kDim);
            c.LeaveTile();
        }
    }

    bool bounded_ = true;
    uint32_t lane_ = 0;
    uint32_t round_ = 0;
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_SCORES_GRAD_CUBE_H
