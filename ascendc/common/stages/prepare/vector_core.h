// SPDX-License-Identifier: Apache-2.0
// What the vector stages of prepare share: the tiles of one vector core, the flags that guard them,
// and words for whole tiles. Maths and the walk through a round: prepare.h.
//
// Tiles are rows of 128 floats: two repeats of 64 lanes, kRowBlocks 32-byte blocks.
#ifndef FLA_PREPARE_VECTOR_CORE_H
#define FLA_PREPARE_VECTOR_CORE_H

#include "prepare.h"
#include "vec_tile.h"

namespace fla
{

using Float = AscendC::LocalTensor<float>;
using Half = AscendC::LocalTensor<bfloat16_t>;

constexpr uint32_t kRowBlocks = kDim * sizeof(float) / kBlockBytes;
constexpr uint32_t kLaneBlocks = kLanesF32 / kBlockF32;

/// Rows of the chain (prepare.h). C_ij of band j is followed by what leads to the last row.
struct Chain {
    static constexpr uint32_t start = 0;  // Ga_i, i = 0..3
    static constexpr uint32_t join = 4;   // C_10 C_20 C_30 last_0 | C_21 C_31 last_1 | C_32 last_2
    static constexpr uint32_t rows = 13;
    /// Row that leads from the end of band `from` to band `to`, or to the last row (to = 4).
    __aicore__ static inline uint32_t Join(uint32_t from, uint32_t to)
    {
        return join + from * 4 - from * (from - 1) / 2 + (to - from - 1);
    }
};

/// Byte offsets in UB.
struct PrepareUb {
    static constexpr uint32_t tile = kChunkElems * sizeof(float);
    static constexpr uint32_t half = kHalfElems * sizeof(float);
    static constexpr uint32_t prefix = 0;              // gamma, then P, then E(P); solve: factors
    static constexpr uint32_t suffix = prefix + tile;  // g as it comes, then S, E(S), k E(S)
    static constexpr uint32_t q = suffix + tile;       // bf16 [64, 128]
    static constexpr uint32_t k = q + tile / 2;
    static constexpr uint32_t workA = k + tile / 2;  // fp32 [32, 128]
    static constexpr uint32_t workB = workA + half;
    static constexpr uint32_t out = workB + half;  // bf16 [32, 128], two in turn
    static constexpr uint32_t aqk = out + half;    // bf16 [64, 64], zero above the diagonal
    static constexpr uint32_t chain = aqk + kScoreElems * sizeof(bfloat16_t);
    static constexpr uint32_t beta = chain + Chain::rows * kDim * sizeof(float);  // [64, 8]
    // -beta [64, 8] and beta [64] of two rounds in turn.
    static constexpr uint32_t betaNeg = beta + kChunk * kBlockBytes;
    static constexpr uint32_t betaLanes = betaNeg + 2 * kChunk * kBlockBytes;
    static constexpr uint32_t betaIn = betaLanes + 2 * kChunk * sizeof(float);
    static constexpr uint32_t bias = betaIn + kChunk * kBlockBytes;
    static constexpr uint32_t unit = bias + kDim * sizeof(float);  // four 16 x 16 unit blocks
    static constexpr uint32_t diagonal = unit + kBand * kChunk * sizeof(float);  // by columns
    static constexpr uint32_t masks = diagonal + kBand * kChunk * sizeof(float);
    static constexpr uint32_t mask = kBands * kScoreRows * sizeof(uint16_t);
    static constexpr uint32_t qRstd = masks + kPrepareLevels * mask;  // [64] each from here
    static constexpr uint32_t kRstd = qRstd + kChunk * sizeof(float);
    static constexpr uint32_t betaEff = kRstd + kChunk * sizeof(float);
    static constexpr uint32_t ones = betaEff + kChunk * sizeof(float);
    static constexpr uint32_t bound = ones + kChunk * sizeof(float);
    static constexpr uint32_t rate = bound + kChunk * sizeof(float);
    static constexpr uint32_t end = rate + kChunk * sizeof(float);
};
static_assert(PrepareUb::end <= kUbBytes, "prepare: the UB plan is too big");

/// Event ids: what arrives (MTE2_V, V_MTE2) and what leaves (V_MTE3, MTE3_V).
enum InEvent : int32_t { kInGate, kInKeys, kInSmall, kInScores };
enum OutEvent : int32_t { kOutStage, kOutWork = 2, kOutAqk = 4, kOutSmall = 5 };

/// A task with the places of its rows: inputs by layout, outputs head-major.
struct VectorTask {
    ChunkTask at;
    uint64_t keyIn, valueIn;      // first row of the inputs
    uint32_t keyStep, valueStep;  // rows from one token to the next
    uint64_t keyOut, valueOut;    // first row of the outputs
};

/// The UB of one vector core and its staging.
struct VectorCore {
    PrepareArgs args;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub;
    Float prefix, suffix, work[2], chain, beta, bias, unit, diagonal;
    Float qRstd, kRstd, betaEff, ones, bound, rate;
    Half q, k, aqk;
    AscendC::GlobalTensor<uint8_t> workspace;
    VectorTask task;  // of this round
    uint32_t round = 0;
    uint64_t slot = 0;       // byte offset of this round's slot
    uint32_t stage = 0;      // next staging tile
    bool hatsLeave = false;  // q_hat, k_hat are copied out of the input tiles

    __aicore__ inline void Open(AscendC::TPipe &pipe, const PrepareArgs &from)
    {
        args = from;
        pipe.InitBuffer(ub, PrepareUb::end);
        workspace = GmAt<uint8_t>(args.workspace);
        prefix = View<float>(ub, PrepareUb::prefix, kChunkElems);
        suffix = View<float>(ub, PrepareUb::suffix, kChunkElems);
        work[0] = View<float>(ub, PrepareUb::workA, kHalfElems);
        work[1] = View<float>(ub, PrepareUb::workB, kHalfElems);
        chain = View<float>(ub, PrepareUb::chain, Chain::rows * kDim);
        beta = View<float>(ub, PrepareUb::beta, kChunk * kBlockF32);
        bias = View<float>(ub, PrepareUb::bias, kDim);
        unit = View<float>(ub, PrepareUb::unit, kBand * kChunk);
        diagonal = View<float>(ub, PrepareUb::diagonal, kBand * kChunk);
        qRstd = View<float>(ub, PrepareUb::qRstd, kChunk);
        kRstd = View<float>(ub, PrepareUb::kRstd, kChunk);
        betaEff = View<float>(ub, PrepareUb::betaEff, kChunk);
        ones = View<float>(ub, PrepareUb::ones, kChunk);
        bound = View<float>(ub, PrepareUb::bound, kChunk);
        rate = View<float>(ub, PrepareUb::rate, kChunk);
        q = View<bfloat16_t>(ub, PrepareUb::q, kChunkElems);
        k = View<bfloat16_t>(ub, PrepareUb::k, kChunkElems);
        aqk = View<bfloat16_t>(ub, PrepareUb::aqk, kScoreElems);
        hatsLeave = (args.t.outputs & kOutHats) != 0 || args.t.gate != kGateBounded;
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutStage);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutStage + 1);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutAqk);
        if (hatsLeave) {
            AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutSmall);
        }
    }

    __aicore__ inline void Close()
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutStage);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutStage + 1);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutAqk);
        if (hatsLeave) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutSmall);
        }
    }

    /// -beta of a round, spread over blocks: the solve needs it one round later.
    __aicore__ inline Float BetaNeg(uint32_t ofRound)
    {
        return View<float>(ub, PrepareUb::betaNeg + ofRound % 2 * kChunk * kBlockBytes,
                           kChunk * kBlockF32);
    }

    /// beta of a round in the order of the lanes of X (solve.h): [2 column halves][4 blocks][8].
    __aicore__ inline Float BetaLanes(uint32_t ofRound)
    {
        return View<float>(ub, PrepareUb::betaLanes + ofRound % 2 * kChunk * sizeof(float), kChunk);
    }

    /// Workspace at a byte offset of this round's slot.
    template <typename T>
    __aicore__ inline AscendC::GlobalTensor<T> Slot(uint32_t byteOffset) const
    {
        return GmAt<T>(args.workspace + slot + byteOffset);
    }

    /// Narrows `count` floats into the next staging tile; Leave() must follow once it is copied.
    __aicore__ inline Half Stage(const Float &from, uint32_t count)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutStage + stage);
        Half tile = View<bfloat16_t>(ub, PrepareUb::out + stage * kHalfElems * sizeof(bfloat16_t),
                                     kHalfElems);
        Narrow(tile, from, count);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutStage + stage);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutStage + stage);
        return tile;
    }

    /// The staging tile may be filled again once the copies issued so far are done.
    __aicore__ inline void Leave()
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kOutStage + stage);
        stage ^= 1;
    }

    /// Narrows rows [first, first + rows) of the chunk and stores the valid ones at `row` of an
    /// output [*, 128].
    __aicore__ inline void StoreRows(GM_ADDR base, const Float &from, uint32_t first, uint32_t rows)
    {
        Half tile = Stage(from, rows * kDim);
        const uint32_t valid = RowsIn(task.at.rows, first, rows);
        if (valid > 0) {
            AscendC::DataCopy(GmAt<bfloat16_t>(base)[(task.valueOut + first) * kDim], tile,
                              valid * kDim);
        }
        Leave();
    }

    /// Narrows rows and stores all of them into this round's slot.
    __aicore__ inline void StoreSlot(uint32_t byteOffset, const Float &from, uint32_t count)
    {
        Half tile = Stage(from, count);
        AscendC::DataCopy(Slot<bfloat16_t>(byteOffset), tile, count);
        Leave();
    }
};

/// Zeroes the rows of a chunk that GM did not fill.
__aicore__ inline void ZeroTail(const Half &x, uint32_t rows)
{
    if (rows < kChunk) {
        AscendC::Duplicate(x[rows * kDim].ReinterpretCast<int16_t>(), static_cast<int16_t>(0),
                           (kChunk - rows) * kDim);
    }
}

/// dst = src * lanes, the same 64 values for every 64.
__aicore__ inline void MulLanes(const Float &dst, const Float &src, const Float &lanes,
                                uint32_t count)
{
    AscendC::Mul(dst, src, lanes, kLanesF32, count / kLanesF32,
                 {1, 1, 1, kLaneBlocks, kLaneBlocks, 0});
}

/// dst = src + row, the same 128 values for every row.
__aicore__ inline void AddRow(const Float &dst, const Float &src, const Float &row, uint32_t rows)
{
    for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
        AscendC::Add(dst[lane], src[lane], row[lane], kLanesF32, rows,
                     {1, 1, 1, kRowBlocks, kRowBlocks, 0});
    }
}

/// dst = src * row.
__aicore__ inline void MulRow(const Float &dst, const Float &src, const Float &row, uint32_t rows)
{
    for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
        AscendC::Mul(dst[lane], src[lane], row[lane], kLanesF32, rows,
                     {1, 1, 1, kRowBlocks, kRowBlocks, 0});
    }
}

/// dst = src * column: one factor per row, spread over a block each (Brcb).
__aicore__ inline void MulColumn(const Float &dst, const Float &src, const Float &column,
                                 uint32_t rows)
{
    for (uint32_t lane = 0; lane < kDim; lane += kLanesF32) {
        AscendC::Mul(dst[lane], src[lane], column, kLanesF32, rows,
                     {1, 1, 0, kRowBlocks, kRowBlocks, 1});
    }
}

}  // namespace fla
#endif  // FLA_PREPARE_VECTOR_CORE_H
