/* SPDX-License-Identifier: Apache-2.0
 *
 * decay - steps of the decay and their sums, for every stage that needs factors E(G_i - G_j)
 *
 *   gamma = g | -exp(a_log) softplus(x) | lower_bound sigmoid(exp(a_log) x)       x = g + dt_bias
 *   softplus(x) = max(x, 0) + ln(1 + e), e = exp(-|x|); ln(1 + e) = e ln(u) / (u - 1), u = 1 + e
 *   rounded, which keeps every digit of a small e (the quotient is 1 where u = 1)
 *
 *   scan   P, S of prepare.h by doubling: blocks of s rows hold their inclusive prefix sums in P
 *          and exclusive suffix sums in S; a block of 2s rows adds the total of the one half to the
 *          other. The first row of a band is taken out before: it belongs to the chain.
 *   chain  13 rows that join bands, in natural units like everything here
 *
 * Core    the tiles prefix, suffix (g as it came), work[2], chain, bias, rate, bound; task.at;
 *         args.t with gate, gateIsBf16, hasBias
 * Shapes  gamma, P, S fp32 [64, 128] in the prefix and suffix tiles; chain fp32 [13, 128]
 */
#ifndef FLA_PREPARE_DECAY_H
#define FLA_PREPARE_DECAY_H

#include "vector_core.h"

namespace fla
{

/// Rows `to` .. to + size - 1 of each block of 2 * size rows += row `from` of the block.
__aicore__ inline void EachPair(const Float &sum, uint32_t to, const Float &total, uint32_t from,
                                uint32_t size)
{
    const uint32_t block = 2 * size * kDim;
    for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
        if (2 * size < kBand) {  // one row of all blocks per instruction
            const uint8_t step = 2 * size * kRowBlocks;
            for (uint32_t i = 0; i < size; ++i) {
                const Float rows = sum[(to + i) * kDim + lane];
                AscendC::Add(rows, rows, total[from * kDim + lane], kLanesF32, kChunk / (2 * size),
                             {1, 1, 1, step, step, step});
            }
        } else {  // a block is too far from the next for one instruction
            for (uint32_t at = 0; at < kChunkElems; at += block) {
                const Float rows = sum[at + to * kDim + lane];
                AscendC::Add(rows, rows, total[at + from * kDim + lane], kLanesF32, size,
                             {1, 1, 1, kRowBlocks, kRowBlocks, 0});
            }
        }
    }
}

template <typename Core>
class DecayStage
{
  public:
    /// gamma into the prefix tile, zero beyond the valid rows. `aLog` counts where there is a gate.
    __aicore__ static inline void Make(Core &c, float aLog)
    {
        if (c.args.t.gate != kGateNone) {
            Rate(c, aLog);
        }
        Steps(c);
        AscendC::PipeBarrier<PIPE_V>();
        const uint32_t rows = c.task.at.rows;
        if (rows < kChunk) {
            AscendC::Duplicate(c.prefix[rows * kDim], 0.0f, (kChunk - rows) * kDim);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// gamma -> P and S in the prefix and suffix tiles. `level.Run(c, size)` meets the sums of
    /// blocks of `size` rows, where the gate has no bound.
    template <typename Level>
    __aicore__ static inline void Scan(Core &c, Level level)
    {
        TakeFirstRows(c);
        for (uint32_t size = 1; size < kBand; size *= 2) {
            if (c.args.t.gate != kGateBounded) {
                level.Run(c, size);
            }
            WidenSuffix(c, size);
            WidenPrefix(c, size);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// gamma -> P alone.
    __aicore__ static inline void ScanPrefix(Core &c)
    {
        TakeFirstRows(c);
        for (uint32_t size = 1; size < kBand; size *= 2) {
            WidenPrefix(c, size);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// The first rows are in place: Ga_0 and C_10, C_21, C_32. T_i is P of the last row of band i
    /// and seg_i = T_i + gamma at a_i+1 leads from one band to the next.
    __aicore__ static inline void JoinBands(Core &c)
    {
        constexpr uint32_t c10 = 4, c20 = 5, c30 = 6, last0 = 7, c21 = 8, c31 = 9, last1 = 10,
                           c32 = 11, last2 = 12;
        AddChain(c, 1, c10, Total(c, 0));    // seg_0
        AddChain(c, c20, c21, Total(c, 1));  // seg_1
        AddChain(c, c31, c32, Total(c, 2));  // seg_2
        AddChain(c, last2, c32, Total(c, 3));
        AscendC::PipeBarrier<PIPE_V>();
        AddChain(c, 1, 0, ChainRow(c, 1));
        AddChain(c, c30, c10, ChainRow(c, c20));
        AscendC::PipeBarrier<PIPE_V>();
        AddChain(c, 2, 1, ChainRow(c, c20));
        AddChain(c, c30, c30, ChainRow(c, c31));
        AscendC::PipeBarrier<PIPE_V>();
        AddChain(c, 3, 2, ChainRow(c, c31));
        AddChain(c, last0, c30, Total(c, 3));
        AddChain(c, c20, c10, ChainRow(c, c20));
        AddChain(c, c31, c21, ChainRow(c, c31));
        AscendC::PipeBarrier<PIPE_V>();
        AddChain(c, last1, c31, Total(c, 3));
    }

    /// -exp(a_log) in 64 lanes.
    __aicore__ static inline void Rate(Core &c, float aLog)
    {
        AscendC::Duplicate(c.rate, aLog, kLanesF32);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Exp(c.rate, c.rate, kLanesF32);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mins(c.rate, c.rate, kHighestRate, kLanesF32);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(c.rate, c.rate, -1.0f, kLanesF32);
    }

    /// gamma = rate * softplus(x) for up to half a chunk. `spare` may be where gamma goes.
    __aicore__ static inline void Softplus(Core &c, const Float &gamma, const Float &x,
                                           const Float &spare, uint32_t count)
    {
        const Float &low = c.work[0];
        const Float &log = c.work[1];
        AscendC::Abs(spare, x, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(spare, spare, -1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Exp(spare, spare, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Adds(low, spare, 1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Ln(log, low, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Adds(low, low, -1.0f, count);
        AscendC::Maxs(log, log, kTiny, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Maxs(low, low, kTiny, count);
        AscendC::Mul(log, log, spare, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Div(log, log, low, count);
        AscendC::Maxs(spare, x, 0.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Add(log, log, spare, count);
        AscendC::PipeBarrier<PIPE_V>();
        MulLanes(gamma, log, c.rate, count);
    }

  private:
    // exp(a_log) stays finite, so that an x of exactly 0 gives 0 and not 0 * inf.
    static constexpr float kHighestRate = 3.0e38f;
    // Below half an ulp of 1: replaces numerator and denominator where u = 1.
    static constexpr float kTiny = 1.0e-9f;

    /// gamma of the valid rows into the prefix tile.
    __aicore__ static inline void Steps(Core &c)
    {
        const auto &t = c.args.t;
        const uint32_t rows = c.task.at.rows;
        const uint32_t count = rows * kDim;
        if (t.gate == kGateNone) {
            if (t.gateIsBf16) {
                Widen(c.prefix, c.suffix.template ReinterpretCast<bfloat16_t>(), count);
            } else {
                AscendC::DataCopy(c.prefix, c.suffix, count);
            }
            return;
        }
        Float x = c.suffix;
        if (t.gateIsBf16) {
            Widen(c.prefix, c.suffix.template ReinterpretCast<bfloat16_t>(), count);
            x = c.prefix;
        }
        AscendC::PipeBarrier<PIPE_V>();
        if (t.hasBias) {
            AddRow(c.prefix, x, c.bias, rows);
            x = c.prefix;
            AscendC::PipeBarrier<PIPE_V>();
        }
        if (t.gate == kGateBounded) {
            Bounded(c, x, count);
            return;
        }
        const bool inPrefix = t.gateIsBf16 || t.hasBias;
        for (uint32_t half = 0; half < kHalves; ++half) {
            const uint32_t part = RowsIn(rows, half * kHalfRows, kHalfRows) * kDim;
            if (part > 0) {
                const uint32_t at = half * kHalfElems;
                Softplus(c, c.prefix[at], x[at], inPrefix ? c.suffix[at] : c.prefix[at], part);
            }
        }
    }

    __aicore__ static inline void Bounded(Core &c, const Float &x, uint32_t count)
    {
        MulLanes(c.prefix, x, c.rate, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Exp(c.prefix, c.prefix, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Adds(c.prefix, c.prefix, 1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Div(c.prefix, c.bound, c.prefix, kLanesF32, count / kLanesF32,
                     {1, 1, 1, kLaneBlocks, 0, kLaneBlocks});
    }

    /// Moves gamma of the first row of each band into the chain and zeroes it in the tile.
    __aicore__ static inline void TakeFirstRows(Core &c)
    {
        for (uint32_t band = 0; band < kBands; ++band) {
            const uint32_t row = band == 0 ? Chain::start : Chain::Join(band - 1, band);
            AscendC::DataCopy(c.chain[row * kDim], c.prefix[band * kBandElems], kDim);
        }
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t band = 0; band < kBands; ++band) {
            AscendC::Duplicate(c.prefix[band * kBandElems], 0.0f, kDim);
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// S of the upper rows of every block of 2 * size gets the total of the lower ones.
    __aicore__ static inline void WidenSuffix(Core &c, uint32_t size)
    {
        if (size == 1) {
            FirstSuffix(c);
            return;
        }
        EachPair(c.suffix, 0, c.prefix, 2 * size - 1, size);
    }

    /// P of the lower rows of every block of 2 * size gets the total of the upper ones.
    __aicore__ static inline void WidenPrefix(Core &c, uint32_t size)
    {
        EachPair(c.prefix, size, c.prefix, size - 1, size);
    }

    /// S of blocks of 2: gamma of the odd row for the even row, 0 for the odd row.
    __aicore__ static inline void FirstSuffix(Core &c)
    {
        constexpr uint8_t step = 2 * kRowBlocks;
        for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
            AscendC::Adds(c.suffix[lane], c.prefix[kDim + lane], 0.0f, kLanesF32, kChunk / 2,
                          {1, 1, step, step});
            AscendC::Duplicate(c.suffix[kDim + lane], 0.0f, kLanesF32, kChunk / 2, 1, step);
        }
    }

    __aicore__ static inline Float ChainRow(Core &c, uint32_t row) { return c.chain[row * kDim]; }

    __aicore__ static inline void AddChain(Core &c, uint32_t to, uint32_t a, const Float &b)
    {
        AscendC::Add(ChainRow(c, to), ChainRow(c, a), b, kDim);
    }

    /// P of the last row of a band.
    __aicore__ static inline Float Total(Core &c, uint32_t band)
    {
        return c.prefix[(band * kBand + kBand - 1) * kDim];
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_DECAY_H
