// SPDX-License-Identifier: Apache-2.0
//
// cast.h - conversions with the chip's rounding modes (rules 4.4).
//
// The common ones (bf16 and half to and from float, RINT) are plain vectorised loops. Directed
// modes share one rule: split the magnitude into what is kept and what is lost, then decide on the
// loss.
#pragma once

#include "elementwise.h"

namespace twin::TWIN_ISA
{

/// Whether the kept magnitude grows by one unit. half: the loss that is exactly half a unit.
template <Round mode>
TWIN_INLINE uint64_t RoundMagnitude(uint64_t kept, uint64_t lost, uint64_t half, bool negative)
{
    if constexpr (mode == Round::kFloor) {
        return kept + (negative && lost != 0);
    } else if constexpr (mode == Round::kCeil) {
        return kept + (!negative && lost != 0);
    } else if constexpr (mode == Round::kRound) {
        return kept + (lost >= half);
    } else if constexpr (mode == Round::kTrunc) {
        return kept;
    } else if constexpr (mode == Round::kOdd) {
        return kept | (lost != 0);
    } else {
        return kept + (lost > half || (lost == half && (kept & 1)));
    }
}

template <Round mode>
TWIN_INLINE Half RoundHalf(float f)
{
    const uint32_t u = FloatBits(f), mag = u & 0x7fffffffu;
    const bool negative = u >> 31;
    uint64_t r;
    // nan, overflow, normal, subnormal: the four ranges of a half.
    if (mag > 0x7f800000u) {
        r = 0x7e00;
    } else if (mag >= 0x47800000u) {
        r = 0x7c00;
    } else if (mag >= 0x38800000u) {
        const uint32_t rebased = mag - 0x38000000u;
        r = RoundMagnitude<mode>(rebased >> 13, rebased & 0x1fff, 0x1000, negative);
    } else {
        // A half subnormal counts units of 2^-24; everything below them is the loss.
        const uint32_t exponent = mag >> 23;
        const uint64_t mantissa = exponent ? (mag & 0x7fffffu) | 0x800000u : mag;
        const uint32_t shift = Min2(126 - (exponent ? exponent : 1), 60);
        r = RoundMagnitude<mode>(mantissa >> shift, mantissa & ((1ull << shift) - 1),
                                 1ull << (shift - 1), negative);
    }
    return {static_cast<uint16_t>(r | (negative ? 0x8000u : 0u))};
}

template <Round mode>
TWIN_INLINE Bf16 RoundBf16(float f)
{
    const uint32_t u = FloatBits(f), mag = u & 0x7fffffffu;
    const uint64_t r = mag > 0x7f800000u
                           ? (mag >> 16) | 0x40u
                           : RoundMagnitude<mode>(mag >> 16, mag & 0xffff, 0x8000, u >> 31);
    return {static_cast<uint16_t>(r | (u >> 16 & 0x8000u))};
}

/// Integer to float where the conversion instruction (nearest even) does not round as asked.
template <Round mode>
TWIN_INLINE float RoundInt(int64_t v)
{
    if constexpr (mode == Round::kNone || mode == Round::kRint) {
        return static_cast<float>(v);
    } else {
        if (v == 0) {
            return 0.0f;
        }
        const bool negative = v < 0;
        const uint64_t mag = negative ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
        const int top = 63 - __builtin_clzll(mag);
        if (top <= 23) {
            return static_cast<float>(v);
        }
        const int shift = top - 23;
        const uint64_t kept = RoundMagnitude<mode>(mag >> shift, mag & ((1ull << shift) - 1),
                                                   1ull << (shift - 1), negative);
        // kept is 2^23 .. 2^24; the carry into the exponent field is what a rounding up means.
        const uint32_t bits = static_cast<uint32_t>((uint64_t(top + 127 - 1) << 23) + kept);
        return BitsFloat(bits | (negative ? 0x80000000u : 0u));
    }
}

/// Float rounded to an integral float.
template <Round mode>
TWIN_INLINE float Integral(float f)
{
    if constexpr (mode == Round::kFloor) {
        return __builtin_floorf(f);
    } else if constexpr (mode == Round::kCeil) {
        return __builtin_ceilf(f);
    } else if constexpr (mode == Round::kTrunc) {
        return __builtin_truncf(f);
    } else if constexpr (mode == Round::kRound) {
        const float t = __builtin_truncf(f);
        const float up = __builtin_fabsf(f - t) >= 0.5f ? 1.0f : 0.0f;
        return t + __builtin_copysignf(up, f);
    } else {
        return __builtin_nearbyintf(f);
    }
}

/// Saturating; a nan becomes zero. lo and hi are exact in float for every target type.
template <typename I>
TWIN_INLINE I Saturate(float f)
{
    constexpr int bits = sizeof(I) * 8;
    constexpr bool isSigned = static_cast<I>(-1) < static_cast<I>(0);
    constexpr I top = isSigned ? static_cast<I>((1ull << (bits - 1)) - 1) : static_cast<I>(~0ull);
    constexpr I bottom = isSigned ? static_cast<I>(1ull << (bits - 1)) : I(0);
    // The largest int32 and int64 are no floats: the first float past them is the limit.
    const float limit = isSigned ? float(1ull << (bits - 1))
                                 : float(1ull << (bits / 2)) * float(1ull << (bits / 2));
    const float low = isSigned ? -limit : 0.0f;
    if (!(f == f)) {
        return I(0);
    }
    return f >= limit ? top : f < low ? bottom : static_cast<I>(f);
}
/// Narrowing between integers clamps, it does not wrap.
template <typename I>
TWIN_INLINE I SaturateInt(int64_t v)
{
    constexpr int64_t top = (1ll << (sizeof(I) * 8 - 1)) - 1;
    return static_cast<I>(v > top ? top : v < -top - 1 ? -top - 1 : v);
}

/// One row per conversion: source, destination, and the value rule for a rounding mode.
template <CastPair>
struct CastTypes;
#define TWIN_CAST(pair, source, target, ...) \
    template <>                              \
    struct CastTypes<CastPair::pair> {       \
        using S = source;                    \
        using D = target;                    \
        template <Round mode>                \
        TWIN_INLINE static D Do(S v)         \
        {                                    \
            return __VA_ARGS__;              \
        }                                    \
    };
TWIN_CAST(kF16F32, Half, float, ToFloat(v))
TWIN_CAST(kBf16F32, Bf16, float, ToFloat(v))
TWIN_CAST(kF32F16, float, Half, mode <= Round::kRint ? ToHalf(v) : RoundHalf<mode>(v))
TWIN_CAST(kF32Bf16, float, Bf16, mode <= Round::kRint ? ToBf16(v) : RoundBf16<mode>(v))
TWIN_CAST(kF32F32, float, float, Integral<mode>(v))
TWIN_CAST(kF32I16, float, int16_t, Saturate<int16_t>(Integral<mode>(v)))
TWIN_CAST(kF32I32, float, int32_t, Saturate<int32_t>(Integral<mode>(v)))
TWIN_CAST(kF32I64, float, int64_t, Saturate<int64_t>(Integral<mode>(v)))
TWIN_CAST(kBf16I32, Bf16, int32_t, Saturate<int32_t>(Integral<mode>(ToFloat(v))))
TWIN_CAST(kI16F32, int16_t, float, static_cast<float>(v))
TWIN_CAST(kI16F16, int16_t, Half,
          mode <= Round::kRint ? ToHalf(float(v)) : RoundHalf<mode>(float(v)))
TWIN_CAST(kI32F32, int32_t, float, mode <= Round::kRint ? static_cast<float>(v) : RoundInt<mode>(v))
TWIN_CAST(kI32I16, int32_t, int16_t, SaturateInt<int16_t>(v))
TWIN_CAST(kI32I64, int32_t, int64_t, static_cast<int64_t>(v))
TWIN_CAST(kI64F32, int64_t, float, RoundInt<mode>(v))
TWIN_CAST(kI64I32, int64_t, int32_t, SaturateInt<int32_t>(v))
TWIN_CAST(kF16I32, Half, int32_t, Saturate<int32_t>(Integral<mode>(ToFloat(v))))
TWIN_CAST(kF16I16, Half, int16_t, Saturate<int16_t>(Integral<mode>(ToFloat(v))))
TWIN_CAST(kF16I8, Half, int8_t, Saturate<int8_t>(Integral<mode>(ToFloat(v))))
TWIN_CAST(kF16U8, Half, uint8_t, Saturate<uint8_t>(Integral<mode>(ToFloat(v))))
TWIN_CAST(kI8F16, int8_t, Half, ToHalf(static_cast<float>(v)))
TWIN_CAST(kU8F16, uint8_t, Half, ToHalf(static_cast<float>(v)))
#undef TWIN_CAST

template <CastPair pair, Round mode>
TWIN_INLINE void CastRun(typename CastTypes<pair>::D *d, const typename CastTypes<pair>::S *a,
                         uint32_t n)
{
    uint32_t i = 0;
    if constexpr (pair == CastPair::kF32Bf16 && mode == Round::kRint) {
        // The one every kernel runs on its way out; the compiler packs 16-bit results badly.
        for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
            StorePair(d + i, Load(a + i), Load(a + i + kLanes));
        }
        for (; i + kLanes <= n; i += kLanes) {
            StoreAs(d + i, Load(a + i));
        }
    }
    // Tiles of different element size never overlap in a legal call (rules 4.2).
#pragma GCC ivdep
    for (; i < n; ++i) {
        d[i] = CastTypes<pair>::template Do<mode>(a[i]);
    }
}

template <CastPair pair, Round mode>
void CastCount(void *d, const void *a, uint32_t n)
{
    using Types = CastTypes<pair>;
    CastRun<pair, mode>(static_cast<typename Types::D *>(d),
                        static_cast<const typename Types::S *>(a), n);
}
/// Mask and repeats: lanes of the wider type, each side with its own block size.
template <CastPair pair, Round mode>
void CastReps(void *d, const void *a, const RepShape &s)
{
    using Types = CastTypes<pair>;
    WalkOne<typename Types::D, typename Types::S>(d, a, s, CallUnary{CastCount<pair, mode>});
}

}  // namespace twin::TWIN_ISA
