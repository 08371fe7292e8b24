// SPDX-License-Identifier: Apache-2.0
// What the cube stages of chunk_grad share: the memory plan of the cube core, and its turns of L0 and
// L0C (cube_turns.h). Maths and flags between cores: chunk_grad.h.
#ifndef FLA_CHUNK_GRAD_GRAD_CUBE_H
#define FLA_CHUNK_GRAD_GRAD_CUBE_H

#include "chunk_grad.h"
#include "cube_turns.h"

namespace fla
{

/// Byte offsets in L1: operands of values per vector core, bf16, where three products replace the
/// operand that they alone needed; then the masked scores, and operands of scores in turn.
struct GradL1 {
    static constexpr uint32_t tile = kGradTile / 2;
    static constexpr uint32_t akk = 0;                                      // [64, 64]
    static constexpr uint32_t dU = akk + kScoreElems * sizeof(bfloat16_t);  // then Rv
    static constexpr uint32_t values = dU + tile;                           // -beta v, then -V
    static constexpr uint32_t keys = values + tile;                         // then A keys
    static constexpr uint32_t vNew = keys + tile;                           // two planes
    static constexpr uint32_t state = vNew + 2 * tile;                      // S
    static constexpr uint32_t dState = state + kStateElems * sizeof(bfloat16_t);  // D
    static constexpr uint32_t lane = dState + kStateElems * sizeof(bfloat16_t);
    static constexpr uint32_t strict = kVectorCores * lane;      // dAqk, dL fp32: bands [16, 64]
    static constexpr uint32_t parts = strict + 2 * kGradScores;  // level blocks of both
    static constexpr uint32_t turns = parts + 2 * kChunkGradLevels * kBands * kBlockElems * 4;
    static constexpr uint32_t turn = 2 * kGradTile;
    static constexpr uint32_t end = turns + 2 * turn;
};
static_assert(GradL1::end <= kL1Bytes, "chunk_grad: the L1 plan is too big");

/// L0C in four tiles.
using GradTurns = CubeTurns<4, kGradTile>;

/// Event ids. L1 (MTE2_MTE1, MTE1_MTE2): inputs per lane, operands of values, masked scores,
/// operands of scores in turn. FIX_MTE1: products that stay in L1.
enum GradL1Event : int32_t { kL1Inputs, kL1Operands = 2, kL1Strict, kL1Turn };
enum GradStay : int32_t { kStayRv, kStayKeys, kStayValues };

struct GradCube : GradTurns {
    ChunkGradArgs args;
    PairRounds rounds;
    uint32_t group = 0;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const ChunkGradArgs &from)
    {
        args = from;
        group = AscendC::GetBlockIdx();
        rounds.Init(args, group, args.t.headsPerGroup);
        OpenTurns(pipe, GradL1::end);
    }

    /// A bf16 tile of a lane.
    __aicore__ inline Narrow16 Lane(uint32_t lane, uint32_t bytes, uint32_t count = kChunkElems)
    {
        return L1<bfloat16_t>(lane * GradL1::lane + bytes, count);
    }

    /// Workspace of vector core `lane` at a byte offset of its slot of `round`.
    template <typename T = float>
    __aicore__ inline AscendC::GlobalTensor<T> Slot(uint32_t lane, uint32_t round,
                                                    uint32_t byteOffset) const
    {
        return GmAt<T>(args.workspace + GradSlotAt(args.t, group * kVectorCores + lane, round) +
                       byteOffset);
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_GRAD_CUBE_H
