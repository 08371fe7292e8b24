/* SPDX-License-Identifier: Apache-2.0
 *
 * operands - what the cube needs of a task: factors of the decay times q, k, v, and masked scores
 *
 *   factors  X of rows and Y of columns, links between bands (chunk_grad.h): E(P), E(S) and the chain
 *            of prepare.h; with the bounded gate X = E(P - T / 2), Y = 1 / X, T = P of the last row
 *            of the band, so that neither passes E(8 steps), and the links take up the halves of T
 *   columns  for band i: k Y link_ij of every earlier band j, and k Y of band i itself
 *   rows     for band j: q X link_ij and beta k X link_ij of every later band i, and q X, beta k X
 *            of band j itself; products inside a band only where the gate is bounded
 *   levels   where it is not: their X (levels.h), q X, and k X with beta in the lower rows, which
 *            are rows, but not in the upper ones, which are columns
 *   values   -beta v, beta k E(G), in bf16; the signs make V negative and dL come out as it is
 *   scores   stril(dAqk), and the masked blocks of the levels; its diagonal stays here; tril(A)
 *
 * UB      X and Y in the prefix and suffix tiles; q, k in the ring; v by halves, then A, in the factor tile;
 *         a band of k or q in temp 0, the same times a factor in temp 1, operands leave from temps
 *         2 and 3
 * Flags   in: kGotGate (raw_g, bias, beta), kGotKeys (q, k), kGotFactor (v, A), kGotScores (dAqk);
 *         out: kSentWhole (factors), kSentTemp, kSentStage, kSentScores
 */
#ifndef FLA_CHUNK_GRAD_OPERANDS_H
#define FLA_CHUNK_GRAD_OPERANDS_H

#include "grad_core.h"
#include "prepare/decay.h"
#include "strict.h"

namespace fla
{

/// Operands of the levels, written during the scan.
class GradLevels
{
  public:
    __aicore__ inline void Run(GradCore &c, uint32_t size) const
    {
        const uint32_t at = LevelAt(LevelOf(size) - 1);
        for (uint32_t half = 0; half < kHalves; ++half) {
            const uint32_t first = half * kHalfElems;
            AscendC::PipeBarrier<PIPE_V>();
            LevelStage::Factors(c.work[0], c.prefix[first], c.suffix[first], size);
            AscendC::PipeBarrier<PIPE_V>();
            for (uint32_t i = 0; i < kBands / kHalves; ++i) {
                Band(c, half * (kBands / kHalves) + i, c.temp[i], at, size);
            }
        }
    }

  private:
    __aicore__ static inline void Band(GradCore &c, uint32_t band, const Float &x, uint32_t at,
                                       uint32_t size)
    {
        const uint32_t bytes = at + band * kGradBand;
        const Float factor = c.NextTemp();
        AscendC::Adds(factor, x, 0.0f, kBandElems);
        c.SendTemp(c.Slot(bytes + GradSlot::levelFactor), kBandElems);
        const Float q = c.NextTemp();
        Widen(q, c.q[band * kBandElems], kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(q, q, x, kBandElems);
        c.SendTemp(c.Slot(bytes + GradSlot::levelQ), kBandElems);
        const Float k = c.NextTemp();
        Widen(k, c.k[band * kBandElems], kBandElems);
        const Float beta = c.Column(0, c.Beta(c.round)[band * kBand]);
        AscendC::PipeBarrier<PIPE_V>();
        LowerRows(k, beta, size);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(k, k, x, kBandElems);
        c.SendTemp(c.Slot(bytes + GradSlot::levelK), kBandElems);
    }

    /// k *= beta in the lower rows of every block of 2 * size rows.
    __aicore__ static inline void LowerRows(const Float &k, const Float &beta, uint32_t size)
    {
        for (uint32_t row = size; row < kBand; row += 2 * size) {
            for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
                const Float rows = k[row * kDim + lane];
                AscendC::Mul(rows, rows, beta[row * kBlockF32], kLanesF32, size,
                             {1, 1, 0, kRowBlocks, kRowBlocks, 1});
            }
        }
    }
};

class OperandStage
{
  public:
    /// Everything of a task but the loads that the caller started (raw_g, bias, beta).
    __aicore__ inline void Run(GradCore &c)
    {
        Fetch(c);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotGate);
        StepSize(c);
        c.Settle(kSentWhole);
        c.SettleTemps();
        DecayStage<GradCore>::Make(c, c.ALog());
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotKeys);
        ZeroTail(c.q, c.task.at.rows);
        ZeroTail(c.k, c.task.at.rows);
        Sums(c);
        Factors(c);
        for (uint32_t band = 0; band < kBands; ++band) {
            Keys(c, band);
            Queries(c, band);
            Values(c, band);
        }
        FetchInverse(c);
        Scores(c);
        Inverse(c);
    }

  private:
    /// Loads that fit only now: q, k, dAqk, half of v.
    __aicore__ static inline void Fetch(GradCore &c)
    {
        const uint32_t rows = c.task.at.rows;
        GradCore::Return(kGotKeys);
        AscendC::DataCopy(c.q, GmAt<bfloat16_t>(c.args.q)[c.task.keyRow * kDim], rows * kDim);
        AscendC::DataCopy(c.k, GmAt<bfloat16_t>(c.args.k)[c.task.keyRow * kDim], rows * kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotKeys);
        FetchValues(c, 0);
        c.Settle(kSentScores);
        GradCore::Return(kGotScores);
        AscendC::DataCopy(c.scores, GmAt<float>(c.args.dAqk)[c.task.valueRow * kChunk],
                          rows * kChunk);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
    }

    __aicore__ static inline Half ValuesIn(GradCore &c)
    {
        return View<bfloat16_t>(c.ub, GradUb::factor, kHalfElems);
    }

    __aicore__ static inline void FetchValues(GradCore &c, uint32_t half)
    {
        const uint32_t rows = RowsIn(c.task.at.rows, half * kHalfRows, kHalfRows);
        GradCore::Return(kGotFactor);
        if (rows > 0) {
            const uint64_t first = c.task.valueRow + half * kHalfRows;
            AscendC::DataCopy(ValuesIn(c), GmAt<bfloat16_t>(c.args.v)[first * kDim], rows * kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
    }

    __aicore__ static inline void FetchInverse(GradCore &c)
    {
        GradCore::Return(kGotFactor);
        AscendC::DataCopy(ValuesIn(c), GmAt<bfloat16_t>(c.args.akk)[c.task.valueRow * kChunk],
                          c.task.at.rows * kChunk);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
    }

    /// beta of the valid rows in fp32, zero beyond.
    __aicore__ static inline void StepSize(GradCore &c)
    {
        const Float beta = c.Beta(c.round);
        AscendC::Duplicate(beta, 0.0f, kChunk);
        AscendC::PipeBarrier<PIPE_V>();
        if (c.args.t.betaIsBf16) {
            Widen(beta, View<bfloat16_t>(c.ub, GradUb::betaIn, kChunk), c.task.at.rows);
        } else {
            AscendC::Adds(beta, View<float>(c.ub, GradUb::betaIn, kChunk), 0.0f, c.task.at.rows);
        }
    }

    /// Exponents of X, Y and the links.
    __aicore__ static inline void Sums(GradCore &c)
    {
        if (c.args.t.gate == kGateBounded) {
            DecayStage<GradCore>::ScanPrefix(c);
        } else {
            DecayStage<GradCore>::Scan(c, GradLevels());
        }
        DecayStage<GradCore>::JoinBands(c);
        AscendC::Duplicate(c.chain[GradChain::last * kDim], 0.0f, kDim);
        AscendC::PipeBarrier<PIPE_V>();
        if (c.args.t.gate == kGateBounded) {
            Centre(c);
        }
    }

    /// Moves the anchor of each band from its first row to the middle of its decay.
    __aicore__ static inline void Centre(GradCore &c)
    {
        const Float &half = c.temp[0];  // T / 2, one row per band
        const Float minus = half[kBands * kDim];
        for (uint32_t band = 0; band < kBands; ++band) {
            const Float total = c.prefix[(band * kBand + kBand - 1) * kDim];
            AscendC::Muls(half[band * kDim], total, 0.5f, kDim);
            AscendC::Muls(minus[band * kDim], total, -0.5f, kDim);
        }
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t band = 0; band < kBands; ++band) {
            const Float rows = c.prefix[band * kBandElems];
            AddRow(rows, rows, minus[band * kDim], kBand);
            Lengthen(c, Chain::start + band, half[band * kDim]);
            Lengthen(c, GradChain::Last(band), half[band * kDim]);
            for (uint32_t to = band + 1; to < kBands; ++to) {
                Lengthen(c, Chain::Join(band, to), half[band * kDim]);
            }
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(c.suffix, c.prefix, -1.0f, kChunkElems);
        for (uint32_t band = 1; band < kBands; ++band) {
            for (uint32_t from = 0; from < band; ++from) {
                Lengthen(c, Chain::Join(from, band), half[band * kDim]);
            }
        }
        AscendC::PipeBarrier<PIPE_V>();
    }

    __aicore__ static inline void Lengthen(GradCore &c, uint32_t row, const Float &by)
    {
        AscendC::Add(c.chain[row * kDim], c.chain[row * kDim], by, kDim);
    }

    /// X, Y, links; they leave as they are, for the gradients.
    __aicore__ static inline void Factors(GradCore &c)
    {
        AscendC::Exp(c.prefix, c.prefix, kChunkElems);
        AscendC::Exp(c.suffix, c.suffix, kChunkElems);
        AscendC::Exp(c.chain, c.chain, GradChain::rows * kDim);
        GradCore::Send(kSentWhole);
        AscendC::DataCopy(c.Slot(GradSlot::prefix), c.prefix, kChunkElems);
        AscendC::DataCopy(c.Slot(GradSlot::suffix), c.suffix, kChunkElems);
        AscendC::DataCopy(c.Slot(GradSlot::chain), c.chain, GradChain::rows * kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(kBackSuffix);
        c.Sent(kSentWhole);
    }

    __aicore__ static inline void Keys(GradCore &c, uint32_t band)
    {
        const Float &k = c.temp[0];
        const Float &x = c.temp[1];
        const uint32_t at = band * kBandElems;
        const Float beta = c.Column(0, c.Beta(c.round)[band * kBand]);
        Widen(k, c.k[at], kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        Own(c, k, c.suffix[at], Columns(c, band, band));
        if (band + 1 < kBands) {
            AscendC::Mul(x, k, c.suffix[at], kBandElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t to = band + 1; to < kBands; ++to) {
            Linked(c, x, Chain::Join(band, to), Columns(c, to, band));
        }
        MulColumn(k, k, beta, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        Rows(c, band, GradSlot::rowsK);
        MulRow(x, x, c.chain[(Chain::start + band) * kDim], kBand);
        AscendC::PipeBarrier<PIPE_V>();
        c.SendNarrow(c.Slot<bfloat16_t>(GradSlot::keys)[at], x, kBand);
    }

    __aicore__ static inline void Queries(GradCore &c, uint32_t band)
    {
        Widen(c.temp[0], c.q[band * kBandElems], kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        Rows(c, band, GradSlot::rowsQ);
    }

    /// q or beta k of a band (temp 0), as rows for its own band and every earlier one; times X in
    /// temp 1 afterwards.
    __aicore__ static inline void Rows(GradCore &c, uint32_t band, uint32_t bytes)
    {
        const Float &x = c.temp[1];
        const Float factor = c.prefix[band * kBandElems];
        Own(c, c.temp[0], factor, c.Slot(bytes + RowBlock(band, band) * kGradBand));
        AscendC::Mul(x, c.temp[0], factor, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        for (uint32_t column = 0; column < band; ++column) {
            Linked(c, x, Chain::Join(column, band),
                   c.Slot(bytes + RowBlock(column, band) * kGradBand));
        }
    }

    /// -beta v.
    __aicore__ static inline void Values(GradCore &c, uint32_t band)
    {
        const Float &v = c.temp[0];
        const uint32_t inHalf = band % (kBands / kHalves);
        const uint32_t rows = RowsIn(c.task.at.rows, band * kBand, kBand);
        if (inHalf == 0) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
        }
        const Float beta = c.Column(0, c.Beta(c.round)[band * kBand]);
        if (rows > 0) {
            Widen(v, ValuesIn(c)[inHalf * kBandElems], rows * kDim);
        }
        if (rows < kBand) {
            AscendC::Duplicate(v[rows * kDim], 0.0f, (kBand - rows) * kDim);
        }
        AscendC::PipeBarrier<PIPE_V>();
        if (band + 1 == kBands / kHalves) {
            FetchValues(c, 1);
        }
        AscendC::Muls(beta, beta, -1.0f, kBand * kBlockF32);
        AscendC::PipeBarrier<PIPE_V>();
        MulColumn(v, v, beta, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        c.SendNarrow(c.Slot<bfloat16_t>(GradSlot::values)[band * kBandElems], v, kBand);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// Diagonal and strict triangle of dAqk; whatever lies above, or beyond the valid rows, goes.
    __aicore__ static inline void Scores(GradCore &c)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        const uint32_t rows = c.task.at.rows;
        if (rows < kChunk) {
            AscendC::Duplicate(c.scores[rows * kChunk], 0.0f, (kChunk - rows) * kChunk);
            AscendC::PipeBarrier<PIPE_V>();
        }
        AscendC::Select(c.work[0], c.Bits(GradUb::diagonal, kScoreElems), c.scores, 0.0f,
                        AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, kScoreElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::WholeReduceSum(c.Diagonal(c.round), c.work[0], kLanesF32, kChunk, 1, 1,
                                kLaneBlocks);
        StrictStage::Run(c, GradSlot::strictQ, GradSlot::levelStrictQ);
    }

    /// tril(A), zero beyond the valid rows.
    __aicore__ static inline void Inverse(GradCore &c)
    {
        const Float &wide = c.work[0];
        const uint32_t count = c.task.at.rows * kChunk;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
        AscendC::PipeBarrier<PIPE_V>();
        Widen(wide, ValuesIn(c), count);
        if (count < kScoreElems) {
            AscendC::Duplicate(wide[count], 0.0f, kScoreElems - count);
        }
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Select(wide, c.Bits(GradUb::lower, kScoreElems), wide, 0.0f,
                        AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, kScoreElems);
        AscendC::PipeBarrier<PIPE_V>();
        const auto to = c.Slot<bfloat16_t>(GradSlot::inverse);
        for (uint32_t at = 0; at < kScoreElems; at += kBandElems) {
            c.SendNarrow(to[at], wide[at], kBand);
        }
    }

    /// An operand for products inside a band, which the levels make where the gate has no bound.
    __aicore__ static inline void Own(GradCore &c, const Float &x, const Float &factor,
                                      const AscendC::GlobalTensor<float> &to)
    {
        if (c.args.t.gate == kGateBounded) {
            AscendC::Mul(c.NextTemp(), x, factor, kBandElems);
            c.SendTemp(to, kBandElems);
        }
    }

    /// Rows times one row of the chain.
    __aicore__ static inline void Linked(GradCore &c, const Float &x, uint32_t link,
                                         const AscendC::GlobalTensor<float> &to)
    {
        MulRow(c.NextTemp(), x, c.chain[link * kDim], kBand);
        c.SendTemp(to, kBandElems);
    }

    __aicore__ static inline AscendC::GlobalTensor<float> Columns(const GradCore &c, uint32_t band,
                                                                  uint32_t from)
    {
        return c.Slot(GradSlot::columns + ColumnBlockOf(band, from) * kGradBand);
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_OPERANDS_H
