/* SPDX-License-Identifier: Apache-2.0
 *
 * norm_grad - a band of dq or dk on its way out: the sum over a group, then the l2norm
 *
 *   sum    value heads of a key head in their order, in fp32; all but the last only add
 *   norm   dx = rstd (dx_hat - x_hat (x_hat . dx_hat)), where the forward normalised x
 *
 * Shapes  dx, x_hat fp32 [16, 128]; out bf16 or fp32
 * UB      dx in temp 2, a product in temp 3, the sum so far in the second half of the score tile
 * Flags   in: kGotScores; out: kSentTemp, kSentStage; kBackSums orders one head's sum before the
 *         next head's load of it
 */
#ifndef FLA_CHUNK_GRAD_NORM_GRAD_H
#define FLA_CHUNK_GRAD_NORM_GRAD_H

#include "grad_core.h"

namespace fla
{

/// Which of the two a band belongs to.
enum NormSide : uint32_t { kNormQueries, kNormKeys };

class NormGrad
{
  public:
    /// Band `band` of dq or dk, of this value head, is in temp 2. `rows` of it are valid.
    __aicore__ static inline void Run(GradCore &c, NormSide side, uint32_t band, uint32_t rows,
                                      const Float &hat)
    {
        const uint32_t heads = c.args.t.headsPerGroup;
        const uint32_t head = c.task.at.head % heads;
        const Float &dx = c.temp[2];
        const auto sum = GmAt<float>(c.args.workspace + GradSumsAt(c.args.t, c.core) +
                                     side * kGradTile)[band * kBandElems];
        if (head > 0) {
            const Float before = c.scores[kBandElems];
            GradCore::Return(kGotScores);
            AscendC::DataCopy(before, sum, kBandElems);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
            AscendC::Add(dx, dx, before, kBandElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
        if (head + 1 < heads) {
            GradCore::Send(kSentTemp);
            AscendC::DataCopy(sum, dx, kBandElems);
            c.Sent(kSentTemp);
            return;
        }
        if (c.args.t.hasRstd) {
            Normalise(c, dx, hat, (side == kNormQueries ? c.qRstd : c.kRstd)[band * kBand]);
        }
        GM_ADDR out = side == kNormQueries ? c.args.dq : c.args.dk;
        const uint64_t at = (c.task.keyRow + band * kBand) * kDim;
        if (c.args.t.keysAreWide) {
            GradCore::Send(kSentTemp);
            AscendC::DataCopy(GmAt<float>(out)[at], dx, rows * kDim);
            c.Sent(kSentTemp);
        } else {
            c.SendNarrow(GmAt<bfloat16_t>(out)[at], dx, rows);
        }
    }

  private:
    __aicore__ static inline void Normalise(GradCore &c, const Float &dx, const Float &hat,
                                            const Float &rstd)
    {
        const Float &product = c.temp[3];
        const Float &dots = c.last;  // free until the bands are done
        AscendC::Mul(product, hat, dx, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        SumRows(dots, product, c.chain);
        const Float dot = c.Column(0, dots);
        const Float scale = c.Column(1, rstd);
        AscendC::PipeBarrier<PIPE_V>();
        MulColumn(product, hat, dot, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Sub(dx, dx, product, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        MulColumn(dx, dx, scale, kBand);
        AscendC::PipeBarrier<PIPE_V>();
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_NORM_GRAD_H
