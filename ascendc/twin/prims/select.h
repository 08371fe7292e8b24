// SPDX-License-Identifier: Apache-2.0
//
// select.h - compare to bits, select by bits. Bit i of the mask belongs to lane i, lowest bit
// first.
#pragma once

#include "elementwise.h"

namespace twin::TWIN_ISA
{

/// Ordered comparisons: a nan is unequal to everything and neither less nor greater.
template <Cmp op, typename W>
TWIN_INLINE bool Test(W a, W b)
{
    switch (op) {
        case Cmp::kLt:
            return a < b;
        case Cmp::kGt:
            return a > b;
        case Cmp::kEq:
            return a == b;
        case Cmp::kLe:
            return a <= b;
        case Cmp::kGe:
            return a >= b;
        default:
            return a != b;
    }
}

/// Floats, a register at a time. n is a multiple of 64 lanes, which the API asks for.
template <Cmp op, typename Other>
TWIN_INLINE void CompareFloats(uint8_t *d, const float *a, uint32_t n, Other other)
{
    for (uint32_t i = 0; i + 32 <= n; i += 32) {
        uint32_t word = 0;
        for (int j = 0; j < 32; j += kLanes) {
            const VF x = Load(a + i + j), y = other(i + j);
            // op is constant, so one comparison remains.
            const VI m = op == Cmp::kLt   ? VI(x < y)
                         : op == Cmp::kGt ? VI(x > y)
                         : op == Cmp::kEq ? VI(x == y)
                         : op == Cmp::kLe ? VI(x <= y)
                         : op == Cmp::kGe ? VI(x >= y)
                                          : VI(x != y);
            word |= LaneBits(m) << j;
        }
        __builtin_memcpy(d + i / 8, &word, 4);
    }
}

/// Other types one byte of results at a time.
template <Cmp op, typename T, typename Other>
TWIN_INLINE void CompareRun(uint8_t *d, const T *a, uint32_t n, Other other)
{
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t byte = 0;
        const uint32_t lanes = Min2(8, n - i);
        for (uint32_t j = 0; j < lanes; ++j) {
            byte |= static_cast<uint32_t>(Test<op>(Widen(a[i + j]), other(i + j))) << j;
        }
        d[i / 8] = static_cast<uint8_t>(byte);
    }
}

/// float has the fast form; half and int32 go byte by byte.
template <Cmp op, typename T>
void CompareCount(uint8_t *d, const void *a, const void *b, uint32_t n)
{
    const T *x = static_cast<const T *>(a), *y = static_cast<const T *>(b);
    if constexpr (kIsFloat<T>) {
        CompareFloats<op>(d, x, n, [y](uint32_t i) TWIN_LAMBDA { return Load(y + i); });
    } else {
        CompareRun<op>(d, x, n, [y](uint32_t i) TWIN_LAMBDA { return Widen(y[i]); });
    }
}
template <Cmp op, typename T>
void CompareScalarCount(uint8_t *d, const void *a, uint32_t bits, uint32_t n)
{
    const auto value = ScalarFromBits<T>(bits);
    const T *x = static_cast<const T *>(a);
    if constexpr (kIsFloat<T>) {
        CompareFloats<op>(d, x, n, [value](uint32_t) TWIN_LAMBDA { return Splat(value); });
    } else {
        CompareRun<op>(d, x, n, [value](uint32_t) TWIN_LAMBDA { return value; });
    }
}

/// period 0: bits are consumed one after the other; else lane i uses bit i % period.
template <typename U, typename Other>
TWIN_INLINE void SelectRun(U *d, const uint8_t *bits, const U *a, uint32_t n, uint32_t period,
                           Other other)
{
    uint32_t i = 0;
    // 32 lanes share a word of bits. A period is 64 lanes here, so a word never straddles it.
    if constexpr (sizeof(U) == 4) {
        for (; i + 32 <= n; i += 32) {
            uint32_t word;
            __builtin_memcpy(&word, bits + (period ? i % period : i) / 8, 4);
            for (int j = 0; j < 32; j += kLanes) {
                VI x, y;
                __builtin_memcpy(&x, a + i + j, sizeof(x));
                for (int k = 0; k < kLanes; ++k) {
                    y[k] = static_cast<int32_t>(other(i + j + k));
                }
                const VI r = BitLanes(word >> j) ? x : y;
                __builtin_memcpy(d + i + j, &r, sizeof(r));
            }
        }
    }
    // The rest, and 16-bit lanes, one by one.
    for (; i < n; ++i) {
        const uint32_t at = period ? i % period : i;
        d[i] = bits[at / 8] >> (at % 8) & 1 ? a[i] : other(i);
    }
}

// Which element type it is does not matter: lanes move as bits.
template <typename U>
TWIN_INLINE void SelectTensors(void *d, const uint8_t *bits, const void *a, const void *b,
                               uint32_t n, uint32_t period)
{
    const U *y = static_cast<const U *>(b);
    SelectRun(static_cast<U *>(d), bits, static_cast<const U *>(a), n, period,
              [y](uint32_t i) TWIN_LAMBDA { return y[i]; });
}
// Run-time widths, as the table has them.
inline void Select(void *d, const uint8_t *bits, const void *a, const void *b, uint32_t n,
                   uint32_t elemBytes, uint32_t period)
{
    if (elemBytes == 4) {
        SelectTensors<uint32_t>(d, bits, a, b, n, period);
    } else {
        SelectTensors<uint16_t>(d, bits, a, b, n, period);
    }
}

template <typename U>
TWIN_INLINE void SelectValue(void *d, const uint8_t *bits, const void *a, uint32_t value,
                             uint32_t n, uint32_t period)
{
    const U y = static_cast<U>(value);
    SelectRun(static_cast<U *>(d), bits, static_cast<const U *>(a), n, period,
              [y](uint32_t) TWIN_LAMBDA { return y; });
}
// The scalar arrives as raw bits.
inline void SelectScalar(void *d, const uint8_t *bits, const void *a, uint32_t value, uint32_t n,
                         uint32_t elemBytes, uint32_t period)
{
    if (elemBytes == 4) {
        SelectValue<uint32_t>(d, bits, a, value, n, period);
    } else {
        SelectValue<uint16_t>(d, bits, a, value, n, period);
    }
}

}  // namespace twin::TWIN_ISA
