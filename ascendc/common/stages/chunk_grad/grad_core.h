// SPDX-License-Identifier: Apache-2.0
// What the vector stages of chunk_grad share: the tiles of one vector core, what guards them, and
// words for bands and rows. Maths and the walk through a round: chunk_grad.h.
//
// A round of operands and a round of gradients share the UB. What has to outlive the operands of
// the next round (beta, the diagonal of dAqk, the bias) exists twice; everything larger comes back
// from GM.
#ifndef FLA_CHUNK_GRAD_GRAD_CORE_H
#define FLA_CHUNK_GRAD_GRAD_CORE_H

#include "chunk_grad.h"
#include "prepare/vector_core.h"

namespace fla
{

constexpr uint32_t kGradTemps = 4;
// A round's bias comes before its operands and is used last by its gradients.
constexpr uint32_t kBiases = 3;

/// Rows of the chain: those of prepare, then what leads from the last band to the last row.
struct GradChain {
    static constexpr uint32_t last = Chain::rows;
    static constexpr uint32_t rows = last + 1;
    /// Row that leads from band `from` to the last row.
    __aicore__ static inline uint32_t Last(uint32_t from)
    {
        return from + 1 < kBands ? Chain::Join(from, kBands) : last;
    }
};

/// Byte offsets in UB.
struct GradUb {
    static constexpr uint32_t prefix = 0;                   // gamma, P, E(P); dG, dg
    static constexpr uint32_t suffix = prefix + kGradTile;  // raw_g of the next round, S, Y
    static constexpr uint32_t temps = suffix + kGradTile;   // four bands
    static constexpr uint32_t ring = temps + kGradTemps * kGradBand;  // q, k bf16; arrivals in turn
    static constexpr uint32_t factor = ring + kGradTile;     // half of v, bf16; X, Y of a band
    static constexpr uint32_t scores = factor + kGradBand;   // dAqk, dL; rows of k dk_state, S D^T
    static constexpr uint32_t stage = scores + kGradScores;  // bf16 [16, 128], two in turn
    static constexpr uint32_t chain = stage + kGradBand;     // then scratch of the gradients
    static constexpr uint32_t links = chain + GradChain::rows * kDim * sizeof(float);
    static constexpr uint32_t strict =
        links + GradChain::rows * kDim * sizeof(float);             // bits [64, 64]
    static constexpr uint32_t diagonal = strict + kScoreElems / 8;  // bits [64, 64]
    static constexpr uint32_t lower = diagonal + kScoreElems / 8;   // bits [64, 64], with diagonal
    static constexpr uint32_t levels = lower + kScoreElems / 8;     // bits, [64, 16] per level
    static constexpr uint32_t units = levels + kChunkGradLevels * kChunk * kBand / 8;  // [16, 128]
    static constexpr uint32_t columns = units + kBandElems / 8;  // two broadcast columns of a band
    static constexpr uint32_t beta = columns + 2 * kBand * kBlockBytes;       // [64] of two rounds
    static constexpr uint32_t diagonals = beta + 2 * kChunk * sizeof(float);  // dAqk_ii, the same
    static constexpr uint32_t bias = diagonals + 2 * kChunk * sizeof(float);  // [128], three rounds
    static constexpr uint32_t betaIn = bias + kBiases * kDim * sizeof(float);
    static constexpr uint32_t bound = betaIn + kChunk * sizeof(float);
    static constexpr uint32_t rate = bound + kChunk * sizeof(float);
    static constexpr uint32_t steep = rate + kChunk * sizeof(float);
    static constexpr uint32_t qRstd = steep + kChunk * sizeof(float);
    static constexpr uint32_t kRstd = qRstd + kChunk * sizeof(float);
    static constexpr uint32_t dBeta = kRstd + kChunk * sizeof(float);
    static constexpr uint32_t betaOut = dBeta + kChunk * sizeof(float);      // dbeta in bf16
    static constexpr uint32_t last = betaOut + kChunk * sizeof(bfloat16_t);  // E(G_last)
    static constexpr uint32_t record = last + kDim * sizeof(float);  // ddt_bias, da_log rows
    static constexpr uint32_t end = record + kChunkGradRecordBytes;
};
static_assert(GradUb::end <= kUbBytes, "chunk_grad: the UB plan is too big");

/// Event ids: what arrives (MTE2_V, V_MTE2) and what leaves (V_MTE3, MTE3_V).
enum GradIn : int32_t { kGotGate, kGotKeys, kGotScores, kGotFactor, kGotRing };
enum GradOut : int32_t { kSentWhole, kSentTemp, kSentStage = 3, kSentScores = 5, kSentIds };
/// MTE3_MTE2: factors come back one round later (even, odd), raw_g follows Y, sums come back.
enum GradBack : int32_t { kBackFactors, kBackSuffix = 2, kBackSums };

/// A task with the places of its rows.
struct GradTask {
    ChunkTask at;
    uint64_t keyRow, valueRow;
};

/// The UB of one vector core.
struct GradCore {
    ChunkGradArgs args;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub;
    Float prefix, suffix, work[2], temp[kGradTemps], factor, scores, chain, links;
    Float bias, bound, rate, steep, qRstd, kRstd, dBeta, last, record;
    Half q, k;
    GradTask task;  // of the operands or the gradients at work
    uint32_t core = 0;
    uint32_t round = 0;
    uint64_t slot = 0;  // byte offset of that round's slot

    __aicore__ inline void Open(AscendC::TPipe &pipe, const ChunkGradArgs &from)
    {
        args = from;
        core = AscendC::GetBlockIdx();
        pipe.InitBuffer(ub, GradUb::end);
        prefix = View<float>(ub, GradUb::prefix, kChunkElems);
        suffix = View<float>(ub, GradUb::suffix, kChunkElems);
        for (uint32_t i = 0; i < kGradTemps; ++i) {
            temp[i] = View<float>(ub, GradUb::temps + i * kGradBand, kBandElems);
        }
        for (uint32_t half = 0; half < kHalves; ++half) {
            work[half] = View<float>(ub, GradUb::temps + half * kHalves * kGradBand, kHalfElems);
        }
        factor = View<float>(ub, GradUb::factor, kBandElems);
        scores = View<float>(ub, GradUb::scores, kScoreElems);
        chain = View<float>(ub, GradUb::chain, GradChain::rows * kDim);
        links = View<float>(ub, GradUb::links, GradChain::rows * kDim);
        q = View<bfloat16_t>(ub, GradUb::ring, kChunkElems);
        k = View<bfloat16_t>(ub, GradUb::ring + kGradTile / 2, kChunkElems);
        bound = View<float>(ub, GradUb::bound, kChunk);
        rate = View<float>(ub, GradUb::rate, kChunk);
        steep = View<float>(ub, GradUb::steep, kChunk);
        qRstd = View<float>(ub, GradUb::qRstd, kChunk);
        kRstd = View<float>(ub, GradUb::kRstd, kChunk);
        dBeta = View<float>(ub, GradUb::dBeta, kChunk);
        last = View<float>(ub, GradUb::last, kDim);
        record = View<float>(ub, GradUb::record, 2 * kDim);
    }

    /// Works on a round from here on.
    __aicore__ inline void Turn(const GradTask &to, uint32_t toRound)
    {
        task = to;
        round = toRound;
        slot = GradSlotAt(args.t, core, toRound);
        bias = Bias(toRound);
    }

    /// Everything sent has left.
    __aicore__ inline void Close()
    {
        for (int32_t id = 0; id < kSentIds; ++id) {
            Settle(id);
        }
    }

    /// Workspace at a byte offset of this round's slot.
    template <typename T = float>
    __aicore__ inline AscendC::GlobalTensor<T> Slot(uint32_t byteOffset) const
    {
        return GmAt<T>(args.workspace + slot + byteOffset);
    }

    __aicore__ inline Float Beta(uint32_t ofRound)
    {
        return View<float>(ub, GradUb::beta + ofRound % 2 * kChunk * sizeof(float), kChunk);
    }
    __aicore__ inline Float Diagonal(uint32_t ofRound)
    {
        return View<float>(ub, GradUb::diagonals + ofRound % 2 * kChunk * sizeof(float), kChunk);
    }
    __aicore__ inline Float Bias(uint32_t ofRound)
    {
        return View<float>(ub, GradUb::bias + ofRound % kBiases * kDim * sizeof(float), kDim);
    }

    /// 16 values of a band, each spread over a 32-byte block. Two of them may live at a time.
    __aicore__ inline Float Column(uint32_t which, const Float &values)
    {
        Float column =
            View<float>(ub, GradUb::columns + which * kBand * kBlockBytes, kBand * kBlockF32);
        AscendC::Brcb(column, values, kBand / kBlockF32, {1, 8});
        return column;
    }

    __aicore__ inline AscendC::LocalTensor<uint8_t> Bits(uint32_t byteOffset, uint32_t elems)
    {
        return View<uint8_t>(ub, byteOffset, elems / 8);
    }

    /// The log of the gate's rate of this task's head; 0 where there is no gate.
    __aicore__ inline float ALog() const
    {
        if (args.t.gate == kGateNone) {
            return 0.0f;
        }
        if (args.t.aLogIsBf16) {
            return AscendC::ToFloat(GmAt<bfloat16_t>(args.aLog).GetValue(task.at.head));
        }
        return GmAt<float>(args.aLog).GetValue(task.at.head);
    }

    /// The vector pipe is done with a tile; loads may fill it.
    __aicore__ static inline void Return(int32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(id);
    }

    /// What was computed so far may be copied out; Sent() must follow the copies.
    __aicore__ static inline void Send(int32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(id);
    }
    __aicore__ inline void Sent(int32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(id);
        busy_[id] = true;
    }

    /// Copies out of the tile of `id` are done; the vector pipe may write it.
    __aicore__ inline void Settle(int32_t id)
    {
        if (busy_[id]) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(id);
            busy_[id] = false;
        }
    }

    /// Temporaries 2 and 3 leave as they are, in turn.
    __aicore__ inline Float NextTemp()
    {
        turn_ ^= 1;
        Settle(kSentTemp + turn_);
        return temp[2 + turn_];
    }
    __aicore__ inline void SendTemp(const AscendC::GlobalTensor<float> &to, uint32_t count)
    {
        Send(kSentTemp + turn_);
        AscendC::DataCopy(to, temp[2 + turn_], count);
        Sent(kSentTemp + turn_);
    }
    __aicore__ inline void SettleTemps()
    {
        Settle(kSentTemp);
        Settle(kSentTemp + 1);
    }

    /// Narrows a band and stores its first `rows` rows.
    __aicore__ inline void SendNarrow(const AscendC::GlobalTensor<bfloat16_t> &to,
                                      const Float &from, uint32_t rows)
    {
        const int32_t id = kSentStage + stage_;
        Settle(id);
        const Half tile = View<bfloat16_t>(ub, GradUb::stage + stage_ * kGradBand / 2, kBandElems);
        Narrow(tile, from, kBandElems);
        Send(id);
        AscendC::DataCopy(to, tile, rows * kDim);
        Sent(id);
        stage_ ^= 1;
    }

  private:
    bool busy_[kSentIds] = {};
    uint32_t turn_ = 0;   // of the temporaries
    uint32_t stage_ = 0;  // of the staging tiles
};

/// dst += src * column: one factor per row (GradCore::Column).
__aicore__ inline void AddColumn(const Float &dst, const Float &src, const Float &column)
{
    for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
        AscendC::MulAddDst(dst[lane], src[lane], column, kLanesF32, kBand,
                           {1, 1, 0, kRowBlocks, kRowBlocks, 1});
    }
}

/// Sums of the 16 rows of a band; the band and `scratch` [128] are used up.
__aicore__ inline void SumRows(const Float &sums, const Float &band, const Float &scratch)
{
    AscendC::Add(band, band, band[kLanesF32], kLanesF32, kBand,
                 {1, 1, 1, kRowBlocks, kRowBlocks, kRowBlocks});
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::BlockReduceSum(scratch, band, kBand, kLanesF32, 1, 1, kRowBlocks);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::BlockReduceSum(sums, scratch, kBand / kBlockF32, kLanesF32, 1, 1, kLaneBlocks);
    AscendC::PipeBarrier<PIPE_V>();
}

/// Adds the `rows` (a power of 2) rows of a tile into its first one.
__aicore__ inline void FoldRows(const Float &tile, uint32_t rows, uint32_t width)
{
    for (uint32_t half = rows / 2; half > 0; half /= 2) {
        AscendC::Add(tile, tile, tile[half * width], half * width);
        AscendC::PipeBarrier<PIPE_V>();
    }
}

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_GRAD_CORE_H
