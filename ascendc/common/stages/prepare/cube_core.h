// SPDX-License-Identifier: Apache-2.0
// What the cube stages of prepare share: the memory plan of the cube core, and turns of L0 and L0C.
// Maths and flags between cores: prepare.h.
//
// A turn is one product: take L0 (its half was read by the product before the last), load,
// multiply, give L0 back; L0C likewise towards Fixpipe.
#ifndef FLA_PREPARE_CUBE_CORE_H
#define FLA_PREPARE_CUBE_CORE_H

#include "fractal_tile.h"
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

/// L0A and L0B are used in halves; L0C: two product tiles in turn, then Akk and Akk diag(beta) of
/// each vector core.
struct PrepareL0 {
    static constexpr uint32_t half = kL0aBytes / 2;
    static constexpr uint32_t product = kBand * 2 * kDim * sizeof(float);
    static constexpr uint32_t akk = 2 * product;
    static constexpr uint32_t akkTile = kScoreElems * sizeof(float);
    static constexpr uint32_t akkLane = kAkkForms * akkTile;
    static constexpr uint32_t end = akk + kVectorCores * akkLane;
};
static_assert(PrepareL0::end <= kL0cBytes, "prepare: the L0C plan is too big");
static_assert(2 * kDim * kChunk * sizeof(bfloat16_t) <= PrepareL0::half,
              "prepare: the right sides of wy are too big");

/// Event ids. L1 (MTE2_MTE1, MTE1_MTE2): scores and finish per lane, levels in turn. M_FIX: L0C
/// turns, then Akk per lane. M_MTE1 ids 0..2 belong to the framework.
constexpr int32_t kL1Scores = 0;
constexpr int32_t kL1Finish = 2;
constexpr int32_t kL1Level = 4;
constexpr int32_t kL0Free = 3;
constexpr int32_t kAkkDone = 2;

struct CubeCore {
    PrepareArgs args;
    PrepareRounds rounds;
    uint32_t group = 0;
    AscendC::TBuf<AscendC::TPosition::A1> l1;
    AscendC::TBuf<AscendC::TPosition::A2> l0a;
    AscendC::TBuf<AscendC::TPosition::B2> l0b;
    AscendC::TBuf<AscendC::TPosition::CO1> l0c;
    int32_t turn = 0;  // half of L0
    int32_t tile = 0;  // product tile of L0C

    __aicore__ inline void Open(AscendC::TPipe &pipe, const PrepareArgs &from)
    {
        args = from;
        group = AscendC::GetBlockIdx();
        rounds.Init(args, group);
        pipe.InitBuffer(l1, PrepareL1::end);
        pipe.InitBuffer(l0a, kL0aBytes);
        pipe.InitBuffer(l0b, kL0bBytes);
        pipe.InitBuffer(l0c, PrepareL0::end);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    __aicore__ inline void Close()
    {
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    /// The next half of L0A and L0B; loads may follow.
    __aicore__ inline void TakeL0() const
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + turn);
    }

    /// All loads of this turn are issued; products may follow.
    __aicore__ inline void L0Loaded() const
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(turn);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(turn);
    }

    __aicore__ inline void LeaveL0()
    {
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + turn);
        turn ^= 1;
    }

    /// The next product tile of L0C.
    __aicore__ inline Wide TakeTile()
    {
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(tile);
        return View<float>(l0c, tile * PrepareL0::product, PrepareL0::product / sizeof(float));
    }

    __aicore__ inline void TileReady() const
    {
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(tile);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(tile);
    }

    __aicore__ inline void LeaveTile()
    {
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(tile);
        tile ^= 1;
    }

    /// Fractal `index` of this turn's half.
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> A(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(l0a, turn * PrepareL0::half + at, (PrepareL0::half - at) / sizeof(T));
    }
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> B(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(l0b, turn * PrepareL0::half + at, (PrepareL0::half - at) / sizeof(T));
    }

    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> L1(uint32_t bytes, uint32_t count)
    {
        return View<T>(l1, bytes, count);
    }
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> L1(uint32_t lane, uint32_t bytes, uint32_t count)
    {
        return View<T>(l1, lane * PrepareL1::lane + bytes, count);
    }

    /// Akk of a lane in L0C, fp32 Nz [64, 64]; block (row, column) of 16 x 16 is contiguous.
    __aicore__ inline Wide Akk(uint32_t lane, uint32_t form)
    {
        return View<float>(l0c,
                           PrepareL0::akk + lane * PrepareL0::akkLane + form * PrepareL0::akkTile,
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
