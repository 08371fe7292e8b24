// SPDX-License-Identifier: Apache-2.0
//
// math.h - exp and ln on whole registers.
//
// Explicit vector code, not a loop left to the compiler: the tail of a tile goes through the same
// instructions as its body (see MapTail), so an element's bits do not depend on its position.
#pragma once

#include "lanes.h"

namespace twin::TWIN_ISA
{

// The chip has no 2^x; kernels write Exp(x * ln2). Reduction: x = n ln2 + r, |r| <= ln2 / 2.
constexpr float kLog2e = 1.44269504f;
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low bits
constexpr float kLn2Hi = 0.693359375f;      // 9 bits, so n * kLn2Hi is exact even without FMA
constexpr float kLn2Lo = -2.12194440e-4f;

/// exp(r) = 1 + r + r^2 (..), minimax over |r| <= 0.347, error 3e-9 before rounding.
TWIN_INLINE VF ExpPolynomial(VF r)
{
    VF p = Splat(0.00138145406f);
    p = p * r + Splat(0.00836874545f);
    p = p * r + Splat(0.0416683890f);
    p = p * r + Splat(0.166665211f);
    p = p * r + Splat(0.499999940f);
    p = p * r + Splat(1.0f);
    return p * r + Splat(1.0f);
}

/// exp for |x| <= kExpSafe: the result is normal, so scaling is an addition to the exponent field.
constexpr uint32_t kExpSafeBits = 0x42ae0000u;  // 87.0f
TWIN_INLINE VF ExpSafe(VF x)
{
    const VF t = x * Splat(kLog2e) + Splat(kRoundMagic);
    const VF n = t - Splat(kRoundMagic);
    const VF r = (x - n * Splat(kLn2Hi)) - n * Splat(kLn2Lo);
    return Floats(Bits(ExpPolynomial(r)) + (Bits(t) << 23));
}

/// exp for every input. The scale is applied in two exact halves, so overflow, subnormals and zero
/// come out of the multiplier; for inputs ExpSafe accepts both give the same bits.
TWIN_INLINE VF ExpFull(VF x)
{
    // Inputs that end in 0 are computed as exp(0): a discarded subnormal costs 150 cycles.
    const VF lo = Splat(-104.0f), hi = Splat(89.0f);
    VF y = x < lo ? VF{} : x;
    y = y > hi ? hi : y;
    const VF t = y * Splat(kLog2e) + Splat(kRoundMagic);
    const VF n = t - Splat(kRoundMagic);
    const VF r = (y - n * Splat(kLn2Hi)) - n * Splat(kLn2Lo);
    const VI k = Bits(t) - Bits(Splat(kRoundMagic));  // n: both have the exponent of one unit
    const VI k1 = k >> 1;
    const VF s1 = Floats((k1 + 127) << 23), s2 = Floats((k - k1 + 127) << 23);
    VF p = ExpPolynomial(r) * s1 * s2;
    p = x > hi ? Floats(VI{} + 0x7f800000) : p;
    p = x < lo ? VF{} : p;
    return x != x ? x : p;
}

/// ln. x = 2^e m, m in [sqrt(1/2), sqrt 2); ln m = f - f^2/2 + f^3 Q(f), error 6e-9 before
/// rounding.
TWIN_INLINE VF Log(VF x)
{
    const VF tiny = Splat(1.17549435e-38f);
    const auto sub = x < tiny;
    const VF y = sub ? x * Splat(8388608.0f) : x;
    VI u = Bits(y);
    VI e = ((u >> 23) & 0xff) - 126;
    VF m = Floats((u & 0x007fffff) | 0x3f000000);  // [1/2, 1)
    const auto small = m < Splat(0.707106781f);
    m = small ? m + m : m;
    e = e + (small ? VI{} - 1 : VI{}) - (sub ? VI{} + 23 : VI{});
    const VF f = m - Splat(1.0f), f2 = f * f;
    VF q = Splat(-0.0763450041f);
    q = q * f + Splat(0.127615824f);
    q = q * f + Splat(-0.131601825f);
    q = q * f + Splat(0.142017573f);
    q = q * f + Splat(-0.166233569f);
    q = q * f + Splat(0.200012267f);
    q = q * f + Splat(-0.250008196f);
    q = q * f + Splat(0.333333313f);
    const VF n = __builtin_convertvector(e, VF);
    VF r = n * Splat(kLn2Lo) + f * f2 * q;
    r = r - Splat(0.5f) * f2;
    r = (r + f) + n * Splat(kLn2Hi);
    r = x == VF{} ? Floats(VI{} + int32_t(0xff800000u)) : r;
    r = x < VF{} ? Floats(VI{} + 0x7fc00000) : r;
    const VF inf = Floats(VI{} + 0x7f800000);
    r = x == inf ? inf : r;
    return x != x ? x : r;
}

/// Applies a register function to n floats. The tail is padded with ones in a register-sized
/// buffer.
template <typename F>
TWIN_INLINE void MapTail(float *d, const float *a, uint32_t n, F f)
{
    alignas(64) float buffer[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        buffer[i] = 1.0f;
    }
    __builtin_memcpy(buffer, a, n * sizeof(float));
    Store(buffer, f(Load(buffer)));
    __builtin_memcpy(d, buffer, n * sizeof(float));
}

template <typename F>
TWIN_INLINE void MapRegisters(float *d, const float *a, uint32_t n, F f)
{
    uint32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Store(d + i, f(Load(a + i)));
    }
    if (i < n) {
        MapTail(d + i, a + i, n - i, f);
    }
}

/// Whether every |x| of a group of four registers is inside ExpSafe; a nan is too large as bits.
TWIN_INLINE bool AllSafe(VF x0, VF x1, VF x2, VF x3)
{
    const VI magnitude = VI{} + 0x7fffffff, limit = VI{} + static_cast<int32_t>(kExpSafeBits);
    const VI a = Bits(x0) & magnitude, b = Bits(x1) & magnitude, c = Bits(x2) & magnitude,
             d = Bits(x3) & magnitude;
    const VI ab = a > b ? a : b, cd = c > d ? c : d;
    return LaneBits((ab > cd ? ab : cd) > limit) == 0;
}

TWIN_INLINE void ExpN(float *d, const float *a, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        // Load everything first: d may be a.
        VF x0 = Load(a + i), x1 = Load(a + i + kLanes), x2 = Load(a + i + 2 * kLanes),
           x3 = Load(a + i + 3 * kLanes);
        if (__builtin_expect(AllSafe(x0, x1, x2, x3), 1)) {
            x0 = ExpSafe(x0), x1 = ExpSafe(x1), x2 = ExpSafe(x2), x3 = ExpSafe(x3);
        } else {
            x0 = ExpFull(x0), x1 = ExpFull(x1), x2 = ExpFull(x2), x3 = ExpFull(x3);
        }
        Store(d + i, x0);
        Store(d + i + kLanes, x1);
        Store(d + i + 2 * kLanes, x2);
        Store(d + i + 3 * kLanes, x3);
    }
    MapRegisters(d + i, a + i, n - i, [](VF x) { return ExpFull(x); });
}

TWIN_INLINE void LnN(float *d, const float *a, uint32_t n)
{
    MapRegisters(d, a, n, [](VF x) { return Log(x); });
}

/// Rsqrt and Reciprocal of the chip are good to 1e-4 only (rules 4.8). Dropping 11 mantissa bits
/// makes a kernel that relies on more fail here too.
constexpr uint32_t kCoarseMask = 0xfffff800u;
TWIN_INLINE float Coarse(float f)
{
    return BitsFloat(FloatBits(f) & kCoarseMask);
}

}  // namespace twin::TWIN_ISA
