// SPDX-License-Identifier: Apache-2.0
//
// lanes.h - the vector types of the instruction set this file is compiled for, and bit conversions.
//
// Everything sits in one inner namespace per instruction set: the linker must never merge a
// function compiled for AVX-512 with its baseline namesake. For the same reason no std template is
// used here.
#pragma once

#include "prims.h"

#if defined(__AVX2__)
#include <immintrin.h>  // one instruction below that vector extensions can't express
#endif

#define TWIN_INLINE inline __attribute__((always_inline))
#define TWIN_LAMBDA __attribute__((always_inline))

#if !defined(TWIN_ISA)
#error "compile prims with -DTWIN_ISA=<namespace>, see prims/CMakeLists.txt"
#endif

namespace twin::TWIN_ISA
{

// Registers as wide as the target's; wider types would be split badly (2 GF/s in the matrix loop).
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VI __attribute__((vector_size(kLanes * 4)));
// The same at any address: tiles in UB are 32-byte aligned only.
typedef float VFu __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t VIu __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

TWIN_INLINE VF Load(const float *p)
{
    return *reinterpret_cast<const VFu *>(p);
}
TWIN_INLINE void Store(float *p, VF v)
{
    *reinterpret_cast<VFu *>(p) = v;
}
// x - 0 is x for every x, so it folds to a plain broadcast; 0 + x is not (it turns -0 into 0).
TWIN_INLINE VF Splat(float x)
{
    return x - VF{};
}
TWIN_INLINE VI Bits(VF v)
{
    return reinterpret_cast<VI>(v);
}
TWIN_INLINE VF Floats(VI v)
{
    return reinterpret_cast<VF>(v);
}

/// Half a register of floats in both halves.
TWIN_INLINE VF Twice(const float *p)
{
#if defined(__AVX512F__)
    return reinterpret_cast<VF>(_mm512_broadcast_f32x8(_mm256_loadu_ps(p)));
#else
    VF v{};
    for (int i = 0; i < kLanes; ++i) {
        v[i] = p[i % (kLanes / 2)];
    }
    return v;
#endif
}

/// Lane masks (0 or -1 per lane) as bits, lowest lane first.
TWIN_INLINE uint32_t LaneBits(VI m)
{
#if defined(__AVX512F__)
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(m));
#elif defined(__AVX2__)
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(m)));
#else
    return (m[0] & 1u) | (m[1] & 2u) | (m[2] & 4u) | (m[3] & 8u);
#endif
}
/// The other way: lane i is -1 where bit i is set.
TWIN_INLINE VI BitLanes(uint32_t bits)
{
    VI lane{};
    for (int i = 0; i < kLanes; ++i) {
        lane[i] = 1 << i;
    }
    return (lane & (VI{} + static_cast<int32_t>(bits))) != 0;
}

TWIN_INLINE uint32_t FloatBits(float f)
{
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}
TWIN_INLINE float BitsFloat(uint32_t u)
{
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

/// 16-bit storage types; they have no arithmetic of their own.
struct Half {
    uint16_t v;
};
struct Bf16 {
    uint16_t v;
};

TWIN_INLINE float ToFloat(Bf16 b)
{
    return BitsFloat(static_cast<uint32_t>(b.v) << 16);
}

/// Exact; written without branches so that loops over it vectorise. A subnormal is the mantissa of
/// 2^-14 less the 2^-14: no float on the way is subnormal, and where a processor that is told to
/// flush results (aarch64) flushes operands too, that matters.
TWIN_INLINE float ToFloat(Half h)
{
    const uint32_t mag = static_cast<uint32_t>(h.v & 0x7fff) << 13;
    const uint32_t tiny = FloatBits(BitsFloat(mag + 0x38800000u) - BitsFloat(0x38800000u));
    uint32_t r = mag < 0x00800000u ? tiny : mag + 0x38000000u;
    r = mag >= 0x0f800000u ? mag | 0x7f800000u : r;  // inf and nan keep the all-ones exponent
    return BitsFloat(r | static_cast<uint32_t>(h.v & 0x8000) << 16);
}
TWIN_INLINE float ToFloat(float f)
{
    return f;
}

/// Round to nearest even; a nan stays a (quiet) nan instead of rounding up to infinity. The upper
/// half is taken by a signed shift: that is what the saturating 16-bit pack of the vectoriser
/// wants.
TWIN_INLINE Bf16 ToBf16(float f)
{
    const uint32_t u = FloatBits(f);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const uint32_t wide = f != f ? u | 0x400000u : rounded;
    return {static_cast<uint16_t>(static_cast<int32_t>(wide) >> 16)};
}

/// Round to nearest even, overflow to infinity. Subnormals are rounded by the float adder itself:
/// adding 0.5 leaves exactly the ten bits a half subnormal has.
TWIN_INLINE Half ToHalf(float f)
{
    const uint32_t u = FloatBits(f);
    const uint32_t mag = u & 0x7fffffffu;
    const uint32_t normal = (mag + 0xfffu + ((mag >> 13) & 1u) - 0x38000000u) >> 13;
    const uint32_t tiny = FloatBits(BitsFloat(mag) + 0.5f) - 0x3f000000u;
    const uint32_t big = mag > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t r = mag < 0x38800000u ? tiny : normal;
    r = mag >= 0x47800000u ? big : r;
    return {static_cast<uint16_t>(r | (u >> 16 & 0x8000u))};
}

/// A register of floats stored as floats or as bf16, the latter as ToBf16 rounds.
TWIN_INLINE void StoreAs(float *d, VF v)
{
    Store(d, v);
}
TWIN_INLINE void StoreAs(Bf16 *d, VF v)
{
    typedef uint32_t VU __attribute__((vector_size(kLanes * 4)));
    typedef uint16_t VH __attribute__((vector_size(kLanes * 2)));
    const VU u = reinterpret_cast<VU>(v);
    const VU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    const VU bits = v != v ? nan : rounded;
    const VH narrow = __builtin_convertvector(bits, VH);
    __builtin_memcpy(d, &narrow, sizeof(narrow));
}

/// Two registers in a row, same bits as two StoreAs. Narrowing is what every kernel does on its way
/// out, and one register of 16-bit results costs the permutation unit three times what two cost.
TWIN_INLINE void StorePair(float *d, VF a, VF b)
{
    Store(d, a);
    Store(d + kLanes, b);
}
TWIN_INLINE void StorePair(Bf16 *d, VF a, VF b)
{
#if defined(__AVX512F__)
    if (__builtin_expect(_mm512_cmp_ps_mask(reinterpret_cast<__m512>(a),
                                            reinterpret_cast<__m512>(b), _CMP_UNORD_Q) == 0,
                         1)) {  // no nan in either
        auto round = [](VF v) TWIN_LAMBDA {
            const __m512i u = reinterpret_cast<__m512i>(v);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
            return _mm512_srli_epi32(
                _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
        };
        // The pack works inside 128-bit lanes.
        const __m512i lanes = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        const __m512i both =
            _mm512_permutexvar_epi64(lanes, _mm512_packus_epi32(round(a), round(b)));
        __builtin_memcpy(d, &both, sizeof(both));
        return;
    }
#elif defined(__AVX2__)
    const __m256 x = reinterpret_cast<__m256>(a), y = reinterpret_cast<__m256>(b);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_UNORD_Q)) == 0, 1)) {
        auto round = [](VF v) TWIN_LAMBDA {
            const __m256i u = reinterpret_cast<__m256i>(v);
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
            return _mm256_srli_epi32(
                _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
        };
        // The pack works inside 128-bit lanes.
        const __m256i both =
            _mm256_permute4x64_epi64(_mm256_packus_epi32(round(a), round(b)), 0xd8);
        __builtin_memcpy(d, &both, sizeof(both));
        return;
    }
#endif
    StoreAs(d, a);
    StoreAs(d + kLanes, b);
}

template <typename T>
constexpr bool kIsBf16 = false;
template <>
constexpr bool kIsBf16<Bf16> = true;
template <typename T>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<Half> = true;

template <typename T>
TWIN_INLINE T FromFloat(float f);
template <>
TWIN_INLINE float FromFloat<float>(float f)
{
    return f;
}
template <>
TWIN_INLINE Half FromFloat<Half>(float f)
{
    return ToHalf(f);
}
template <>
TWIN_INLINE Bf16 FromFloat<Bf16>(float f)
{
    return ToBf16(f);
}

/// A number as a type, for tile heights.
template <int n>
struct Int {
    static constexpr int value = n;
};

}  // namespace twin::TWIN_ISA
