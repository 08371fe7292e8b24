// SPDX-License-Identifier: Apache-2.0
//
// prims.h - the twin's arithmetic and data movement on raw host pointers.
//
// One table of functions, built once per instruction set (baseline, AVX2+FMA, AVX-512) from the
// same sources and chosen when the library is loaded. The instruction layer (twin/api) decodes an
// Ascend C call, checks it, and ends in exactly one call through this table, in the fast and in the
// checked build alike; that is why both give the same bits.
//
// Rules for every primitive here:
//  * no checks: arguments are legal, pointers valid, counts possibly zero;
//  * an element's result depends on its own operands only, never on where the vector body ends or
//  how
//    a pointer is aligned. So a tile may be cut in any way without changing a bit;
//  * L0A and L0B are private to the cube and can't be read back, so their host form is free: every
//    element is a float already, a 512-byte device fractal owns a slot of 256 floats (host float
//    index = device byte / 2). A keeps the device order [16 m][C0 k]; B is kept as [C0 k][16 n],
//    the order the matrix loop reads.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef TWIN_EXPORT
#define TWIN_EXPORT __attribute__((visibility("default")))
#endif

namespace twin
{

/// Element types with vector arithmetic (rules 4.3). Column index of the operation tables.
enum class Ty : uint8_t { kF32, kF16, kI32, kI16, kCount };

enum class Binary : uint8_t {
    kAdd,
    kSub,
    kMul,
    kDiv,
    kMax,
    kMin,
    kAddRelu,
    kSubRelu,
    kAnd,
    kOr,
    kMulAddDst,
    kFusedMulAdd,
    kFusedMulAddRelu,
    kCount
};
enum class Unary : uint8_t { kAbs, kExp, kLn, kSqrt, kRsqrt, kReciprocal, kRelu, kNot, kCount };
/// Tensor-scalar forms. Shifts on kI16/kI32 are the unsigned ones of the type table.
enum class Scalar : uint8_t {
    kAdds,
    kMuls,
    kMaxs,
    kMins,
    kLeakyRelu,
    kAxpy,
    kShiftLeft,
    kShiftRight,
    kShiftRightRound,
    kCount
};
enum class Cmp : uint8_t { kLt, kGt, kEq, kLe, kGe, kNe, kCount };
enum class Fold : uint8_t { kSum, kMax, kMin, kCount };

// Which operations a type has (rules 4.3): the entries of the tables, and the API's static_asserts.
constexpr bool HasBinary(Binary op, Ty t)
{
    const bool real = t == Ty::kF32 || t == Ty::kF16;
    switch (op) {
        case Binary::kDiv:
        case Binary::kMulAddDst:
        case Binary::kFusedMulAdd:
        case Binary::kFusedMulAddRelu:
            return real;
        case Binary::kAddRelu:
        case Binary::kSubRelu:
            return t != Ty::kI32;
        case Binary::kAnd:
        case Binary::kOr:
            return t == Ty::kI16;
        default:
            return true;
    }
}

constexpr bool HasUnary(Unary op, Ty t)
{
    const bool real = t == Ty::kF32 || t == Ty::kF16;
    return op == Unary::kRelu ? t != Ty::kI16 : op == Unary::kNot ? t == Ty::kI16 : real;
}

constexpr bool HasScalar(Scalar op, Ty t)
{
    const bool real = t == Ty::kF32 || t == Ty::kF16;
    switch (op) {
        case Scalar::kLeakyRelu:
        case Scalar::kAxpy:
            return real;
        case Scalar::kShiftLeft:
        case Scalar::kShiftRight:
        case Scalar::kShiftRightRound:
            return !real;
        default:
            return true;
    }
}

/// Cast pairs that exist on the chip (rules 4.4), source first.
enum class CastPair : uint8_t {
    kF16F32,
    kBf16F32,
    kF32F16,
    kF32Bf16,
    kF32F32,
    kF32I16,
    kF32I32,
    kF32I64,
    kBf16I32,
    kI16F32,
    kI16F16,
    kI32F32,
    kI32I16,
    kI32I64,
    kI64F32,
    kI64I32,
    kF16I32,
    kF16I16,
    kF16I8,
    kF16U8,
    kI8F16,
    kU8F16,
    kCount
};
/// Same order as AscendC::RoundMode.
enum class Round : uint8_t { kNone, kRint, kFloor, kCeil, kRound, kTrunc, kOdd, kCount };

/// Legal rounding modes of a pair as bits of Round.
constexpr uint32_t CastModes(CastPair p)
{
    constexpr uint32_t none = 1u << 0, five = 0x3eu, odd = 1u << 6;  // five: RINT .. TRUNC
    switch (p) {
        case CastPair::kF32F16:
            return none | five | odd;
        case CastPair::kI32F32:
        case CastPair::kI16F16:
        case CastPair::kF16I8:
        case CastPair::kF16U8:
            return none | five;
        case CastPair::kF32Bf16:  // NONE compiles with the real headers and is illegal all the same
        case CastPair::kF32F32:
        case CastPair::kF32I16:
        case CastPair::kF32I32:
        case CastPair::kF32I64:
        case CastPair::kBf16I32:
        case CastPair::kI64F32:
        case CastPair::kF16I32:
        case CastPair::kF16I16:
            return five;
        default:
            return none;
    }
}

/// Level-0 shape. mask bit i = lane i of a repeat; strides in 32-byte blocks, start to start.
/// A unary operation leaves the b strides alone. Copy is the one with strides up to 4095.
struct RepShape {
    uint64_t mask[2];
    uint32_t repeat;
    uint16_t dBlk, aBlk, bBlk;
    uint16_t dRep, aRep, bRep;
};

/// Reduction inside a repeat. dstStep in destination elements (see rules 4.7), source in blocks.
struct FoldShape {
    uint64_t mask[2];
    uint32_t repeat, dstStep;
    uint16_t aBlk, aRep;
};
enum class FoldOut : uint8_t { kValueIndex, kIndexValue, kValue, kIndex };

/// Strided block copy, all in bytes; strides from block start to block start.
struct BlockCopy {
    uint32_t blocks, bytes;
    size_t srcStep, dstStep;
};
/// What fills a padded block: `left` and `right` elements of `value` (elemBytes wide) around it.
struct BlockPad {
    uint32_t elemBytes, left, right;
    uint64_t value;
};
/// GM [n, d] rows -> L1 Nz; strides in elements of the source and 32-byte units of L1 (rules 3.3).
struct Nd2Nz {
    uint32_t ndNum, n, d, srcMatrix, srcRow, dstC0, dstN, dstMatrix;
};

enum class L0 : uint8_t { kA, kB };
enum class L0Type : uint8_t { kBf16, kF16, kF32 };

/// LoadData 2D and LoadDataWithTranspose. Index and stride count fractals (squares for kF32 with
/// transposition), dstStep and fracStep count 512-byte fractals, start to start.
struct Load2d {
    uint32_t start, repeat, srcStride, dstStep, fracStep;
    bool transpose;
};
/// LoadData 3D restricted to a matrix [rows, cols] in L1 Nz (1x1 filter): the block of mSize rows
/// and kSize columns at (m, k). For L0A `transpose` yields the transposed block.
struct Load3d {
    uint32_t rows, m, k, mSize, kSize;
    bool transpose;
};
/// k16: kDirectionAlign, fp32 fractals come in pairs. depth: C0 of the operands, 16 or 8.
struct MmadShape {
    uint32_t m, n, k, depth;
    bool accumulate, k16;
};
enum class FixOut : uint8_t { kF32, kF16, kBf16 };
/// L0C -> rows or Nz. srcStrip: floats between 16-column strips; dstStride: elements between rows
/// (row major) or between 16-column strips (Nz). nd*: matrices, in elements.
struct Fixpipe {
    uint32_t m, n, srcStrip, dstStride, ndNum, srcNd, dstNd;
    bool relu, split8;
};

struct Prims {
    using BinaryFn = void (*)(void *d, const void *a, const void *b, uint32_t n);
    using BinaryRep = void (*)(void *d, const void *a, const void *b, const RepShape &s);
    using UnaryFn = void (*)(void *d, const void *a, uint32_t n);
    using UnaryRep = void (*)(void *d, const void *a, const RepShape &s);
    using ScalarFn = void (*)(void *d, const void *a, uint32_t scalarBits, uint32_t n);
    using ScalarRep = void (*)(void *d, const void *a, uint32_t scalarBits, const RepShape &s);
    using CompareFn = void (*)(uint8_t *d, const void *a, const void *b, uint32_t n);
    using CompareScalarFn = void (*)(uint8_t *d, const void *a, uint32_t scalarBits, uint32_t n);
    using FoldFn = void (*)(void *d, const void *a, const FoldShape &s);
    using FoldIndexFn = void (*)(void *d, const void *a, const FoldShape &s, FoldOut out);
    using FoldAllFn = void (*)(void *d, const void *a, uint32_t n, bool index);

    template <typename E>
    static constexpr size_t N = static_cast<size_t>(E::kCount);

    // --- vector arithmetic; a null entry is an operation the type does not have ---
    BinaryFn binary[N<Binary>][N<Ty>];
    BinaryRep binaryRep[N<Binary>][N<Ty>];
    UnaryFn unary[N<Unary>][N<Ty>];
    UnaryRep unaryRep[N<Unary>][N<Ty>];
    ScalarFn scalar[N<Scalar>][N<Ty>];
    ScalarRep scalarRep[N<Scalar>][N<Ty>];
    // half sources into a float destination
    BinaryFn mulAddDstMixed;
    BinaryRep mulAddDstMixedRep;
    ScalarFn axpyMixed;
    ScalarRep axpyMixedRep;
    UnaryFn cast[N<CastPair>][N<Round>];
    UnaryRep castRep[N<CastPair>][N<Round>];

    // --- compare and select; masks are bits, lowest lane first ---
    CompareFn compare[N<Cmp>][N<Ty>];
    CompareScalarFn compareScalar[N<Cmp>][N<Ty>];
    /// d[i] = bit i ? a[i] : b[i]; elemBytes 2 or 4. `period` > 0 repeats the first period bits.
    void (*select)(void *d, const uint8_t *bits, const void *a, const void *b, uint32_t n,
                   uint32_t elemBytes, uint32_t period);
    void (*selectScalar)(void *d, const uint8_t *bits, const void *a, uint32_t scalarBits,
                         uint32_t n, uint32_t elemBytes, uint32_t period);

    // --- reductions; [Ty] holds kF32 and kF16 only ---
    FoldFn blockFold[N<Fold>][2];
    FoldFn wholeSum[2];
    FoldFn pairSum[2];
    FoldIndexFn wholeIndex[N<Fold>][2];  // kMax and kMin
    FoldAllFn foldAll[N<Fold>][2];

    // --- fills, moves inside UB ---
    void (*duplicate)(void *d, uint64_t bits, uint32_t n, uint32_t elemBytes);
    void (*duplicateRep)(void *d, uint64_t bits, const RepShape &s, uint32_t elemBytes);
    void (*copyRep)(void *d, const void *a, const RepShape &s, uint32_t elemBytes);
    void (*brcb)(void *d, const void *a, uint32_t repeat, uint32_t dBlk, uint32_t dRep,
                 uint32_t elemBytes);
    void (*gather)(void *d, const void *a, const uint32_t *byteOffsets, uint32_t base, uint32_t n,
                   uint32_t elemBytes);
    /// Squeezes the selected lanes of each repeat; returns how many were written.
    uint32_t (*gatherMask)(void *d, const void *a, const uint8_t *bits, uint32_t bitStep,
                           uint32_t lanes, uint32_t repeat, uint32_t aBlk, uint32_t aRep,
                           uint32_t elemBytes);
    void (*arith[N<Ty>])(void *d, uint32_t firstBits, uint32_t stepBits, uint32_t n);
    void (*transpose16)(void *d, const void *a);
    /// TransDataTo5HD for one repeat; lists of 16 blocks.
    void (*transData)(void *const *d, const void *const *a, uint32_t elemBytes, bool dHigh,
                      bool aHigh);

    // --- DMA ---
    void (*copyBlocks)(void *d, const void *a, const BlockCopy &s);
    void (*copyPad)(void *d, const void *a, const BlockCopy &s, const BlockPad &pad);
    void (*addBlocks[N<Ty>])(void *d, const void *a, const BlockCopy &s);  // atomic add
    void (*addBlocksBf16)(void *d, const void *a, const BlockCopy &s);
    void (*nd2nz)(void *d, const void *a, const Nd2Nz &s, uint32_t elemBytes);

    // --- cube ---
    void (*load2d)(float *d, const void *a, const Load2d &s, L0 side, L0Type type);
    void (*load3d)(float *d, const void *a, const Load3d &s, L0 side, L0Type type);
    void (*fillL0)(float *d, float value, uint32_t repeat, uint32_t fractals, uint32_t gap);
    void (*mmad)(float *c, const float *a, const float *b, const MmadShape &s);
    void (*biasRows)(float *c, const float *bias, uint32_t m, uint32_t n);
    void (*fixpipeRows[3])(void *d, const float *c, const Fixpipe &s);
    void (*fixpipeNz[3])(void *d, const float *c, const Fixpipe &s);
};

/// The active table; filled before main by the best instruction set of this machine, at most
/// FLA_NPU_TWIN_ISA (baseline, avx2, avx512).
extern TWIN_EXPORT Prims gPrims;
inline const Prims &P()
{
    return gPrims;
}

/// Name of the active instruction set.
TWIN_EXPORT const char *IsaName();

/// Makes `name` active ("" or null: the best one) if this machine has it; otherwise keeps the table
/// and returns false. Not to be called while kernels run.
TWIN_EXPORT bool UseIsa(const char *name);

}  // namespace twin
