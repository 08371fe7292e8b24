// SPDX-License-Identifier: Apache-2.0
//
// vec_unary.h - Abs Exp Ln Sqrt Rsqrt Reciprocal Relu Not.
//
// Rsqrt and Reciprocal are as coarse as on the chip (rules 4.8): use Sqrt and Div where it matters.
// There is no 2^x instruction: write Exp(x * ln2).
#ifndef FLA_TWIN_API_VEC_UNARY_H
#define FLA_TWIN_API_VEC_UNARY_H

#include "vec_common.h"

namespace twin
{
inline namespace TWIN_NS
{

template <typename T>
constexpr bool UnaryLegal(Unary op)
{
    if constexpr (!kHasTy<T>) {
        return false;
    } else {
        return HasUnary(op, TyFor<T>()) && (!kOneOf<T, uint32_t, uint16_t> || op == Unary::kNot);
    }
}
/// Lanes per cycle (rules 1.3).
template <typename T>
constexpr uint32_t UnaryRate(Unary op)
{
    return op == Unary::kExp || op == Unary::kLn || op == Unary::kSqrt ? 32 : 256 / sizeof(T);
}

/// Rules of one instruction beyond the common ones: none.
struct NoRules {
    template <typename I>
    void operator()(I &) const
    {
    }
};

/// Level 2 of every one-source instruction: checks and footprints, then `effect`.
template <typename D, typename S, typename Effect, typename Rules = NoRules>
inline void MapCount(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a, uint32_t n,
                     uint32_t rate, bool readsDst, Where where, const Effect &effect,
                     const Rules &rules = {})
{
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            rules(i);
            i.NoOverlap(d, uint64_t(n) * sizeof(D), a, uint64_t(n) * sizeof(S),
                        sizeof(D) == sizeof(S));
            i.Reads(a, n);
            if (readsDst) {
                i.Reads(d, n);
            }
            i.Writes(d, n).Lanes(n, rate);
        },
        effect);
}

/// Level 0 of every one-source instruction. effect(dst, src, shape) runs once per part.
template <typename D, typename S, typename Effect, typename Rules = NoRules>
inline void MapRep(const char *name, const LocalTensor<D> &d, const LocalTensor<S> &a,
                   const Repeats &r, const AscendC::UnaryRepeatParams &p, uint32_t rate,
                   bool readsDst, Where where, const Effect &effect, const Rules &rules = {})
{
    constexpr uint32_t lanes = kRepLanes<D> < kRepLanes<S> ? kRepLanes<D> : kRepLanes<S>;
    const RepShape shape{{},
                         0,
                         uint16_t(p.dstBlkStride),
                         uint16_t(p.srcBlkStride),
                         0,
                         uint16_t(p.dstRepStride),
                         uint16_t(p.srcRepStride),
                         0};
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            rules(i);
            RequireMask(i, r, lanes);
            RequireDstStride(i, p.dstBlkStride,
                             65535);  // the one pair of strides stored in 16 bits
            RequireStride(i, "srcBlkStride", p.srcBlkStride, 65535);
            RequireStride(i, "dstRepStride", p.dstRepStride, 255);
            RequireStride(i, "srcRepStride", p.srcRepStride, 255);
            RequireOverlap(i, d, a, p.dstBlkStride, p.srcBlkStride, p.dstRepStride, p.srcRepStride,
                           r, false);
            DeclareWalk(i, a, r, lanes, {p.srcBlkStride, p.srcRepStride}, Access::kRead);
            if (readsDst) {
                DeclareWalk(i, d, r, lanes, {p.dstBlkStride, p.dstRepStride}, Access::kRead);
            }
            DeclareWalk(i, d, r, lanes, {p.dstBlkStride, p.dstRepStride}, Access::kWrite);
            i.Lanes(uint64_t(lanes) * r.repeat + r.tail, rate);
        },
        [=] {
            ForParts(r, shape, [&](const RepShape &s, uint32_t skip) {
                effect(Blocks(d.Host(), uint64_t(skip) * s.dRep),
                       Blocks(a.Host(), uint64_t(skip) * s.aRep), s);
            });
        });
}

/// The named instructions below are these two with an operation filled in.
template <Unary op, typename T>
inline void UnaryCount(const char *name, const LocalTensor<T> &d, const LocalTensor<T> &a,
                       int32_t count, Where where)
{
    static_assert(UnaryLegal<T>(op), "this vector operation does not exist for this element type");
    const uint32_t n = static_cast<uint32_t>(count);
    MapCount(name, d, a, n, UnaryRate<T>(op), false, where,
             [=] { P().unary[At(op)][At(TyFor<T>())](d.Host(), a.Host(), n); });
}
template <Unary op, bool isSetMask, typename T, typename M>
inline void UnaryRep(const char *name, const LocalTensor<T> &d, const LocalTensor<T> &a, M mask,
                     uint32_t repeat, const AscendC::UnaryRepeatParams &p, Where where)
{
    static_assert(UnaryLegal<T>(op), "this vector operation does not exist for this element type");
    MapRep(name, d, a, ResolveMask<isSetMask>(mask, repeat, kRepLanes<T>), p, UnaryRate<T>(op),
           false, where, [](T *x, const T *y, const RepShape &s) {
               P().unaryRep[At(op)][At(TyFor<T>())](x, y, s);
           });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

#define TWIN_UNARY(Name, op)                                                                      \
    template <typename T>                                                                         \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t count,         \
                     TWIN_HERE)                                                                   \
    {                                                                                             \
        twin::UnaryCount<twin::Unary::op>(#Name, dst, src, count, where);                         \
    }                                                                                             \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, uint64_t mask,         \
                     uint32_t repeatTimes, const UnaryRepeatParams &params, TWIN_HERE)            \
    {                                                                                             \
        twin::UnaryRep<twin::Unary::op, isSetMask>(#Name, dst, src, mask, repeatTimes, params,    \
                                                   where);                                        \
    }                                                                                             \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint64_t mask[], \
                     uint32_t repeatTimes, const UnaryRepeatParams &params, TWIN_HERE)            \
    {                                                                                             \
        twin::UnaryRep<twin::Unary::op, isSetMask>(#Name, dst, src, mask, repeatTimes, params,    \
                                                   where);                                        \
    }
TWIN_UNARY(Abs, kAbs)
TWIN_UNARY(Exp, kExp)
TWIN_UNARY(Ln, kLn)
TWIN_UNARY(Sqrt, kSqrt)
TWIN_UNARY(Rsqrt, kRsqrt)
TWIN_UNARY(Reciprocal, kReciprocal)
TWIN_UNARY(Relu, kRelu)
TWIN_UNARY(Not, kNot)
#undef TWIN_UNARY

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_UNARY_H
