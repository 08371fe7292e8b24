// SPDX-License-Identifier: Apache-2.0
// Words for the cube core: GM -> L1 -> L0 -> L0C -> GM or L1, 16-bit operands, tiles of a multiple of 16.
//
// A tile keeps its full size in L1 whatever the number of valid rows: rows beyond them are zero,
// which stays harmless as rows of a result (never stored) and as the summed axis of a product (adds
// 0). None of these functions sets or waits for an event; the caller orders the pipes (named in
// each comment).
#ifndef FLA_COMMON_KERNEL_CUBE_TILE_H
#define FLA_COMMON_KERNEL_CUBE_TILE_H

#include "kernel_operator.h"

#include "local_memory.h"

namespace fla
{

using Bf16 = bfloat16_t;

// A fractal is 16 rows of one 32-byte block: 16 x 16 elements of 16 bits, 512 bytes.
constexpr uint32_t kFractal = 16;
constexpr uint32_t kFractalElems = kFractal * kFractal;

__aicore__ inline uint32_t RoundUp16(uint32_t value)
{
    return (value + kFractal - 1) / kFractal * kFractal;
}

/// Reads `rows` rows of `cols` elements, `rowStep` (at most 65535) elements apart, into a tile of
/// `tileRows` rows. MTE2; rows beyond `rows` keep what L1 held before.
__aicore__ inline void LoadNzRows(const AscendC::LocalTensor<Bf16> &l1,
                                  const AscendC::GlobalTensor<Bf16> &gm, uint32_t rows,
                                  uint32_t cols, uint32_t rowStep, uint32_t tileRows)
{
    AscendC::Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = rows;
    params.dValue = cols;
    params.srcNdMatrixStride = 0;
    params.srcDValue = rowStep;
    params.dstNzC0Stride = tileRows;
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    AscendC::DataCopy(l1, gm, params);
}

/// The same for contiguous rows.
__aicore__ inline void LoadNz(const AscendC::LocalTensor<Bf16> &l1,
                              const AscendC::GlobalTensor<Bf16> &gm, uint32_t rows, uint32_t cols,
                              uint32_t tileRows)
{
    LoadNzRows(l1, gm, rows, cols, cols, tileRows);
}

/// Zeroes a tile. MTE2. Written as 16-bit integers: the bits of a bf16 zero.
__aicore__ inline void ZeroL1(const AscendC::LocalTensor<Bf16> &l1, uint32_t elems)
{
    const uint16_t blocks = elems * sizeof(Bf16) / kBlockBytes;
    AscendC::InitConstValue(l1.ReinterpretCast<uint16_t>(),
                            AscendC::InitConstValueParams<uint16_t>(1, blocks, 0, 0));
}

/// Reads a chunk: `rows` valid rows, the rest of the kChunk rows zero. MTE2.
__aicore__ inline void LoadChunk(const AscendC::LocalTensor<Bf16> &l1,
                                 const AscendC::GlobalTensor<Bf16> &gm, uint32_t rows,
                                 uint32_t cols)
{
    if (rows < kChunk) {
        ZeroL1(l1, kChunk * cols);
        AscendC::PipeBarrier<PIPE_MTE2>();
    }
    LoadNz(l1, gm, rows, cols, kChunk);
}

/// L0 strip i <- fractals i, i + strips, ... of a Nz tile: the tile by rows of fractals. MTE1; one
/// load per strip.
__aicore__ inline void LoadStrips(const AscendC::LocalTensor<Bf16> &l0,
                                  const AscendC::LocalTensor<Bf16> &l1, uint32_t strips,
                                  uint32_t depth, bool transpose)
{
    for (uint32_t i = 0; i < strips; ++i) {
        AscendC::LoadData2DParams params;
        params.startIndex = i;
        params.repeatTimes = depth;
        params.srcStride = strips;
        params.ifTranspose = transpose;
        AscendC::LoadData(l0[i * depth * kFractalElems], l1, params);
    }
}

/// Fractals in the order in which the tile holds them. MTE1; one load.
__aicore__ inline void LoadInOrder(const AscendC::LocalTensor<Bf16> &l0,
                                   const AscendC::LocalTensor<Bf16> &l1, uint32_t fractals,
                                   bool transpose)
{
    AscendC::LoadData2DParams params;
    params.repeatTimes = fractals;
    params.srcStride = 1;
    params.ifTranspose = transpose;
    AscendC::LoadData(l0, l1, params);
}

/// Left operand A [m, k] from a tile stored [m, k]. MTE1.
__aicore__ inline void LoadLeft(const AscendC::LocalTensor<Bf16> &l0a,
                                const AscendC::LocalTensor<Bf16> &l1, uint32_t m, uint32_t k)
{
    LoadStrips(l0a, l1, m / kFractal, k / kFractal, false);
}

/// Left operand A [m, k] from a tile stored [k, m]. MTE1; each fractal is transposed on the way.
__aicore__ inline void LoadLeftTransposed(const AscendC::LocalTensor<Bf16> &l0a,
                                          const AscendC::LocalTensor<Bf16> &l1, uint32_t m,
                                          uint32_t k)
{
    LoadInOrder(l0a, l1, (m / kFractal) * (k / kFractal), true);
}

/// Right operand B [k, n] from a tile stored [k, n]. MTE1; each fractal is transposed on the way.
__aicore__ inline void LoadRight(const AscendC::LocalTensor<Bf16> &l0b,
                                 const AscendC::LocalTensor<Bf16> &l1, uint32_t k, uint32_t n)
{
    LoadStrips(l0b, l1, k / kFractal, n / kFractal, true);
}

/// Right operand B [k, n] from a tile stored [n, k]. MTE1; the layouts agree.
__aicore__ inline void LoadRightTransposed(const AscendC::LocalTensor<Bf16> &l0b,
                                           const AscendC::LocalTensor<Bf16> &l1, uint32_t k,
                                           uint32_t n)
{
    LoadInOrder(l0b, l1, (n / kFractal) * (k / kFractal), false);
}

/// C [m, n] = A @ B, or C += A @ B. M. `k` is the one the operands were loaded with; m is never 1
/// here (a single row would switch the core to its vector mode, which reads A in another layout),
/// because m is rounded to 16.
template <typename T>
__aicore__ inline void Multiply(const AscendC::LocalTensor<float> &l0c,
                                const AscendC::LocalTensor<T> &l0a,
                                const AscendC::LocalTensor<T> &l0b, uint32_t m, uint32_t n,
                                uint32_t k, bool accumulate)
{
    AscendC::MmadParams params;
    params.m = m;
    params.n = n;
    params.k = k;
    params.cmatrixInitVal = !accumulate;
    AscendC::Mmad(l0c, l0a, l0b, params);
}

/// Stores `rows` rows of C [m, n] row by row, `stride` elements apart. FIX. fp32, or bf16 rounded
/// to nearest even.
template <typename T>
__aicore__ inline void StoreRows(const AscendC::GlobalTensor<T> &gm,
                                 const AscendC::LocalTensor<float> &l0c, uint32_t rows, uint32_t m,
                                 uint32_t n, uint32_t stride)
{
    AscendC::FixpipeParamsV220 params;
    params.nSize = n;
    params.mSize = rows;
    params.srcStride = m;
    params.dstStride = stride;
    params.quantPre = sizeof(T) == sizeof(float) ? QuantMode_t::NoQuant : QuantMode_t::F322BF16;
    AscendC::Fixpipe<T, float, AscendC::CFG_ROW_MAJOR>(gm, l0c, params);
}

/// Rounds C [m, n] to bf16 and leaves it in L1 as a Nz tile. FIX.
__aicore__ inline void StoreNz(const AscendC::LocalTensor<Bf16> &l1,
                               const AscendC::LocalTensor<float> &l0c, uint32_t m, uint32_t n)
{
    AscendC::FixpipeParamsV220 params;
    params.nSize = n;
    params.mSize = m;
    params.srcStride = m;
    params.dstStride = m;
    params.quantPre = QuantMode_t::F322BF16;
    AscendC::Fixpipe<Bf16, float, AscendC::CFG_NZ>(l1, l0c, params);
}

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_CUBE_TILE_H
