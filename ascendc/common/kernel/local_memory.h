// SPDX-License-Identifier: Apache-2.0
// What one core of the 220 family really offers a kernel, the tile sizes every operator here
// shares, and typed views of GM and of a memory plan.
#ifndef FLA_COMMON_KERNEL_LOCAL_MEMORY_H
#define FLA_COMMON_KERNEL_LOCAL_MEMORY_H

#include "kernel_operator.h"

#include <cstdint>

namespace fla
{

// Bytes a memory plan may use. UB: 184 KB is the smaller of the two documented usable sizes (the
// rest is scratch of Select and friends), less 256 B kept by MIX kernels. L1: 512 KB less the
// message area of the framework.
constexpr uint32_t kUbBytes = 184 * 1024 - 256;
constexpr uint32_t kL1Bytes = 511 * 1024;
constexpr uint32_t kL0aBytes = 64 * 1024;
constexpr uint32_t kL0bBytes = 64 * 1024;
constexpr uint32_t kL0cBytes = 128 * 1024;

// One DMA block of UB and L1, and the lanes of one vector repeat in fp32.
constexpr uint32_t kBlockBytes = 32;
constexpr uint32_t kLanesF32 = 64;
constexpr uint32_t kBlockF32 = kBlockBytes / sizeof(float);

// Tile sizes of the whole family: rows of a chunk, width of a head (K = V).
constexpr uint32_t kChunk = 64;
constexpr uint32_t kDim = 128;
constexpr uint32_t kChunkElems = kChunk * kDim;    // q, k, v, w, u, ... of a chunk
constexpr uint32_t kScoreElems = kChunk * kChunk;  // Aqk, Akk of a chunk
constexpr uint32_t kStateElems = kDim * kDim;      // h, R

// Vector cores of a group; both serve the same cube core.
constexpr uint32_t kVectorCores = 2;

/// GM from `base` on.
template <typename T>
__aicore__ inline AscendC::GlobalTensor<T> GmAt(GM_ADDR base)
{
    AscendC::GlobalTensor<T> gm;
    gm.SetGlobalBuffer(reinterpret_cast<__gm__ T *>(base));
    return gm;
}

/// Typed view of `count` elements at a byte offset of the one buffer that a memory plan divides up.
template <typename T, AscendC::TPosition kPosition>
__aicore__ inline AscendC::LocalTensor<T> View(AscendC::TBuf<kPosition> &buffer,
                                               uint32_t byteOffset, uint32_t count)
{
    return buffer.template GetWithOffset<T>(count, byteOffset);
}

/// The memories of a cube core, each divided up by a memory plan.
struct CubeBuffers {
    AscendC::TBuf<AscendC::TPosition::A1> l1;
    AscendC::TBuf<AscendC::TPosition::A2> l0a;
    AscendC::TBuf<AscendC::TPosition::B2> l0b;
    AscendC::TBuf<AscendC::TPosition::CO1> l0c;

    __aicore__ inline void Init(AscendC::TPipe &pipe, uint32_t l1Bytes, uint32_t l0aBytes,
                                uint32_t l0bBytes, uint32_t l0cBytes)
    {
        pipe.InitBuffer(l1, l1Bytes);
        pipe.InitBuffer(l0a, l0aBytes);
        pipe.InitBuffer(l0b, l0bBytes);
        pipe.InitBuffer(l0c, l0cBytes);
    }
};

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_LOCAL_MEMORY_H
