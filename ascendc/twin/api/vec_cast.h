// SPDX-License-Identifier: Apache-2.0
//
// vec_cast.h - Cast. Which pairs exist is known at compile time; which rounding modes a pair has is
// data in prims.h, checked when the mode is (the real headers check neither).
#ifndef FLA_TWIN_API_VEC_CAST_H
#define FLA_TWIN_API_VEC_CAST_H

#include "vec_unary.h"

namespace AscendC
{

/// Order matters: it is twin::Round's.
enum class RoundMode : uint8_t {
    CAST_NONE = 0,
    CAST_RINT,
    CAST_FLOOR,
    CAST_CEIL,
    CAST_ROUND,
    CAST_TRUNC,
    CAST_ODD
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

template <typename D, typename S>
struct CastPairOf {
    static constexpr CastPair value = CastPair::kCount;  // no such conversion
};
#define TWIN_CAST_PAIR(D, S, pair)                        \
    template <>                                           \
    struct CastPairOf<D, S> {                             \
        static constexpr CastPair value = CastPair::pair; \
    };
TWIN_CAST_PAIR(float, half, kF16F32)
TWIN_CAST_PAIR(float, bfloat16_t, kBf16F32)
TWIN_CAST_PAIR(half, float, kF32F16)
TWIN_CAST_PAIR(bfloat16_t, float, kF32Bf16)
TWIN_CAST_PAIR(float, float, kF32F32)
TWIN_CAST_PAIR(int16_t, float, kF32I16)
TWIN_CAST_PAIR(int32_t, float, kF32I32)
TWIN_CAST_PAIR(int64_t, float, kF32I64)
TWIN_CAST_PAIR(int32_t, bfloat16_t, kBf16I32)
TWIN_CAST_PAIR(float, int16_t, kI16F32)
TWIN_CAST_PAIR(half, int16_t, kI16F16)
TWIN_CAST_PAIR(float, int32_t, kI32F32)
TWIN_CAST_PAIR(int16_t, int32_t, kI32I16)
TWIN_CAST_PAIR(int64_t, int32_t, kI32I64)
TWIN_CAST_PAIR(float, int64_t, kI64F32)
TWIN_CAST_PAIR(int32_t, int64_t, kI64I32)
TWIN_CAST_PAIR(int32_t, half, kF16I32)
TWIN_CAST_PAIR(int16_t, half, kF16I16)
TWIN_CAST_PAIR(int8_t, half, kF16I8)
TWIN_CAST_PAIR(uint8_t, half, kF16U8)
TWIN_CAST_PAIR(half, int8_t, kI8F16)
TWIN_CAST_PAIR(half, uint8_t, kU8F16)
#undef TWIN_CAST_PAIR

/// Lanes per cycle (rules 1.3).
template <typename D, typename S>
constexpr uint32_t CastRate()
{
    constexpr uint32_t wide = sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S);
    return wide == 8 ? 32 : wide == 4 ? 64 : 128;
}

/// The mode is a run-time argument in the API, so its legality is a rule and not a static_assert.
template <CastPair pair>
struct RoundModeRule {
    AscendC::RoundMode mode;
    template <typename I>
    void operator()(I &i) const
    {
        i.Require(
            CastModes(pair) >> static_cast<uint32_t>(mode) & 1, "cast-round-mode",
            "take a mode the pair has: float -> bf16 wants CAST_RINT, widening wants CAST_NONE",
            "round mode %u is not legal for this pair of types", static_cast<uint32_t>(mode));
    }
};

template <typename D, typename S>
inline void CastCount(const LocalTensor<D> &d, const LocalTensor<S> &a, AscendC::RoundMode mode,
                      uint32_t n, Where where)
{
    constexpr CastPair pair = CastPairOf<D, S>::value;
    static_assert(pair != CastPair::kCount,
                  "no such conversion on the chip: go through float (or half for int8)");
    MapCount(
        "Cast", d, a, n, CastRate<D, S>(), false, where,
        [=] { P().cast[At(pair)][At(mode)](d.Host(), a.Host(), n); }, RoundModeRule<pair>{mode});
}
/// Mask and repeat count lanes of the wider type: with fp32 and bf16 a repeat is 64 lanes, repeat
/// strides are 8 on the one side and 4 on the other.
template <bool isSetMask, typename D, typename S, typename M>
inline void CastRep(const LocalTensor<D> &d, const LocalTensor<S> &a, AscendC::RoundMode mode,
                    M mask, uint32_t repeat, const AscendC::UnaryRepeatParams &p, Where where)
{
    constexpr CastPair pair = CastPairOf<D, S>::value;
    static_assert(pair != CastPair::kCount,
                  "no such conversion on the chip: go through float (or half for int8)");
    constexpr uint32_t lanes = kRepLanes<D> < kRepLanes<S> ? kRepLanes<D> : kRepLanes<S>;
    MapRep(
        "Cast", d, a, ResolveMask<isSetMask>(mask, repeat, lanes), p, CastRate<D, S>(), false,
        where,
        [mode](D *x, const S *y, const RepShape &s) { P().castRep[At(pair)][At(mode)](x, y, s); },
        RoundModeRule<pair>{mode});
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T1, typename T2>
inline void Cast(const LocalTensor<T1> &dst, const LocalTensor<T2> &src, const RoundMode &roundMode,
                 uint32_t count, TWIN_HERE)
{
    twin::CastCount(dst, src, roundMode, count, where);
}
template <typename T1, typename T2, bool isSetMask = true>
inline void Cast(const LocalTensor<T1> &dst, const LocalTensor<T2> &src, const RoundMode &roundMode,
                 uint64_t mask, uint32_t repeatTimes, const UnaryRepeatParams &params, TWIN_HERE)
{
    twin::CastRep<isSetMask>(dst, src, roundMode, mask, repeatTimes, params, where);
}
template <typename T1, typename T2, bool isSetMask = true>
inline void Cast(const LocalTensor<T1> &dst, const LocalTensor<T2> &src, const RoundMode &roundMode,
                 const uint64_t mask[], uint32_t repeatTimes, const UnaryRepeatParams &params,
                 TWIN_HERE)
{
    twin::CastRep<isSetMask>(dst, src, roundMode, mask, repeatTimes, params, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_CAST_H
