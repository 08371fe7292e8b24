// SPDX-License-Identifier: Apache-2.0
//
// select.h - compare to bits, select by bits. Bit i of the mask belongs to lane i, lowest bit first.
#pragma once

#include "elementwise.h"

namespace twin::TWIN_ISA
{

template <Cmp op, typename W> TWIN_INLINE bool Test(W a, W b)
{
    switch (op) {
        case Cmp::kLt: return a < b;
        case Cmp::kGt: return a > b;
        case Cmp::kEq: return a == b;
        case Cmp::kLe: return a <= b;
        case Cmp::kGe: return a >= b;
        default: return a != b;
    }
}

/// One byte of results at a time; n is a multiple of 8 (the API asks for 256 bytes of lanes).
template <Cmp op, typename T, typename Other> TWIN_INLINE void CompareRun(uint8_t *d, const T *a, uint32_t n,
                                                                          Other other)
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

template <Cmp op, typename T> void CompareCount(uint8_t *d, const void *a, const void *b, uint32_t n)
{
    const T *y = static_cast<const T *>(b);
    CompareRun<op>(d, static_cast<const T *>(a), n, [y](uint32_t i) TWIN_LAMBDA { return Widen(y[i]); });
}
template <Cmp op, typename T> void CompareScalarCount(uint8_t *d, const void *a, uint32_t bits, uint32_t n)
{
    const auto value = ScalarFromBits<T>(bits);
    CompareRun<op>(d, static_cast<const T *>(a), n, [value](uint32_t) TWIN_LAMBDA { return value; });
}

/// period 0: bits are consumed one after the other; else lane i uses bit i % period.
template <typename U, typename Other>
TWIN_INLINE void SelectRun(U *d, const uint8_t *bits, const U *a, uint32_t n, uint32_t period, Other other)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint32_t at = period ? i % period : i;
        const uint32_t byte = bits[at / 8];
        for (uint32_t j = 0; j < 8; ++j) {
            const U keep = static_cast<U>(0) - static_cast<U>(byte >> j & 1u);
            d[i + j] = static_cast<U>((a[i + j] & keep) | (other(i + j) & static_cast<U>(~keep)));
        }
    }
    for (; i < n; ++i) {
        const uint32_t at = period ? i % period : i;
        d[i] = bits[at / 8] >> (at % 8) & 1 ? a[i] : other(i);
    }
}

template <typename U> TWIN_INLINE void SelectTensors(void *d, const uint8_t *bits, const void *a, const void *b,
                                                     uint32_t n, uint32_t period)
{
    const U *y = static_cast<const U *>(b);
    SelectRun(static_cast<U *>(d), bits, static_cast<const U *>(a), n, period,
              [y](uint32_t i) TWIN_LAMBDA { return y[i]; });
}
inline void Select(void *d, const uint8_t *bits, const void *a, const void *b, uint32_t n, uint32_t elemBytes,
                   uint32_t period)
{
    if (elemBytes == 4) {
        SelectTensors<uint32_t>(d, bits, a, b, n, period);
    } else {
        SelectTensors<uint16_t>(d, bits, a, b, n, period);
    }
}

template <typename U> TWIN_INLINE void SelectValue(void *d, const uint8_t *bits, const void *a, uint32_t value,
                                                   uint32_t n, uint32_t period)
{
    const U y = static_cast<U>(value);
    SelectRun(static_cast<U *>(d), bits, static_cast<const U *>(a), n, period,
              [y](uint32_t) TWIN_LAMBDA { return y; });
}
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
