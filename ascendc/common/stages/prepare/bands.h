/* SPDX-License-Identifier: Apache-2.0
 *
 * bands - operands of the products, and the outputs that need no product
 *
 *   columns  for band i: k E(C_ij + S) of every earlier band j, and k / E(P) of band i itself where
 *            the gate is bounded
 *   rows     q E(P) and k E(P); beta enters after the product, in fp32
 *   keys     beta k E(G), the right operand of w; E(G) = E(P) E(Ga)
 *   out      kg = k E(S) E(last),  qg = q E(G),  qg_scaled = bf16(scale qg) from the rounded qg
 *
 * Shapes  half a chunk, fp32 [32, 128], at a time; columns of one band, [16, 128]
 * UB      the suffix tile turns into k E(S); work tiles A and B
 * Flags   free: kInGate after the keys; out: staging
 */
#ifndef FLA_PREPARE_BANDS_H
#define FLA_PREPARE_BANDS_H

#include "vector_core.h"

namespace fla
{

class BandStage
{
  public:
    /// Everything that k enters.
    __aicore__ inline void Keys(VectorCore &c)
    {
        for (uint32_t half = 0; half < kHalves; ++half) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutWork + half);  // gk has left
        }
        const Float &k = c.work[0];
        for (uint32_t half = 0; half < kHalves; ++half) {
            const uint32_t at = half * kHalfElems;
            Widen(k, c.k[at], kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Mul(c.suffix[at], c.suffix[at], k, kHalfElems);
            if (c.args.t.gate == kGateBounded) {
                DiagonalColumns(c, half);
            }
            AscendC::PipeBarrier<PIPE_V>();
            for (uint32_t i = 0; i < kBands / kHalves; ++i) {
                Columns(c, half * (kBands / kHalves) + i);
            }
            KeyRows(c, half);
        }
    }

    /// Everything that q enters.
    __aicore__ inline void Queries(VectorCore &c)
    {
        const Float &q = c.work[0];
        const Float &rounded = c.work[1];
        for (uint32_t half = 0; half < kHalves; ++half) {
            const uint32_t at = half * kHalfElems;
            Widen(q, c.q[at], kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            AscendC::Mul(q, q, c.prefix[at], kHalfElems);
            AscendC::PipeBarrier<PIPE_V>();
            c.StoreSlot(PrepareSlot::rowQ + at * sizeof(bfloat16_t), q, kHalfElems);
            FromStart(c, q, half);
            AscendC::PipeBarrier<PIPE_V>();
            const Half qg = c.Stage(q, kHalfElems);
            const uint32_t valid = RowsIn(c.task.at.rows, half * kHalfRows, kHalfRows);
            if ((c.args.t.outputs & kOutQg) != 0 && valid > 0) {
                const uint64_t row = c.task.valueOut + half * kHalfRows;
                AscendC::DataCopy(GmAt<bfloat16_t>(c.args.qg)[row * kDim], qg, valid * kDim);
            }
            c.Leave();
            AscendC::PipeBarrier<PIPE_V>();
            if ((c.args.t.outputs & kOutQgScaled) != 0) {
                Widen(rounded, qg, kHalfElems);
                AscendC::PipeBarrier<PIPE_V>();
                AscendC::Muls(rounded, rounded, c.args.t.scale, kHalfElems);
                AscendC::PipeBarrier<PIPE_V>();
                c.StoreRows(c.args.qgScaled, rounded, half * kHalfRows, kHalfRows);
            }
        }
    }

  private:
    /// k / E(P): the columns of a band's own rows, anchored like them at the first row.
    __aicore__ static inline void DiagonalColumns(VectorCore &c, uint32_t half)
    {
        const Float &column = c.work[1];
        AscendC::Div(column, c.work[0], c.prefix[half * kHalfElems], kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
        const Half tile = c.Stage(column, kHalfElems);
        for (uint32_t i = 0; i < kBands / kHalves; ++i) {
            const uint32_t band = half * (kBands / kHalves) + i;
            AscendC::DataCopy(ColumnBlock(c, band, band), tile[i * kBandElems], kBandElems);
        }
        c.Leave();
    }

    /// Columns of band `from` for every later band, then kg.
    __aicore__ static inline void Columns(VectorCore &c, uint32_t from)
    {
        const Float keys = c.suffix[from * kBandElems];
        for (uint32_t to = from + 1; to <= kBands; ++to) {
            if (from + 1 == kBands) {  // the last row is the anchor already
                c.StoreRows(c.args.kg, keys, from * kBand, kBand);
                return;
            }
            const uint32_t link = Chain::Join(from, to);
            const Float column = c.work[1][link % 2 * kBandElems];  // two in turn
            MulRow(column, keys, c.chain[link * kDim], kBand);
            AscendC::PipeBarrier<PIPE_V>();
            if (to == kBands) {
                c.StoreRows(c.args.kg, column, from * kBand, kBand);
            } else {
                const Half tile = c.Stage(column, kBandElems);
                AscendC::DataCopy(ColumnBlock(c, to, from), tile, kBandElems);
                c.Leave();
            }
        }
    }

    /// k E(P) and beta k E(G).
    __aicore__ static inline void KeyRows(VectorCore &c, uint32_t half)
    {
        const Float &k = c.work[0];
        const uint32_t at = half * kHalfElems;
        AscendC::Mul(k, k, c.prefix[at], kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
        c.StoreSlot(PrepareSlot::rowK + at * sizeof(bfloat16_t), k, kHalfElems);
        MulColumn(k, k, c.beta[half * kHalfRows * kBlockF32], kHalfRows);
        AscendC::PipeBarrier<PIPE_V>();
        FromStart(c, k, half);
        AscendC::PipeBarrier<PIPE_V>();
        c.StoreSlot(PrepareSlot::keys + at * sizeof(bfloat16_t), k, kHalfElems);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// E(P) -> E(G): one chain row per band.
    __aicore__ static inline void FromStart(VectorCore &c, const Float &x, uint32_t half)
    {
        for (uint32_t i = 0; i < kBands / kHalves; ++i) {
            const uint32_t band = half * (kBands / kHalves) + i;
            const Float rows = x[i * kBandElems];
            MulRow(rows, rows, c.chain[(Chain::start + band) * kDim], kBand);
        }
    }

    __aicore__ static inline AscendC::GlobalTensor<bfloat16_t> ColumnBlock(const VectorCore &c,
                                                                           uint32_t band,
                                                                           uint32_t from)
    {
        return c.Slot<bfloat16_t>(PrepareSlot::columns +
                                  ColumnRow(band, from) * kDim * sizeof(bfloat16_t));
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_BANDS_H
