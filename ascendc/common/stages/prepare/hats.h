/* SPDX-License-Identifier: Apache-2.0
 *
 * hats - rows of q and k scaled to length 1, and beta
 *
 *   rstd_i = (sum_d x_id^2 + epsilon)^-1/2     x_hat = bf16(x rstd), or x as it is     x = q, k
 *   rest = beta_eff - bf16(beta_eff), on the diagonal of 16 x 16 blocks (merge_cube.h)
 *   beta_eff = beta | sigmoid(beta) | 2 sigmoid(beta)
 *
 * Vector  half a chunk at a time: squares 128 -> 64, block sums 64 -> 8 -> 1, 1 / sqrt (Rsqrt is
 *         too coarse). x_hat overwrites x in UB. Grouped heads: each value head computes the hats
 *         it needs; the first of a group stores them.
 * UB      x bf16 16K each; work tiles 2 x 16K; sums and factors in the prefix tile, unused so far
 * Flags   in: kInKeys, kInSmall; out: kOutSmall (rstd, beta_eff and the hats themselves)
 */
#ifndef FLA_PREPARE_HATS_H
#define FLA_PREPARE_HATS_H

#include "vector_core.h"

namespace fla
{

class HatStage
{
  public:
    __aicore__ inline void Run(VectorCore &c)
    {
        const PrepareTiling &t = c.args.t;
        if (c.hatsLeave) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutSmall);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kInKeys);
        ZeroTail(c.q, c.task.at.rows);
        ZeroTail(c.k, c.task.at.rows);
        if (t.l2norm) {
            AscendC::PipeBarrier<PIPE_V>();
            Normalise(c, c.q, c.qRstd);
            Normalise(c, c.k, c.kRstd);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kInSmall);
        StepSize(c);
        if (c.hatsLeave) {
            AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutSmall);
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutSmall);
            Store(c);
            AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutSmall);
        }
    }

    /// beta - bf16(beta) as diagonal blocks, into the slot of the round.
    __aicore__ inline void Rest(VectorCore &c) const
    {
        const Half rounded = c.work[1].ReinterpretCast<bfloat16_t>();
        const Float rest = c.work[1][kChunk];
        Narrow(rounded, c.betaEff, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        Widen(rest, rounded, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Sub(rest, c.betaEff, rest, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        MulLanes(c.work[0], c.diagonal, rest, kBand * kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        c.StoreSlot(PrepareSlot::rest, c.work[0], kBand * kChunk);
    }

  private:
    __aicore__ static inline void Normalise(VectorCore &c, const Half &x, const Float &rstd)
    {
        constexpr uint32_t sums = 0;      // [32, 8] in the prefix tile
        constexpr uint32_t factor = 256;  // [32, 8]
        const Float &wide = c.work[0];
        const Float &square = c.work[1];  // [32, 64]: both halves of a row in one
        const Float &scratch = c.prefix;
        for (uint32_t half = 0; half < kHalves; ++half) {
            const Float norm = rstd[half * kHalfRows];
            Widen(wide, x[half * kHalfElems], kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            const AscendC::BinaryRepeatParams fold{1, 1, 1, kLaneBlocks, kRowBlocks, kRowBlocks};
            AscendC::Mul(square, wide, wide, kLanesF32, kHalfRows, fold);
            AscendC::PipeBarrier<PIPE_V>();
            const Float upper = wide[kLanesF32];
            AscendC::MulAddDst(square, upper, upper, kLanesF32, kHalfRows, fold);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::BlockReduceSum(scratch[sums], square, kHalfRows, kLanesF32, 1, 1, kLaneBlocks);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::BlockReduceSum(norm, scratch[sums], kHalfRows / kBlockF32, kLanesF32, 1, 1,
                                    kLaneBlocks);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Adds(norm, norm, c.args.t.epsilon, kHalfRows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Sqrt(norm, norm, kHalfRows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Div(norm, c.ones, norm, kHalfRows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Brcb(scratch[factor], norm, kHalfRows / kBlockF32, {1, 8});
            AscendC::PipeBarrier<PIPE_V>();
            MulColumn(wide, wide, scratch[factor], kHalfRows);
            AscendC::PipeBarrier<PIPE_V>();
            Narrow(x[half * kHalfElems], wide, kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// beta_eff of the valid rows, zero beyond, and the forms in which it is needed.
    __aicore__ static inline void StepSize(VectorCore &c)
    {
        const PrepareTiling &t = c.args.t;
        const uint32_t rows = c.task.at.rows;
        AscendC::Duplicate(c.betaEff, 0.0f, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        Gather(c, rows);
        AscendC::PipeBarrier<PIPE_V>();
        if (t.betaSigmoids > 0) {
            AscendC::Muls(c.betaEff, c.betaEff, -1.0f, rows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Exp(c.betaEff, c.betaEff, rows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Adds(c.betaEff, c.betaEff, 1.0f, rows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Div(c.betaEff, c.ones, c.betaEff, rows);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Muls(c.betaEff, c.betaEff, static_cast<float>(t.betaSigmoids), rows);
            AscendC::PipeBarrier<PIPE_V>();
        }
        AscendC::Brcb(c.beta, c.betaEff, kChunk / kBlockF32, {1, 8});
        const Float lanes = c.BetaLanes(c.round);
        for (uint32_t half = 0; half < 2; ++half) {  // of the columns of each block
            AscendC::DataCopy(lanes[half * (kChunk / 2)], c.betaEff[half * kBlockF32],
                              AscendC::DataCopyParams(kBands, 1, 1, 0));
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(c.BetaNeg(c.round), c.beta, -1.0f, kChunk * kBlockF32);
    }

    /// Token-major values arrived one per 32-byte line, head-major ones densely.
    __aicore__ static inline void Gather(VectorCore &c, uint32_t rows)
    {
        const PrepareTiling &t = c.args.t;
        Half narrow = View<bfloat16_t>(c.ub, PrepareUb::betaIn, kChunk * kBlockF32 * 2);
        Float lines = View<float>(c.ub, PrepareUb::betaIn, kChunk * kBlockF32);
        if (!t.tokenMajor) {
            if (t.betaIsBf16) {
                Widen(c.betaEff, narrow, rows);
            } else {
                AscendC::Adds(c.betaEff, lines, 0.0f, rows);
            }
            return;
        }
        if (t.betaIsBf16) {
            AscendC::Cast(c.work[0], narrow, AscendC::RoundMode::CAST_NONE, 1, rows, {1, 1, 1, 1});
            AscendC::PipeBarrier<PIPE_V>();
            lines = c.work[0];
        }
        AscendC::WholeReduceSum(c.betaEff, lines, 1, rows, 1, 1, 1);
    }

    __aicore__ static inline void Store(VectorCore &c)
    {
        const PrepareTiling &t = c.args.t;
        const ChunkTask &at = c.task.at;
        const uint32_t wanted = t.outputs;
        if ((wanted & kOutBetaEff) != 0) {
            StoreScalars(c, c.args.betaEff, c.task.valueOut, c.betaEff);
        }
        if (at.head % t.headsPerGroup == 0) {
            const uint64_t first = c.task.keyOut * kDim;
            if ((wanted & kOutQRstd) != 0) {
                StoreScalars(c, c.args.qRstd, c.task.keyOut, t.l2norm ? c.qRstd : c.ones);
            }
            if ((wanted & kOutKRstd) != 0) {
                StoreScalars(c, c.args.kRstd, c.task.keyOut, t.l2norm ? c.kRstd : c.ones);
            }
            if ((wanted & kOutQHat) != 0) {
                AscendC::DataCopy(GmAt<bfloat16_t>(c.args.qHat)[first], c.q, at.rows * kDim);
            }
            if ((wanted & kOutKHat) != 0) {
                AscendC::DataCopy(GmAt<bfloat16_t>(c.args.kHat)[first], c.k, at.rows * kDim);
            }
        }
        if (t.gate != kGateBounded) {  // level 0: the diagonal, which has no decay
            AscendC::DataCopy(c.Slot<bfloat16_t>(PrepareSlot::levels), c.q, kChunkElems);
            AscendC::DataCopy(c.Slot<bfloat16_t>(PrepareSlot::levels + PrepareSlot::tile), c.k,
                              kChunkElems);
        }
    }

    __aicore__ static inline void StoreScalars(VectorCore &c, GM_ADDR base, uint64_t first,
                                               const Float &from)
    {
        const uint32_t bytes = c.task.at.rows * sizeof(float);
        AscendC::DataCopyPad(GmAt<float>(base)[first], from,
                             AscendC::DataCopyExtParams{1, bytes, 0, 0, 0});
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_HATS_H
