/* SPDX-License-Identifier: Apache-2.0
 *
 * scores - products of rows and columns, band by band
 *
 *   band i   [q rows; k rows] (32) x columns of bands 0 .. i-1 (16 i), and of band i itself
 *            where the gate is bounded, k = 128
 *   levels   per level and band: [q; k] (32) x k (16), for the diagonal blocks where it is not
 *
 * L1      rows as two Nz tiles [64, 128], columns as one Nz tile per band; level tiles in turn
 * L0C     one product tile per band: [32, 16 (i + 1)]; its last strip is the diagonal block
 * Out     below the diagonal fp32 [32, 16 i] per band; diagonal blocks [band][32][16] (per level)
 * Flags   per lane L1 scores; L0 and L0C turns
 */
#ifndef FLA_PREPARE_SCORES_CUBE_H
#define FLA_PREPARE_SCORES_CUBE_H

#include "cube_core.h"

namespace fla
{

class ScoresCube
{
  public:
    __aicore__ inline void Open(const CubeCore &c)
    {
        bounded_ = c.args.t.gate == kGateBounded;
        for (uint32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Scores + i);
            if (!bounded_) {
                AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Level + i);
            }
        }
    }

    __aicore__ inline void Close() const
    {
        for (uint32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Scores + i);
            if (!bounded_) {
                AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Level + i);
            }
        }
    }

    /// Scores of both vector cores.
    __aicore__ inline void Run(CubeCore &c, uint32_t round)
    {
        const uint32_t lanes = c.rounds.Lanes(round);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            Load(c, lane, round);
        }
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            Bands(c, lane, round);
        }
        if (!bounded_) {
            const uint32_t tiles = lanes * kPrepareLevels;
            LoadLevel(c, 0, round);
            for (uint32_t i = 0; i < tiles; ++i) {
                if (i + 1 < tiles) {
                    LoadLevel(c, i + 1, round);
                }
                Level(c, i, round);
            }
        }
    }

  private:
    /// Blocks of columns of a band.
    __aicore__ inline uint32_t Columns(uint32_t band) const { return bounded_ ? band + 1 : band; }

    __aicore__ inline void Load(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Scores + lane);
        LoadMatrices(c.L1<bfloat16_t>(lane, PrepareL1::rows, 2 * kChunkElems),
                     c.Slot<bfloat16_t>(lane, round, PrepareSlot::rowQ), 2, kChunk, kDim, kDim,
                     kChunkElems, kChunkElems);
        const auto columns = c.Slot<bfloat16_t>(lane, round, PrepareSlot::columns);
        for (uint32_t band = 0; band < kBands; ++band) {
            const uint32_t rows = Columns(band) * kBand;
            if (rows > 0) {
                LoadMatrices(ColumnTile(c, lane, band), columns[ColumnRow(band, 0) * kDim], 1, rows,
                             kDim, kDim, 0, 0);
            }
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Scores + lane);
    }

    __aicore__ inline void Bands(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        const auto below = c.Slot<float>(lane, round, PrepareSlot::off);
        const auto diagonal = c.Slot<float>(lane, round, PrepareSlot::diagonal);
        const Narrow16 rows = c.L1<bfloat16_t>(lane, PrepareL1::rows, 2 * kChunkElems);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Scores + lane);
        for (uint32_t band = 0; band < kBands; ++band) {
            const uint32_t blocks = Columns(band);
            if (blocks == 0) {
                continue;
            }
            c.TakeL0();
            LoadRows(c, rows, band);
            LoadFractals(c.B<bfloat16_t>(0), ColumnTile(c, lane, band), 0, blocks * kDim / kFractal,
                         1);
            const Wide tile = c.MultiplyTurn<bfloat16_t>(kScoreRows, blocks * kBand, kDim);
            if (band > 0) {
                fla::StoreRows(below[OffElement(band)], tile, kScoreRows, kScoreRows, band * kBand,
                               band * kBand);
            }
            if (bounded_) {
                fla::StoreRows(diagonal[band * kScoreRows * kBand], tile[band * kScoreRows * kBand],
                               kScoreRows, kScoreRows, kBand, kBand);
            }
            c.LeaveTile();
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Scores + lane);
    }

    /// [q rows; k rows] of a band from two Nz tiles [64, 128].
    __aicore__ static inline void LoadRows(CubeCore &c, const Narrow16 &tiles, uint32_t band)
    {
        constexpr uint32_t blocks = kDim / kFractal;
        LoadFractals(c.A<bfloat16_t>(0), tiles, band, blocks, kBands);
        LoadFractals(c.A<bfloat16_t>(blocks), tiles[kChunkElems], band, blocks, kBands);
    }

    /// Level tiles are numbered lane by lane.
    __aicore__ static inline void LoadLevel(CubeCore &c, uint32_t index, uint32_t round)
    {
        const uint32_t lane = index / kPrepareLevels;
        const uint32_t level = index % kPrepareLevels;
        const int32_t id = kL1Level + index % 2;
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(id);
        LoadMatrices(
            LevelTile(c, index),
            c.Slot<bfloat16_t>(lane, round, PrepareSlot::levels + level * PrepareSlot::levelTile),
            2, kChunk, kDim, kDim, kChunkElems, kChunkElems);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(id);
    }

    __aicore__ static inline void Level(CubeCore &c, uint32_t index, uint32_t round)
    {
        const uint32_t lane = index / kPrepareLevels;
        const uint32_t level = index % kPrepareLevels;
        const int32_t id = kL1Level + index % 2;
        const Narrow16 tiles = LevelTile(c, index);
        const auto out = c.Slot<float>(
            lane, round, PrepareSlot::levelDiagonals + level * PrepareSlot::diagonalTile);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(id);
        for (uint32_t band = 0; band < kBands; ++band) {
            c.TakeL0();
            LoadRows(c, tiles, band);
            LoadFractals(c.B<bfloat16_t>(0), tiles[kChunkElems], band, kDim / kFractal, kBands);
            const Wide tile = c.MultiplyTurn<bfloat16_t>(kScoreRows, kBand, kDim);
            fla::StoreRows(out[band * kScoreRows * kBand], tile, kScoreRows, kScoreRows, kBand,
                           kBand);
            c.LeaveTile();
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(id);
    }

    __aicore__ static inline Narrow16 ColumnTile(CubeCore &c, uint32_t lane, uint32_t band)
    {
        return c.L1<bfloat16_t>(lane,
                                PrepareL1::columns + ColumnRow(band, 0) * kDim * sizeof(bfloat16_t),
                                (band + 1) * kBandElems);
    }

    __aicore__ static inline Narrow16 LevelTile(CubeCore &c, uint32_t index)
    {
        return c.L1<bfloat16_t>(PrepareL1::levels + index % 2 * PrepareSlot::levelTile,
                                2 * kChunkElems);
    }

    bool bounded_ = true;
};

}  // namespace fla
#endif  // FLA_PREPARE_SCORES_CUBE_H
