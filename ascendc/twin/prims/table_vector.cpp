// SPDX-License-Identifier: Apache-2.0
//
// table_vector.cpp - the vector and DMA part of one instruction set's table; compiled once per set
// with -DTWIN_ISA=<name> and its -march flags (prims/CMakeLists.txt). The loops below instantiate
// exactly the entries the type tables of prims.h allow.
#include "atomic.h"
#include "cast.h"
#include "moves.h"
#include "reduce.h"
#include "select.h"

namespace twin::TWIN_ISA
{

/// f(Int<first>), .. f(Int<end - 1>): a loop whose index is a constant.
template <int first, int end, typename F>
TWIN_INLINE void ForEach(F f)
{
    if constexpr (first < end) {
        f(Int<first>{});
        ForEach<first + 1, end>(f);
    }
}
template <typename E>
constexpr int kN = static_cast<int>(E::kCount);

/// Every operation and type that HasBinary, HasUnary and HasScalar allow.
void FillArithmetic(Prims &p)
{
    ForEach<0, kN<Ty>>([&](auto t) {
        constexpr Ty ty = static_cast<Ty>(decltype(t)::value);
        // Entries the type lacks stay null.
        using T = typename TyOf<ty>::Store;
        ForEach<0, kN<Binary>>([&](auto o) {
            constexpr Binary op = static_cast<Binary>(decltype(o)::value);
            if constexpr (HasBinary(op, ty)) {
                p.binary[decltype(o)::value][decltype(t)::value] = BinaryCount<op, T, T>;
                p.binaryRep[decltype(o)::value][decltype(t)::value] = BinaryReps<op, T, T>;
            }
        });
        ForEach<0, kN<Unary>>([&](auto o) {
            constexpr Unary op = static_cast<Unary>(decltype(o)::value);
            if constexpr (HasUnary(op, ty)) {
                p.unary[decltype(o)::value][decltype(t)::value] = UnaryCount<op, T>;
                p.unaryRep[decltype(o)::value][decltype(t)::value] = UnaryReps<op, T>;
            }
        });
        ForEach<0, kN<Scalar>>([&](auto o) {
            constexpr Scalar op = static_cast<Scalar>(decltype(o)::value);
            if constexpr (HasScalar(op, ty)) {
                p.scalar[decltype(o)::value][decltype(t)::value] = ScalarCount<op, T, T>;
                p.scalarRep[decltype(o)::value][decltype(t)::value] = ScalarReps<op, T, T>;
            }
        });
    });
    p.mulAddDstMixed = BinaryCount<Binary::kMulAddDst, float, Half>;
    p.mulAddDstMixedRep = BinaryReps<Binary::kMulAddDst, float, Half>;
    p.axpyMixed = ScalarCount<Scalar::kAxpy, float, Half>;
    p.axpyMixedRep = ScalarReps<Scalar::kAxpy, float, Half>;
}

/// Every pair with every mode.
void FillCasts(Prims &p)
{
    ForEach<0, kN<CastPair>>([&](auto c) {
        constexpr CastPair pair = static_cast<CastPair>(decltype(c)::value);
        ForEach<0, kN<Round>>([&](auto m) {
            constexpr Round mode = static_cast<Round>(decltype(m)::value);
            if constexpr ((CastModes(pair) >> decltype(m)::value & 1) != 0) {
                p.cast[decltype(c)::value][decltype(m)::value] = CastCount<pair, mode>;
                p.castRep[decltype(c)::value][decltype(m)::value] = CastReps<pair, mode>;
            } else {
                // An illegal mode is the checker's business; the fast twin must not jump to null.
                constexpr Round legal = (CastModes(pair) & 1) ? Round::kNone : Round::kRint;
                p.cast[decltype(c)::value][decltype(m)::value] = CastCount<pair, legal>;
                p.castRep[decltype(c)::value][decltype(m)::value] = CastReps<pair, legal>;
            }
        });
    });
}

/// Columns: 0 float, 1 half.
template <typename T>
void FillReductions(Prims &p, int column)
{
    ForEach<0, kN<Fold>>([&](auto f) {
        constexpr Fold op = static_cast<Fold>(decltype(f)::value);
        p.blockFold[decltype(f)::value][column] = FoldGroups<op, T, kBlockLevels<T>>;
        p.foldAll[decltype(f)::value][column] = FoldAll<op, T>;
        if constexpr (op != Fold::kSum) {
            p.wholeIndex[decltype(f)::value][column] = WholeIndex<op, T>;
        }
    });
    p.wholeSum[column] = FoldGroups<Fold::kSum, T, kWholeLevels<T>>;
    p.pairSum[column] = FoldGroups<Fold::kSum, T, 1>;
}

// Comparisons of one column.
template <Ty ty>
void FillCompares(Prims &p)
{
    using T = typename TyOf<ty>::Store;
    ForEach<0, kN<Cmp>>([&](auto c) {
        constexpr Cmp op = static_cast<Cmp>(decltype(c)::value);
        if constexpr (ty != Ty::kI32 || op == Cmp::kEq) {  // int32 knows equality only
            p.compare[decltype(c)::value][int(ty)] = CompareCount<op, T>;
            p.compareScalar[decltype(c)::value][int(ty)] = CompareScalarCount<op, T>;
        }
    });
}

/// CreateVecIndex and ArithProgression.
template <Ty ty>
void Arith(void *d, uint32_t firstBits, uint32_t stepBits, uint32_t n)
{
    using T = typename TyOf<ty>::Store;
    const auto first = ScalarFromBits<T>(firstBits), step = ScalarFromBits<T>(stepBits);
    using W = decltype(Widen(T{}));
    for (uint32_t i = 0; i < n; ++i) {
        const W at = static_cast<W>(static_cast<int32_t>(i));
        static_cast<T *>(d)[i] = Narrow<T>(
            BinaryOp<Binary::kAdd>::Do<W>(0, first, BinaryOp<Binary::kMul>::Do<W>(0, step, at)));
    }
}

/// Operations without arithmetic: one body for all types of a width.
void FillMoves(Prims &p)
{
    p.select = Select;
    p.selectScalar = SelectScalar;
    p.duplicate = Duplicate;
    p.duplicateRep = DuplicateRep;
    p.copyRep = CopyRep;
    p.brcb = Brcb;
    p.gather = Gather;
    p.gatherMask = GatherMask;
    p.transpose16 = Transpose16;
    p.transData = TransData;
    p.copyBlocks = CopyBlocks;
    p.copyPad = CopyPad;
    p.nd2nz = Nd2NzMove;
    ForEach<0, kN<Ty>>([&](auto t) {
        constexpr Ty ty = static_cast<Ty>(decltype(t)::value);
        p.addBlocks[decltype(t)::value] = AddBlocks<typename TyOf<ty>::Store>;
        p.arith[decltype(t)::value] = Arith<ty>;
    });
    p.addBlocksBf16 = AddBlocks<Bf16>;
}

/// Called by dispatch.cpp for the instruction set it chose.
void FillVector(Prims &p)
{
    FillArithmetic(p);
    FillCasts(p);
    FillReductions<float>(p, 0);
    FillReductions<Half>(p, 1);
    FillCompares<Ty::kF32>(p);
    FillCompares<Ty::kF16>(p);
    FillCompares<Ty::kI32>(p);
    FillMoves(p);
}

}  // namespace twin::TWIN_ISA
