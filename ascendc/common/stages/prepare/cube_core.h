// SPDX-License-Identifier: Apache-2.0
// What the cube stages of prepare share: the memory plan of the cube core, and its turns of L0 and L0C
// (cube_turns.h). Maths and flags between cores: prepare.h.
#ifndef FLA_PREPARE_CUBE_CORE_H
#define FLA_PREPARE_CUBE_CORE_H

#include "cube_turns.h"
#include "prepare.h"

namespace fla
{

/// Akk as it is, and Akk diag(beta).
enum AkkForm : uint32_t { kPlain, kScaled, kAkkForms };

/// Byte offsets in L1: one block per vector core served, then what both share.
struct PrepareL1 {
    static constexpr uint32_t rows = 0;  // q rows, k rows: bf16 [64, 128] each
    static constexpr uint32_t columns = rows + 2 * PrepareSlot::tile;  // per band, as in the slot
    static constexpr uint32_t keys = columns + 10 * kBandElems * sizeof(bfloat16_t);  // [64, 128]
    static constexpr uint32_t values = keys + PrepareSlot::tile;
    static constexpr uint32_t inverse = values + PrepareSlot::tile;  // D, D': fp32 [16, 16] each
    static constexpr uint32_t below = inverse + 8 * kBlockElems * sizeof(float);  // -L, bands 1..3
    static constexpr uint32_t trip1 = below + 6 * kBlockElems * sizeof(float);    // T, T' of pairs
    static constexpr uint32_t merged = trip1 + 4 * kBlockElems * sizeof(float);   // X of the pairs
    static constexpr uint32_t trip2 = merged + 3 * kBlockElems * sizeof(float);   // T, T' 32 x 32
    static constexpr uint32_t akk = trip2 + 8 * kBlockElems * sizeof(float);  // bf16 [64, 64] each
    static constexpr uint32_t rest = akk + kAkkForms * kScoreElems * sizeof(bfloat16_t);
    static constexpr uint32_t lane = rest + kBand * kChunk * sizeof(bfloat16_t);
    static constexpr uint32_t unit = kVectorCores * lane;                   // fp32 [16, 16]
    static constexpr uint32_t levels = unit + kBlockElems * sizeof(float);  // two in turn
    static constexpr uint32_t end = levels + 2 * PrepareSlot::levelTile;
};
static_assert(PrepareL1::end <= kL1Bytes, "prepare: the L1 plan is too big");

/// L0C: two product tiles in turn, then Akk and Akk diag(beta) of each vector core.
struct PrepareL0 {
    static constexpr uint32_t products = 2;
    static constexpr uint32_t product = kBand * 2 * kDim * sizeof(float);
    static constexpr uint32_t akk = products * product;
    static constexpr uint32_t akkTile = kScoreElems * sizeof(float);
    static constexpr uint32_t akkLane = kAkkForms * akkTile;
    static constexpr uint32_t end = akk + kVectorCores * akkLane;
};
static_assert(PrepareL0::end <= kL0cBytes, "prepare: the L0C plan is too big");
using PrepareTurns = CubeTurns<PrepareL0::products, PrepareL0::product>;
static_assert(2 * kDim * kChunk * sizeof(bfloat16_t) <= PrepareTurns::kL0Half,
              "prepare: the right sides of wy are too big");

/// Event ids. L1 (MTE2_MTE1, MTE1_MTE2): scores and finish per lane, levels in turn. M_FIX: behind
/// those of the turns, Akk per lane.
constexpr int32_t kL1Scores = 0;
constexpr int32_t kL1Finish = 2;
constexpr int32_t kL1Level = 4;
constexpr int32_t kAkkDone = PrepareL0::products;

struct CubeCore : PrepareTurns {
    PrepareArgs args;
    PairRounds rounds;
    uint32_t group = 0;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const PrepareArgs &from)
    {
        args = from;
        group = AscendC::GetBlockIdx();
        rounds.Init(args, group, 1);
        OpenTurns(pipe, PrepareL1::end, PrepareL0::end);
    }

    using PrepareTurns::L1;
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> L1(uint32_t lane, uint32_t bytes, uint32_t count)
    {
        return L1<T>(lane * PrepareL1::lane + bytes, count);
    }

    /// Akk of a lane in L0C, fp32 Nz [64, 64]; block (row, column) of 16 x 16 is contiguous.
    __aicore__ inline Wide Akk(uint32_t lane, uint32_t form)
    {
        return L0c(PrepareL0::akk + lane * PrepareL0::akkLane + form * PrepareL0::akkTile,
                   kScoreElems);
    }
    __aicore__ inline Wide AkkBlock(uint32_t lane, uint32_t form, uint32_t row, uint32_t column)
    {
        return Akk(lane, form)[(column * kBands + row) * kBlockElems];
    }

    /// Workspace of vector core `lane` at a byte offset of its slot of `round`.
    template <typename T>
    __aicore__ inline AscendC::GlobalTensor<T> Slot(uint32_t lane, uint32_t round,
                                                    uint32_t byteOffset) const
    {
        return GmAt<T>(args.workspace + SlotAt(args.t, group * kVectorCores + lane, round) +
                       byteOffset);
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_CUBE_CORE_H
