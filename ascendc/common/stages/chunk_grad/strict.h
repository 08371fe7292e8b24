/* SPDX-License-Identifier: Apache-2.0
 *
 * strict - the strict lower triangle of a score tile, and its parts per level
 *
 *   whole    entries (i, j) with i > j; blocks between bands serve the products between bands,
 *            diagonal blocks those of a band where the gate is bounded
 *   level s  entries of a diagonal block with i in a lower and j in the upper half of the same block
 *            of 2s rows (levels.h); every strict entry of a diagonal block is in one level
 *
 * UB      the score tile [64, 64], masked in place; diagonal blocks [64, 16] in temp 0
 * Flags   out: kSentScores, kSentTemp
 */
#ifndef FLA_CHUNK_GRAD_STRICT_H
#define FLA_CHUNK_GRAD_STRICT_H

#include "grad_core.h"
#include "prepare/levels.h"

namespace fla
{

class StrictStage
{
  public:
    /// The masks: bits of comparisons between row and column numbers, in fp32.
    __aicore__ static inline void Open(GradCore &c)
    {
        const Float &column = c.chain;     // 0 .. 63
        const Float &distance = c.prefix;  // column - row, [64, 64]
        AscendC::CreateVecIndex(column, 0.0f, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t row = 0; row < kChunk; ++row) {
            AscendC::Adds(distance[row * kChunk], column, -static_cast<float>(row), kChunk);
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::CompareScalar(c.Bits(GradUb::strict, kScoreElems), distance, 0.0f,
                               AscendC::CMPMODE::LT, kScoreElems);
        AscendC::CompareScalar(c.Bits(GradUb::diagonal, kScoreElems), distance, 0.0f,
                               AscendC::CMPMODE::EQ, kScoreElems);
        AscendC::CompareScalar(c.Bits(GradUb::lower, kScoreElems), distance, 0.0f,
                               AscendC::CMPMODE::LE, kScoreElems);
        OpenUnits(c);
        if (c.args.t.gate != kGateBounded) {
            for (uint32_t size = 1; size < kBand; size *= 2) {
                OpenLevel(c, size);
            }
        }
    }

    /// Masks the score tile and stores it, with the masked blocks of the levels.
    __aicore__ static inline void Run(GradCore &c, uint32_t whole, uint32_t levelPart)
    {
        AscendC::Select(c.scores, c.Bits(GradUb::strict, kScoreElems), c.scores, 0.0f,
                        AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, kScoreElems);
        GradCore::Send(kSentScores);
        AscendC::DataCopy(c.Slot(whole), c.scores, kScoreElems);
        c.Sent(kSentScores);
        if (c.args.t.gate == kGateBounded) {
            return;
        }
        AscendC::PipeBarrier<PIPE_V>();
        const Float &blocks = c.temp[0];
        for (uint32_t band = 0; band < kBands; ++band) {
            AscendC::DataCopy(blocks[band * kBlockElems], c.scores[band * (kBand * kChunk + kBand)],
                              {kBand, kBand / kBlockF32, (kChunk - kBand) / kBlockF32, 0});
        }
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t level = 0; level < kChunkGradLevels; ++level) {
            const Float part = c.NextTemp();
            AscendC::Select(part, LevelBits(c, level), blocks, 0.0f,
                            AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, kLevelElems);
            c.SendTemp(c.Slot(LevelAt(level) + levelPart), kLevelElems);
        }
    }

  private:
    static constexpr uint32_t kLevelElems = kBands * kBlockElems;
    // Puts rows of upper halves out of reach of the comparison.
    static constexpr float kFar = 1000.0f;

    __aicore__ static inline AscendC::LocalTensor<uint8_t> LevelBits(GradCore &c, uint32_t level)
    {
        return c.Bits(GradUb::levels + level * kLevelElems / 8, kLevelElems);
    }

    /// Row r of [16, 128]: lanes l with l % 16 = r.
    __aicore__ static inline void OpenUnits(GradCore &c)
    {
        const Float &lane = c.chain;
        const Float &tile = c.prefix;
        for (uint32_t block = 0; block < kDim / kBand; ++block) {
            AscendC::CreateVecIndex(lane[block * kBand], 0.0f, kBand);
        }
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t row = 0; row < kBand; ++row) {
            AscendC::Adds(tile[row * kDim], lane, -static_cast<float>(row), kDim);
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::CompareScalar(c.Bits(GradUb::units, kBandElems), tile, 0.0f, AscendC::CMPMODE::EQ,
                               kBandElems);
    }

    /// floor(column / size) - floor(row / size) = -1, in rows of lower halves.
    __aicore__ static inline void OpenLevel(GradCore &c, uint32_t size)
    {
        const Float &part = c.chain;  // floor(column / size), 16 columns
        const Float &tile = c.prefix;
        AscendC::CreateVecIndex(part, 0.0f, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(part, part, 1.0f / static_cast<float>(size), kBand);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Cast(part, part, AscendC::RoundMode::CAST_FLOOR, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t row = 0; row < kChunk; ++row) {
            const uint32_t half = row % kBand / size;
            const float offset = half % 2 == 0 ? kFar : -static_cast<float>(half);
            AscendC::Adds(tile[row * kBand], part, offset, kBand);
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::CompareScalar(LevelBits(c, LevelOf(size) - 1), tile, -1.0f, AscendC::CMPMODE::EQ,
                               kLevelElems);
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_STRICT_H
