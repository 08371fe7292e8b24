// SPDX-License-Identifier: Apache-2.0
// half and bfloat16_t as plain 16-bit values, with the conversions the scalar unit has.
#ifndef FLA_TWIN_API_SCALAR_H
#define FLA_TWIN_API_SCALAR_H

#include <cstdint>
#include <cstring>

namespace twin
{

inline uint32_t FloatBits(float f)
{
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}
inline float BitsFloat(uint32_t u)
{
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

/// fp32 -> bf16, round to nearest even; a NaN stays a NaN (its payload may not round up to
/// infinity).
inline uint16_t FloatToBf16(float f)
{
    uint32_t u = FloatBits(f);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
        return static_cast<uint16_t>((u >> 16) | 0x40U);
    }
    return static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}
inline float Bf16ToFloat(uint16_t b)
{
    return BitsFloat(static_cast<uint32_t>(b) << 16);
}

/// fp16 -> fp32, exact, subnormals included.
inline float HalfToFloat(uint16_t h)
{
    uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
    uint32_t magnitude = h & 0x7fffU;
    if (magnitude >= 0x7c00U) {  // infinity or NaN
        return BitsFloat(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
    }
    // Rescaling by 2^112 turns a half subnormal into a normal float without a loop.
    return BitsFloat(FloatBits(BitsFloat(magnitude << 13) * BitsFloat(0x77800000U)) | sign);
}

/// fp32 -> fp16, round to nearest even, overflow to infinity (INF/NAN mode).
inline uint16_t FloatToHalf(float f)
{
    uint32_t u = FloatBits(f);
    uint32_t sign = (u >> 16) & 0x8000U;
    u &= 0x7fffffffU;
    if (u > 0x7f800000U) {
        return static_cast<uint16_t>(sign | 0x7e00U);
    }
    if (u >= 0x47800000U) {  // 65536 and above
        return static_cast<uint16_t>(sign | 0x7c00U);
    }
    if (u < 0x38800000U) {  // half subnormal: let float addition round at 2^-24
        float r = BitsFloat(u) + 0.5f;
        return static_cast<uint16_t>(sign | (FloatBits(r) - 0x3f000000U));
    }
    u += 0xc8000000U + 0xfffU + ((u >> 13) & 1U);  // rebias by -112, round to even at bit 13
    return static_cast<uint16_t>(sign | (u >> 13));
}

}  // namespace twin

/// A storage type: on AIV no instruction computes in bf16, so there are no operators to find by
/// accident.
struct bfloat16_t {
    uint16_t bits;
};

struct half {
    uint16_t bits;
    half() = default;
    half(float f) : bits(twin::FloatToHalf(f)) {}
    operator float() const { return twin::HalfToFloat(bits); }
};

namespace AscendC
{

inline float ToFloat(const bfloat16_t &b)
{
    return twin::Bf16ToFloat(b.bits);
}
inline bfloat16_t ToBfloat16(const float &f)
{
    return bfloat16_t{twin::FloatToBf16(f)};
}

}  // namespace AscendC
#endif  // FLA_TWIN_API_SCALAR_H
