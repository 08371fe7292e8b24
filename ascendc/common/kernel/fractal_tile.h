// SPDX-License-Identifier: Apache-2.0
// Words for the cube core by single fractals and in fp32: what tile by tile (cube_tile.h) cannot say.
//
// fp32 has no load that transposes a fractal of 16 x 8, only one of 16 x 16 squares. A square is two
// neighbouring fractals, and neighbours they are in a tile that is loaded as bands of 16 rows.
#ifndef FLA_COMMON_KERNEL_FRACTAL_TILE_H
#define FLA_COMMON_KERNEL_FRACTAL_TILE_H

#include "kernel_operator.h"

#include "cube_tile.h"

namespace fla
{

using Wide = AscendC::LocalTensor<float>;
using Narrow16 = AscendC::LocalTensor<bfloat16_t>;

// A fractal is 512 bytes in every store: 16 rows of 32 bytes.
constexpr uint32_t kFractalF32 = kFractalElems / 2;
constexpr uint32_t kFractalBytes = kFractalElems * sizeof(bfloat16_t);
// Fractals of a 16 x 16 square of fp32.
constexpr uint32_t kSquare = 2;

/// `repeat` fractals from `start` on, `step` apart, to dst fractals `dstStep` apart. MTE1.
template <typename T>
__aicore__ inline void LoadFractals(const AscendC::LocalTensor<T> &l0,
                                    const AscendC::LocalTensor<T> &l1, uint32_t start,
                                    uint32_t repeat, uint32_t step, uint32_t dstStep = 1,
                                    bool transpose = false)
{
    AscendC::LoadData2DParams params;
    params.startIndex = start;
    params.repeatTimes = repeat;
    params.srcStride = step;
    params.dstGap = dstStep - 1;
    params.ifTranspose = transpose;
    AscendC::LoadData(l0, l1, params);
}

/// Transposed 16 x 16 squares of fp32, each two neighbouring fractals, `step` squares apart, to dst
/// squares `dstStep` fractals apart; the halves of a square go `halfStep` fractals apart. MTE1.
__aicore__ inline void LoadSquares(const Wide &l0, const Wide &l1, uint32_t start, uint32_t repeat,
                                   uint32_t step, uint32_t dstStep, uint32_t halfStep = 1)
{
    AscendC::LoadData2dTransposeParams params;
    params.startIndex = start;
    params.repeatTimes = repeat;
    params.srcStride = step;
    params.dstGap = dstStep - 1;
    params.dstFracGap = halfStep - 1;
    AscendC::LoadDataWithTranspose(l0, l1, params);
}

/// `count` matrices [rows, cols] -> Nz, `rows` a multiple of 16. MTE2.
template <typename T>
__aicore__ inline void LoadMatrices(const AscendC::LocalTensor<T> &l1,
                                    const AscendC::GlobalTensor<T> &gm, uint32_t count,
                                    uint32_t rows, uint32_t cols, uint32_t rowStep,
                                    uint32_t srcStep, uint32_t dstStep)
{
    AscendC::Nd2NzParams params;
    params.ndNum = count;
    params.nValue = rows;
    params.dValue = cols;
    params.srcNdMatrixStride = srcStep;
    params.srcDValue = rowStep;
    params.dstNzC0Stride = rows;
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = dstStep;
    AscendC::DataCopy(l1, gm, params);
}

/// C = A @ B. M.
template <typename T>
__aicore__ inline void Product(const Wide &c, const AscendC::LocalTensor<T> &a,
                               const AscendC::LocalTensor<T> &b, uint32_t m, uint32_t n, uint32_t k)
{
    Multiply(c, a, b, m, n, k, false);
}

/// C += A @ B. M.
template <typename T>
__aicore__ inline void AddProduct(const Wide &c, const AscendC::LocalTensor<T> &a,
                                  const AscendC::LocalTensor<T> &b, uint32_t m, uint32_t n,
                                  uint32_t k)
{
    Multiply(c, a, b, m, n, k, true);
}

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_FRACTAL_TILE_H
