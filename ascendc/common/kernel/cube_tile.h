// SPDX-License-Identifier: Apache-2.0
// Words for the cube core: GM -> L1 -> L0 -> L0C -> GM, 16-bit operands, tiles of a multiple of 16.
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

/// Reads `rows` contiguous rows of `cols` elements into a tile of `tileRows` rows. MTE2; rows
/// beyond `rows` keep what L1 held before.
__aicore__ inline void LoadNz(const AscendC::LocalTensor<Bf16> &l1,
                              const AscendC::GlobalTensor<Bf16> &gm, uint32_t rows, uint32_t cols,
                              uint32_t tileRows)
{
    AscendC::Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = rows;
    params.dValue = cols;
    params.srcNdMatrixStride = 0;
    params.srcDValue = cols;
    params.dstNzC0Stride = tileRows;
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    AscendC::DataCopy(l1, gm, params);
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

/// Left operand A [m, k] from a tile stored [m, k]. MTE1; one load per 16 rows.
__aicore__ inline void LoadLeft(const AscendC::LocalTensor<Bf16> &l0a,
                                const AscendC::LocalTensor<Bf16> &l1, uint32_t m, uint32_t k)
{
    const uint32_t mBlocks = m / kFractal;
    const uint32_t kBlocks = k / kFractal;
    for (uint32_t i = 0; i < mBlocks; ++i) {
        AscendC::LoadData2DParams params;
        params.startIndex = i;
        params.repeatTimes = kBlocks;
        params.srcStride = mBlocks;
        AscendC::LoadData(l0a[i * kBlocks * kFractalElems], l1, params);
    }
}

/// Left operand A [m, k] from a tile stored [k, m]. MTE1; one load, each fractal transposed on the
/// way.
__aicore__ inline void LoadLeftTransposed(const AscendC::LocalTensor<Bf16> &l0a,
                                          const AscendC::LocalTensor<Bf16> &l1, uint32_t m,
                                          uint32_t k)
{
    AscendC::LoadData2DParams params;
    params.repeatTimes = (m / kFractal) * (k / kFractal);
    params.srcStride = 1;
    params.ifTranspose = true;
    AscendC::LoadData(l0a, l1, params);
}

/// Right operand B [k, n] from a tile stored [k, n]. MTE1; one load per 16 rows, each fractal
/// transposed.
__aicore__ inline void LoadRight(const AscendC::LocalTensor<Bf16> &l0b,
                                 const AscendC::LocalTensor<Bf16> &l1, uint32_t k, uint32_t n)
{
    const uint32_t kBlocks = k / kFractal;
    const uint32_t nBlocks = n / kFractal;
    for (uint32_t i = 0; i < kBlocks; ++i) {
        AscendC::LoadData2DParams params;
        params.startIndex = i;
        params.repeatTimes = nBlocks;
        params.srcStride = kBlocks;
        params.ifTranspose = true;
        AscendC::LoadData(l0b[i * nBlocks * kFractalElems], l1, params);
    }
}

/// Right operand B [k, n] from a tile stored [n, k]. MTE1; one load, the layouts agree.
__aicore__ inline void LoadRightTransposed(const AscendC::LocalTensor<Bf16> &l0b,
                                           const AscendC::LocalTensor<Bf16> &l1, uint32_t k,
                                           uint32_t n)
{
    AscendC::LoadData2DParams params;
    params.repeatTimes = (n / kFractal) * (k / kFractal);
    params.srcStride = 1;
    AscendC::LoadData(l0b, l1, params);
}

/// C [m, n] = A @ B, or C += A @ B. M. `k` is the one the operands were loaded with; m is never 1
/// here (a single row would switch the core to its vector mode, which reads A in another layout),
/// because m is rounded to 16.
__aicore__ inline void Multiply(const AscendC::LocalTensor<float> &l0c,
                                const AscendC::LocalTensor<Bf16> &l0a,
                                const AscendC::LocalTensor<Bf16> &l0b, uint32_t m, uint32_t n,
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

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_CUBE_TILE_H
