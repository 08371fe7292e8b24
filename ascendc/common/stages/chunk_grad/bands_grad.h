/* SPDX-License-Identifier: Apache-2.0
 *
 * bands_grad - from the products of a task to dq, dk, dv, dbeta and dG, band by band
 *
 *   x  = X (rowQ + scale start dq_raw)         dq = x + dAqk_ii k
 *   y  = X (rowK + start Rk)                   dbeta = rowsum(Rv v + k y)
 *   z  = Y (col + last v_new D^T)              dk = beta y + z + dAqk_ii q
 *   dv = beta Rv                               dG = q x + k (beta y - z)
 *
 *   X, Y are the factors of rows and columns, start and last the links of a band to the first and
 *   last row of the chunk: X start = E(G), Y last = E(G_last - G). At the last valid row dG gets
 *   E(G_last) rowsum(S D) + sum of k Y last v_new D^T: diagonals of the blocks that the cube left,
 *   and a band of partial sums over the rows, folded together. Where the gate has no bound, x, y
 *   and z get the factor of each level times its products on top.
 *
 * UB      q, k, x | y | dk, product in temps 0..3; arrivals in pairs of bands in the two halves of
 *         the ring, in turn; X and Y in the factor tile; dG in the prefix tile; chain links in
 *         their own tile; row sums use the chain tile as scratch
 * Flags   in: kGotRing (ids of both halves), kGotFactor, kGotScores; out: those of norm_grad.h,
 *         kSentStage
 */
#ifndef FLA_CHUNK_GRAD_BANDS_GRAD_H
#define FLA_CHUNK_GRAD_BANDS_GRAD_H

#include "norm_grad.h"

namespace fla
{

class BandsGrad
{
  public:
    /// Gradients of the task but the gate's; dG is in the prefix tile afterwards, zero beyond the
    /// valid rows.
    __aicore__ inline void Run(GradCore &c)
    {
        bounded_ = c.args.t.gate == kGateBounded;
        FetchSmall(c);
        FetchFirst(c, 0);
        c.Settle(kSentWhole);
        c.Settle(kSentScores);
        c.SettleTemps();
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        const uint32_t rows = c.task.at.rows;
        for (uint32_t band = 0; band * kBand < rows; ++band) {
            Band(c, band, RowsIn(rows, band * kBand, kBand));
        }
        const uint32_t used = RoundUp(rows);
        if (used < kChunk) {
            AscendC::Duplicate(c.prefix[used * kDim], 0.0f, (kChunk - used) * kDim);
        }
        LastRow(c);
    }

  private:
    /// A half of the ring: two bands, or four bf16 ones.
    __aicore__ static inline Float Arrival(GradCore &c, uint32_t half, uint32_t which)
    {
        return View<float>(c.ub, GradUb::ring + (2 * half + which) * kGradBand, kBandElems);
    }
    __aicore__ static inline Half NarrowArrival(GradCore &c, uint32_t half, uint32_t which)
    {
        return View<bfloat16_t>(c.ub, GradUb::ring + half * 2 * kGradBand + which * kGradBand / 2,
                                kBandElems);
    }

    __aicore__ static inline uint32_t RoundUp(uint32_t rows)
    {
        return (rows + kBand - 1) / kBand * kBand;
    }

    /// Opens a half of the ring for loads, and closes it.
    __aicore__ static inline void Open(uint32_t half) { GradCore::Return(kGotRing + half); }
    __aicore__ static inline void Loaded(uint32_t half)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotRing + half);
    }
    __aicore__ static inline void Take(uint32_t half)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotRing + half);
    }

    __aicore__ static inline void LoadBand(GradCore &c, const Float &to, uint32_t bytes,
                                           uint32_t band)
    {
        AscendC::DataCopy(to, c.Slot(bytes)[band * kBandElems], kBandElems);
    }

    __aicore__ static inline void LoadFactor(GradCore &c, uint32_t bytes, uint32_t band)
    {
        GradCore::Return(kGotFactor);
        LoadBand(c, c.factor, bytes, band);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
    }

    /// Zeroes rows of a band that GM did not fill.
    template <typename T>
    __aicore__ static inline void ZeroRows(const AscendC::LocalTensor<T> &tile, uint32_t rows)
    {
        using Bits = int16_t;
        constexpr uint32_t lanes = kDim * sizeof(T) / sizeof(Bits);
        if (rows < kBand) {
            AscendC::Duplicate(tile[rows * kDim].template ReinterpretCast<Bits>(),
                               static_cast<Bits>(0), (kBand - rows) * lanes);
        }
    }

    /// The chain, and where the forward normalised the norms.
    __aicore__ static inline void FetchSmall(GradCore &c)
    {
        if (c.args.t.hasRstd && c.task.at.rows < kChunk) {
            AscendC::Duplicate(c.qRstd, 0.0f, kChunk);
            AscendC::Duplicate(c.kRstd, 0.0f, kChunk);
        }
        GradCore::Return(kGotScores);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(kBackFactors + c.round % 2);
        AscendC::DataCopy(c.links, c.Slot(GradSlot::chain), GradChain::rows * kDim);
        if (c.args.t.hasRstd) {
            LoadNorms(c, c.qRstd, c.args.qRstd);
            LoadNorms(c, c.kRstd, c.args.kRstd);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
    }

    /// One value per valid row; the last 32-byte block is filled up with zeros.
    __aicore__ static inline void LoadNorms(GradCore &c, const Float &to, GM_ADDR base)
    {
        const uint32_t rows = c.task.at.rows;
        const uint32_t bytes = rows * sizeof(float);
        AscendC::DataCopyPadExtParams<float> pad;
        pad.isPad = true;
        pad.rightPadding = (kBlockF32 - rows % kBlockF32) % kBlockF32;
        AscendC::DataCopyPad(to, GmAt<float>(base)[c.task.keyRow],
                             AscendC::DataCopyExtParams{1, bytes, 0, 0, 0}, pad);
    }

    /// q, k and rowQ of a band, and X.
    __aicore__ inline void FetchFirst(GradCore &c, uint32_t band) const
    {
        const uint32_t rows = RowsIn(c.task.at.rows, band * kBand, kBand);
        const uint64_t first = (c.task.keyRow + band * kBand) * kDim;
        Open(0);
        AscendC::DataCopy(NarrowArrival(c, 0, 0), GmAt<bfloat16_t>(c.args.q)[first], rows * kDim);
        AscendC::DataCopy(NarrowArrival(c, 0, 1), GmAt<bfloat16_t>(c.args.k)[first], rows * kDim);
        if (HasRows(band)) {
            LoadBand(c, Arrival(c, 0, 1), GradSlot::rowQ, band);
        }
        Loaded(0);
        LoadFactor(c, GradSlot::prefix, band);
    }

    /// Whether the cube made rows, columns of a band.
    __aicore__ inline bool HasRows(uint32_t band) const { return bounded_ || band > 0; }
    __aicore__ inline bool HasColumns(uint32_t band) const { return bounded_ || band + 1 < kBands; }

    __aicore__ inline void Band(GradCore &c, uint32_t band, uint32_t rows)
    {
        Queries(c, band, rows);
        Keys(c, band);
        Values(c, band, rows);
        Columns(c, band, rows);
    }

    /// x, dq and the first part of dG.
    __aicore__ inline void Queries(GradCore &c, uint32_t band, uint32_t rows)
    {
        const Float &q = c.temp[0];
        const Float &k = c.temp[1];
        const Float &x = c.temp[2];
        const Float raw = Arrival(c, 1, 0);
        Open(1);
        AscendC::DataCopy(raw, GmAt<float>(c.args.dqRaw)[(c.task.valueRow + band * kBand) * kDim],
                          rows * kDim);
        LoadBand(c, Arrival(c, 1, 1), GradSlot::rk, band);
        Loaded(1);
        c.SettleTemps();
        Take(0);
        ZeroRows(NarrowArrival(c, 0, 0), rows);
        ZeroRows(NarrowArrival(c, 0, 1), rows);
        AscendC::PipeBarrier<PIPE_V>();
        Widen(q, NarrowArrival(c, 0, 0), kBandElems);
        Widen(k, NarrowArrival(c, 0, 1), kBandElems);
        Take(1);
        ZeroRows(raw, rows);
        AscendC::PipeBarrier<PIPE_V>();
        MulRow(raw, raw, c.links[(Chain::start + band) * kDim], kBand);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(raw, raw, c.args.t.scale, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        if (HasRows(band)) {
            AscendC::Add(raw, raw, Arrival(c, 0, 1), kBandElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
        AscendC::Mul(x, raw, c.factor, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AddLevels(c, x, GradSlot::levelRowQ, band, 0);
        AscendC::Mul(c.prefix[band * kBandElems], q, x, kBandElems);
        const Float diagonal = c.Column(0, c.Diagonal(c.round)[band * kBand]);
        AscendC::PipeBarrier<PIPE_V>();
        AddColumn(x, k, diagonal);
        AscendC::PipeBarrier<PIPE_V>();
        NormGrad::Run(c, kNormQueries, band, rows, q);
    }

    /// y, in temp 2.
    __aicore__ inline void Keys(GradCore &c, uint32_t band)
    {
        const Float rk = Arrival(c, 1, 1);
        Open(0);
        if (HasRows(band)) {
            LoadBand(c, Arrival(c, 0, 0), GradSlot::rowK, band);
        }
        LoadBand(c, Arrival(c, 0, 1), GradSlot::rv, band);
        Loaded(0);
        const Float minus = c.record;  // -E(Ga): the cube left -Rk
        AscendC::Muls(minus, c.links[(Chain::start + band) * kDim], -1.0f, kDim);
        AscendC::PipeBarrier<PIPE_V>();
        MulRow(rk, rk, minus, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        Take(0);
        if (HasRows(band)) {
            AscendC::Add(rk, rk, Arrival(c, 0, 0), kBandElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
        c.SettleTemps();
        AscendC::Mul(c.temp[2], rk, c.factor, kBandElems);
        LoadFactor(c, GradSlot::suffix, band);
    }

    /// dv, dbeta; beta y, in temp 2.
    __aicore__ inline void Values(GradCore &c, uint32_t band, uint32_t rows)
    {
        const Float &k = c.temp[1];
        const Float &y = c.temp[2];
        const Float &product = c.temp[3];
        const Float rv = Arrival(c, 0, 1);
        const Half v = NarrowArrival(c, 1, 0);
        const uint64_t first = c.task.valueRow + band * kBand;
        AddLevels(c, y, GradSlot::levelRowK, band, 1);
        FetchState(c, band, rows);
        const Float beta = c.Column(0, c.Beta(c.round)[band * kBand]);
        AscendC::PipeBarrier<PIPE_V>();
        MulColumn(product, rv, beta, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        c.SendNarrow(GmAt<bfloat16_t>(c.args.dv)[first * kDim], product, rows);
        Take(1);
        ZeroRows(v, rows);
        AscendC::PipeBarrier<PIPE_V>();
        Widen(product, v, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(rv, rv, product, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(product, k, y, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Add(rv, rv, product, kBandElems);
        MulColumn(y, y, beta, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        SumRows(c.dBeta[band * kBand], rv, c.chain);
    }

    /// v and v_new D^T of a band.
    __aicore__ static inline void FetchState(GradCore &c, uint32_t band, uint32_t rows)
    {
        const uint64_t first = c.task.valueRow + band * kBand;
        Open(1);
        AscendC::DataCopy(NarrowArrival(c, 1, 0), GmAt<bfloat16_t>(c.args.v)[first * kDim],
                          rows * kDim);
        LoadBand(c, Arrival(c, 1, 1), GradSlot::state, band);
        Loaded(1);
    }

    /// z, dk and the rest of dG.
    __aicore__ inline void Columns(GradCore &c, uint32_t band, uint32_t rows)
    {
        const Float &q = c.temp[0];
        const Float &k = c.temp[1];
        const Float &dk = c.temp[2];
        const Float &z = c.temp[3];
        const Float state = Arrival(c, 1, 1);
        const Float dG = c.prefix[band * kBandElems];
        if (HasColumns(band)) {
            Open(0);
            LoadBand(c, Arrival(c, 0, 0), GradSlot::col, band);
            Loaded(0);
        }
        MulRow(state, state, c.links[GradChain::Last(band) * kDim], kBand);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotFactor);
        AscendC::Mul(z, k, c.factor, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        const uint32_t last = c.task.at.rows - 1 - band * kBand;
        if (last < kBand) {
            TakeLast(c, state[last * kDim], c.factor[last * kDim]);
        }
        if (band == 0) {
            AscendC::Mul(c.scores, z, state, kBandElems);
        } else {
            AscendC::MulAddDst(c.scores, z, state, kBandElems);
        }
        AscendC::PipeBarrier<PIPE_V>();
        if (HasColumns(band)) {
            Take(0);
            AscendC::Add(state, state, Arrival(c, 0, 0), kBandElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
        AscendC::Mul(z, state, c.factor, kBandElems);
        AddLevels(c, z, GradSlot::levelCol, band, 0);
        if ((band + 1) * kBand < c.task.at.rows) {
            FetchFirst(c, band + 1);
        }
        AscendC::MulAddDst(dG, k, dk, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Add(dk, dk, z, kBandElems);
        AscendC::Mul(z, z, k, kBandElems);
        const Float diagonal = c.Column(0, c.Diagonal(c.round)[band * kBand]);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Sub(dG, dG, z, kBandElems);
        AddColumn(dk, q, diagonal);
        AscendC::PipeBarrier<PIPE_V>();
        if (last < kBand) {
            AscendC::Add(dk[last * kDim], dk[last * kDim], c.record, kDim);
            AscendC::PipeBarrier<PIPE_V>();
        }
        NormGrad::Run(c, kNormKeys, band, rows, k);
    }

    /// No step lies between the last row and the state: its part of dk stays out of dG, where it
    /// would come and go and leave only rounding.
    __aicore__ static inline void TakeLast(GradCore &c, const Float &state, const Float &factor)
    {
        AscendC::Mul(c.record, state, factor, kDim);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Duplicate(state, 0.0f, kDim);
        AscendC::PipeBarrier<PIPE_V>();
    }

    /// sum += factor times the products of each level, where there are levels; `half` of the ring is free.
    __aicore__ inline void AddLevels(GradCore &c, const Float &sum, uint32_t product, uint32_t band,
                                     uint32_t half) const
    {
        const uint32_t levels = bounded_ ? 0 : kChunkGradLevels;
        for (uint32_t level = 0; level < levels; ++level) {
            Open(half);
            LoadBand(c, Arrival(c, half, 0), LevelAt(level) + GradSlot::levelFactor, band);
            LoadBand(c, Arrival(c, half, 1), LevelAt(level) + product, band);
            Loaded(half);
            Take(half);
            AscendC::MulAddDst(sum, Arrival(c, half, 0), Arrival(c, half, 1), kBandElems);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    /// What the last valid row gets on top.
    __aicore__ static inline void LastRow(GradCore &c)
    {
        const Float square = c.scores[kBandElems];
        const uint32_t last = c.task.at.rows - 1;
        GradCore::Return(kGotScores);
        AscendC::DataCopy(square, c.Slot(GradSlot::square), kBandElems);
        AscendC::DataCopy(c.last, c.Slot(GradSlot::prefix)[(kChunk - 1) * kDim], kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        AscendC::Select(square, c.Bits(GradUb::units, kBandElems), square, 0.0f,
                        AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, kBandElems);
        AscendC::Mul(c.last, c.last, c.links[(Chain::start + kBands - 1) * kDim], kDim);
        AscendC::PipeBarrier<PIPE_V>();
        MulRow(square, square, c.last, kBand);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Add(square, square, c.scores, kBandElems);
        AscendC::PipeBarrier<PIPE_V>();
        FoldRows(square, kBand, kDim);
        AscendC::Add(c.prefix[last * kDim], c.prefix[last * kDim], square, kDim);
        AscendC::PipeBarrier<PIPE_V>();
    }

    bool bounded_ = true;
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_BANDS_GRAD_H
