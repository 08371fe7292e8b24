// SPDX-License-Identifier: Apache-2.0
// Turns of L0 and L0C. A turn is one product: take a half of L0A and L0B (the product before the last
// has read it), load, multiply, give it back; tiles of L0C likewise towards Fixpipe.
//
//   TakeL0();  ...loads into A, B...;  tile = MultiplyTurn<T>(m, n, k);  ...stores...;  LeaveTile();
//
// What takes several products opens the turn word by word.
#ifndef FLA_COMMON_KERNEL_CUBE_TURNS_H
#define FLA_COMMON_KERNEL_CUBE_TURNS_H

#include "fractal_tile.h"
#include "local_memory.h"

namespace fla
{

/// L0A and L0B in halves; `kTiles` tiles of `kTileBytes` from the start of L0C on, in turn. Event ids:
/// M_MTE1 3 and 4 (0..2 belong to the framework), MTE1_M 0 and 1, FIX_M and M_FIX one per tile.
template <uint32_t kTiles, uint32_t kTileBytes>
class CubeTurns
{
  public:
    static constexpr uint32_t kL0Half = kL0aBytes / 2;

    /// L0C may be more than the tiles: what lies behind them is the kernel's own.
    __aicore__ inline void OpenTurns(AscendC::TPipe &pipe, uint32_t l1Bytes,
                                     uint32_t l0cBytes = kTiles * kTileBytes)
    {
        buffers_.Init(pipe, l1Bytes, kL0aBytes, kL0bBytes, l0cBytes);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        }
        for (uint32_t i = 0; i < kTiles; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    /// Leaves every flag at zero.
    __aicore__ inline void CloseTurns() const
    {
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + i);
        }
        for (uint32_t i = 0; i < kTiles; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
        }
    }

    /// The next half of L0A and L0B; loads may follow.
    __aicore__ inline void TakeL0() const
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kL0Free + half_);
    }

    /// All loads of this turn are issued; products may follow.
    __aicore__ inline void L0Loaded() const
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(half_);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(half_);
    }

    __aicore__ inline void LeaveL0()
    {
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kL0Free + half_);
        half_ ^= 1;
    }

    /// The next tile of L0C.
    __aicore__ inline Wide TakeTile()
    {
        AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(tile_);
        return L0c(tile_ * kTileBytes, kTileBytes / sizeof(float));
    }

    __aicore__ inline void TileReady() const
    {
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(tile_);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(tile_);
    }

    __aicore__ inline void LeaveTile()
    {
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(tile_);
        tile_ = (tile_ + 1) % kTiles;
    }

    /// C [m, n] = A @ B of what this turn has loaded, ready for its stores; LeaveTile() follows them.
    template <typename T>
    __aicore__ inline Wide MultiplyTurn(uint32_t m, uint32_t n, uint32_t k)
    {
        L0Loaded();
        const Wide tile = TakeTile();
        Product(tile, A<T>(0), B<T>(0), m, n, k);
        LeaveL0();
        TileReady();
        return tile;
    }

    /// Fractal `index` of this turn's half, and those behind it.
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> A(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(buffers_.l0a, half_ * kL0Half + at, (kL0Half - at) / sizeof(T));
    }
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> B(uint32_t index)
    {
        const uint32_t at = index * kFractalBytes;
        return View<T>(buffers_.l0b, half_ * kL0Half + at, (kL0Half - at) / sizeof(T));
    }
    template <typename T>
    __aicore__ inline AscendC::LocalTensor<T> L1(uint32_t bytes, uint32_t count)
    {
        return View<T>(buffers_.l1, bytes, count);
    }
    __aicore__ inline Wide L0c(uint32_t bytes, uint32_t count)
    {
        return View<float>(buffers_.l0c, bytes, count);
    }

  private:
    static constexpr int32_t kL0Free = 3;
    static_assert(kTiles * kTileBytes <= kL0cBytes, "the turns do not fit L0C");

    CubeBuffers buffers_;
    int32_t half_ = 0;  // of L0
    int32_t tile_ = 0;  // of L0C
};

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_CUBE_TURNS_H
