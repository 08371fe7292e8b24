// SPDX-License-Identifier: Apache-2.0
// What the cube stages of chunk_grad share: the memory plan of the cube core, turns of L0 and L0C.
// Maths and flags between cores: chunk_grad.h.
//
// A turn is one product: take a half of L0 (the product before the last has read it), load,
// multiply, give it back; tiles of L0C likewise towards Fixpipe.
#ifndef FLA_CHUNK_GRAD_GRAD_CUBE_H
#define FLA_CHUNK_GRAD_GRAD_CUBE_H

#include "chunk_grad.h"
#include "prepare/cube_core.h"

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

/// L0A and L0B in halves, L0C in four tiles.
struct GradL0 {
    static constexpr uint32_t half = kL0aBytes / 2;
    static constexpr uint32_t tiles = 4;
    static constexpr uint32_t end = tiles * kGradTile;
};
static_assert(GradL0::end <= kL0cBytes, "chunk_grad: the L0C plan is too big");

/// Event ids. L1 (MTE2_MTE1, MTE1_MTE2): inputs per lane, operands of values, masked scores,
/// operands of scores in turn. FIX_MTE1: products that stay in L1. M_MTE1 ids 0..2 belong to the
/// framework.
enum GradL1Event : int32_t { kL1Inputs, kL1Operands = 2, kL1Strict, kL1Turn };
enum GradStay : int32_t { kStayRv, kStayKeys, kStayValues };

struct GradCube {
    ChunkGradArgs args;
    GradRounds rounds;
    uint32_t group = 0;
    AscendC::TBuf<AscendC::TPosition::A1> l1;
    AscendC::TBuf<AscendC::TPosition::A2> l0a;
    AscendC::TBuf<AscendC::TPosition::B2> l0b;
    AscendC::TBuf<AscendC::TPosition::CO1> l0c;
    int32_t half = 0;
    int32_t tile = 0;

    __aicore__ inline void Open(AscendC::TPipe &pipe, const ChunkGradArgs &from)
    {
        args = from;
        group = AscendC::GetBlockIdx();
        rounds.Init(args, group);
        pipe.InitBuffer(l1, GradL1::end);
        pipe.InitBuffer(l0a, kL0aBytes);
        pipe.InitBuffer(l0b, kL0bBytes);
        pipe.InitBuffer(l0c, GradL0::end);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        }
        for (uint32_t i = 0; i < GradL0::tiles; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    __aicore__ inline void Close() const
    {
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        }
        for (uint32_t i = 0; i < GradL0::tiles; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    /// The next half of L0A and L0B; loads may follow.
    __aicore__ inline void TakeL0() const
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + half);
    }

    /// All loads of this turn are issued; products may follow.
    __aicore__ inline void L0Loaded() const
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(half);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(half);
    }

    __aicore__ inline void LeaveL0()
    {
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + half);
        half ^= 1;
    }

    /// The next tile of L0C.
    __aicore__ inline Wide TakeTile()
    {
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(tile);
        return View<float>(l0c, tile * kGradTile, kChunkElems);
    }

    __aicore__ inline void TileReady() const
    {
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(tile);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(tile);
    }

    __aicore__ inline void LeaveTile()
    {
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(tile);
        tile = (tile + 1) % GradL0::tiles;
    }

    /// Fractal `index` of this turn's half.
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> A(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(l0a, half * GradL0::half + at, (GradL0::half - at) / sizeof(T));
    }
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> B(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(l0b, half * GradL0::half + at, (GradL0::half - at) / sizeof(T));
    }

    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> L1(uint32_t bytes, uint32_t count)
    {
        return View<T>(l1, bytes, count);
    }
    /// A bf16 tile of a lane.
    __aicore__ inline Narrow16 Lane(uint32_t lane, uint32_t bytes, uint32_t count = kChunkElems)
    {
        return View<bfloat16_t>(l1, lane * GradL1::lane + bytes, count);
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
