// SPDX-License-Identifier: Apache-2.0
//
// vec_binary.h - Add Sub Mul Div Max Min AddRelu SubRelu And Or MulAddDst FusedMulAdd(Relu).
//
// One body per form; the names at the end are a table. Level 2 (count) is one instruction of any
// length; level 0 takes a mask, a repeat count and strides.
#ifndef FLA_TWIN_API_VEC_BINARY_H
#define FLA_TWIN_API_VEC_BINARY_H

#include "vec_common.h"

namespace twin
{
inline namespace TWIN_NS
{

constexpr bool ReadsDst(Binary op)
{
    return op >= Binary::kMulAddDst;
}

/// Lanes per cycle (rules 1.3): Div 32, MulAddDst half of full rate, the rest full.
template <typename T>
constexpr uint32_t BinaryRate(Binary op)
{
    return op == Binary::kDiv ? 32 : op == Binary::kMulAddDst ? 128 / sizeof(T) : 256 / sizeof(T);
}

/// Sources may be half under a float destination for MulAddDst; otherwise one type.
template <Binary op, typename D, typename S>
constexpr bool BinaryLegal()
{
    if constexpr (std::is_same_v<D, S>) {
        if constexpr (!kHasTy<D>) {
            return false;
        } else {
            // Unsigned 16-bit exists for And and Or only; unsigned 32-bit not at all.
            constexpr bool isUnsigned = kOneOf<D, uint16_t, uint32_t>;
            constexpr bool bitwise = op == Binary::kAnd || op == Binary::kOr;
            return HasBinary(op, TyFor<D>()) && (!isUnsigned || bitwise);
        }
    } else {
        return op == Binary::kMulAddDst && std::is_same_v<D, float> && std::is_same_v<S, half>;
    }
}

/// dst == src1 with a repeat stride of 0 accumulates rows; these six operations may (rules 4.2).
constexpr bool MayAccumulate(Binary op)
{
    return op == Binary::kAdd || op == Binary::kSub || op == Binary::kMul || op == Binary::kMax ||
           op == Binary::kMin || op == Binary::kAddRelu || op == Binary::kSubRelu;
}

/// Level 2: n contiguous elements, no limit but UB.
template <Binary op, typename D, typename S>
inline void BinaryCount(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a,
                        const LocalTensor<S> &b, uint32_t n, Where where)
{
    static_assert(BinaryLegal<op, D, S>(),
                  "this vector operation does not exist for this element type");
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            constexpr bool mixed = sizeof(D) != sizeof(S);
            i.NoOverlap(d, uint64_t(n) * sizeof(D), a, uint64_t(n) * sizeof(S), !mixed);
            i.NoOverlap(d, uint64_t(n) * sizeof(D), b, uint64_t(n) * sizeof(S), !mixed);
            i.Reads(a, n).Reads(b, n);
            if constexpr (ReadsDst(op)) {
                i.Reads(d, n);
            }
            i.Writes(d, n).Lanes(n, BinaryRate<D>(op));
        },
        [=] {
            if constexpr (std::is_same_v<D, S>) {
                P().binary[At(op)][At(TyFor<D>())](d.Host(), a.Host(), b.Host(), n);
            } else {
                P().mulAddDstMixed(d.Host(), a.Host(), b.Host(), n);
            }
        });
}

/// Level 0: masked lanes keep their old value; strides may re-read a block or a row.
template <Binary op, bool isSetMask, typename D, typename S, typename M>
inline void BinaryRep(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a,
                      const LocalTensor<S> &b, M mask, uint32_t repeat,
                      const AscendC::BinaryRepeatParams &p, Where where)
{
    static_assert(BinaryLegal<op, D, S>(),
                  "this vector operation does not exist for this element type");
    constexpr uint32_t lanes = kRepLanes<D>;  // the destination is the wider type
    // Decided before the call is issued: the mask register is the scalar unit's business.
    const Repeats r = ResolveMask<isSetMask>(mask, repeat, lanes);
    const RepShape shape{{},
                         0,
                         uint16_t(p.dstBlkStride),
                         uint16_t(p.src0BlkStride),
                         uint16_t(p.src1BlkStride),
                         uint16_t(p.dstRepStride),
                         uint16_t(p.src0RepStride),
                         uint16_t(p.src1RepStride)};
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            RequireMask(i, r, lanes);
            RequireDstStride(i, p.dstBlkStride, 255);
            RequireStride(i, "src0BlkStride", p.src0BlkStride, 255);
            RequireStride(i, "src1BlkStride", p.src1BlkStride, 255);
            RequireStride(i, "dstRepStride", p.dstRepStride, 255);
            RequireStride(i, "src0RepStride", p.src0RepStride, 255);
            RequireStride(i, "src1RepStride", p.src1RepStride, 255);
            RequireOverlap(i, d, a, p.dstBlkStride, p.src0BlkStride, p.dstRepStride,
                           p.src0RepStride, r, false);
            RequireOverlap(i, d, b, p.dstBlkStride, p.src1BlkStride, p.dstRepStride,
                           p.src1RepStride, r, MayAccumulate(op));
            DeclareWalk(i, a, r, lanes, {p.src0BlkStride, p.src0RepStride}, Access::kRead);
            DeclareWalk(i, b, r, lanes, {p.src1BlkStride, p.src1RepStride}, Access::kRead);
            if constexpr (ReadsDst(op)) {
                DeclareWalk(i, d, r, lanes, {p.dstBlkStride, p.dstRepStride}, Access::kRead);
            }
            DeclareWalk(i, d, r, lanes, {p.dstBlkStride, p.dstRepStride}, Access::kWrite);
            i.Lanes(uint64_t(lanes) * r.repeat + r.tail, BinaryRate<D>(op));
        },
        [=] {
            ForParts(r, shape, [&](const RepShape &s, uint32_t skip) {
                // A counter-mode rest continues where the full repeats ended.
                D *dp = Blocks(d.Host(), uint64_t(skip) * s.dRep);
                const S *ap = Blocks(a.Host(), uint64_t(skip) * s.aRep),
                        *bp = Blocks(b.Host(), uint64_t(skip) * s.bRep);
                if constexpr (std::is_same_v<D, S>) {
                    P().binaryRep[At(op)][At(TyFor<D>())](dp, ap, bp, s);
                } else {
                    P().mulAddDstMixedRep(dp, ap, bp, s);
                }
            });
        });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

// Operations of one element type, then those whose sources may be narrower.
#define TWIN_BINARY(Name, op)                                                                     \
    template <typename T>                                                                         \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src0,                       \
                     const LocalTensor<T> &src1, int32_t count, TWIN_HERE)                        \
    {                                                                                             \
        twin::BinaryCount<twin::Binary::op>(#Name, dst, src0, src1, static_cast<uint32_t>(count), \
                                            where);                                               \
    }                                                                                             \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src0,                       \
                     const LocalTensor<T> &src1, uint64_t mask, uint32_t repeatTimes,             \
                     const BinaryRepeatParams &params, TWIN_HERE)                                 \
    {                                                                                             \
        twin::BinaryRep<twin::Binary::op, isSetMask>(#Name, dst, src0, src1, mask, repeatTimes,   \
                                                     params, where);                              \
    }                                                                                             \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src0,                       \
                     const LocalTensor<T> &src1, const uint64_t mask[], uint32_t repeatTimes,     \
                     const BinaryRepeatParams &params, TWIN_HERE)                                 \
    {                                                                                             \
        twin::BinaryRep<twin::Binary::op, isSetMask>(#Name, dst, src0, src1, mask, repeatTimes,   \
                                                     params, where);                              \
    }
TWIN_BINARY(Add, kAdd)
TWIN_BINARY(Sub, kSub)
TWIN_BINARY(Mul, kMul)
TWIN_BINARY(Div, kDiv)
TWIN_BINARY(Max, kMax)
TWIN_BINARY(Min, kMin)
TWIN_BINARY(AddRelu, kAddRelu)
TWIN_BINARY(SubRelu, kSubRelu)
TWIN_BINARY(And, kAnd)
TWIN_BINARY(Or, kOr)
TWIN_BINARY(FusedMulAdd, kFusedMulAdd)
TWIN_BINARY(FusedMulAddRelu, kFusedMulAddRelu)
#undef TWIN_BINARY

template <typename T, typename U>
inline void MulAddDst(const LocalTensor<T> &dst, const LocalTensor<U> &src0,
                      const LocalTensor<U> &src1, int32_t count, TWIN_HERE)
{
    twin::BinaryCount<twin::Binary::kMulAddDst>("MulAddDst", dst, src0, src1,
                                                static_cast<uint32_t>(count), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void MulAddDst(const LocalTensor<T> &dst, const LocalTensor<U> &src0,
                      const LocalTensor<U> &src1, uint64_t mask, uint32_t repeatTimes,
                      const BinaryRepeatParams &params, TWIN_HERE)
{
    twin::BinaryRep<twin::Binary::kMulAddDst, isSetMask>("MulAddDst", dst, src0, src1, mask,
                                                         repeatTimes, params, where);
}
template <typename T, typename U, bool isSetMask = true>
inline void MulAddDst(const LocalTensor<T> &dst, const LocalTensor<U> &src0,
                      const LocalTensor<U> &src1, const uint64_t mask[], uint32_t repeatTimes,
                      const BinaryRepeatParams &params, TWIN_HERE)
{
    twin::BinaryRep<twin::Binary::kMulAddDst, isSetMask>("MulAddDst", dst, src0, src1, mask,
                                                         repeatTimes, params, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_BINARY_H
