// SPDX-License-Identifier: Apache-2.0
// Words for the vector core: bf16 <-> fp32 tiles and masks in UB. Vector pipe only; the caller
// orders the pipes.
#ifndef FLA_COMMON_KERNEL_VEC_TILE_H
#define FLA_COMMON_KERNEL_VEC_TILE_H

#include "kernel_operator.h"

#include "local_memory.h"

namespace fla
{

/// fp32 <- bf16, exact. The vector unit has no bf16 arithmetic, so every operand passes here.
__aicore__ inline void Widen(const AscendC::LocalTensor<float> &wide,
                             const AscendC::LocalTensor<bfloat16_t> &narrow, uint32_t count)
{
    AscendC::Cast(wide, narrow, AscendC::RoundMode::CAST_NONE, count);
}

/// bf16 <- fp32, round to nearest even: the one rounding of a published value.
__aicore__ inline void Narrow(const AscendC::LocalTensor<bfloat16_t> &narrow,
                              const AscendC::LocalTensor<float> &wide, uint32_t count)
{
    AscendC::Cast(narrow, wide, AscendC::RoundMode::CAST_RINT, count);
}

/// E(gate): 2^gate with `isBase2`, else e^gate. 0 for any gate below the range of fp32, -inf
/// included. `gate` holds bf16 or fp32. No barrier at its end.
__aicore__ inline void MakeDecay(const AscendC::LocalTensor<float> &decay,
                                 const AscendC::LocalTensor<float> &gate, bool isBf16, bool isBase2,
                                 uint32_t count)
{
    constexpr float kLn2 = 0.69314718055994530942f;
    if (isBf16) {
        Widen(decay, gate.ReinterpretCast<bfloat16_t>(), count);
    } else {
        AscendC::DataCopy(decay, gate, count);
    }
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(decay, decay, isBase2 ? kLn2 : 1.0f, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Exp(decay, decay, count);
}

/// One factor per row, laid out for repeats over rows of kDim: in all lanes of a block, once for each
/// repeat of the row. fp32 [rows, kDim / kLanesF32, kBlockF32]. No barrier at its end.
__aicore__ inline void SpreadRows(const AscendC::LocalTensor<float> &blocks,
                                  const AscendC::LocalTensor<float> &ofRows, uint32_t rows)
{
    constexpr uint32_t kRepeats = kDim / kLanesF32;
    for (uint32_t repeat = 0; repeat < kRepeats; ++repeat) {
        AscendC::Brcb(blocks[repeat * kBlockF32], ofRows, rows / kBlockF32,
                      {kRepeats, kRepeats * kBlockF32});
    }
}

/// Bits of a lower triangle with its diagonal, for And: row i of `rows` keeps the lanes of its
/// first i + 1 entries of `entryLanes` 16-bit lanes. And clears whatever the rest holds, NaN too.
__aicore__ inline void MakeTriangle(const AscendC::LocalTensor<uint16_t> &tile, uint32_t rows,
                                    uint32_t entryLanes)
{
    const uint32_t rowLanes = rows * entryLanes;
    AscendC::Duplicate(tile, static_cast<uint16_t>(0), rows * rowLanes);
    AscendC::PipeBarrier<PIPE_V>();
    for (uint32_t row = 0; row < rows; ++row) {
        AscendC::Duplicate(tile[row * rowLanes], static_cast<uint16_t>(0xFFFF),
                           (row + 1) * entryLanes);
    }
    AscendC::PipeBarrier<PIPE_V>();
}

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_VEC_TILE_H
