// SPDX-License-Identifier: Apache-2.0
//
// atomic.h - stores to GM while SetAtomicAdd is on. Groups of cores are OS threads in the fast
// twin, so each element is a real compare-and-swap.
#pragma once

#include "elementwise.h"

namespace twin::TWIN_ISA
{

template <size_t bytes>
struct Word;
template <>
struct Word<4> {
    using U = uint32_t;
};
template <>
struct Word<2> {
    using U = uint16_t;
};

template <typename T>
TWIN_INLINE void AddInMemory(T *d, T a)
{
    using U = typename Word<sizeof(T)>::U;
    U *place = reinterpret_cast<U *>(d);
    U seen = __atomic_load_n(place, __ATOMIC_RELAXED), wanted;
    do {
        T old;
        __builtin_memcpy(&old, &seen, sizeof(T));
        const T sum =
            Narrow<T>(BinaryOp<Binary::kAdd>::Do<decltype(Widen(old))>(0, Widen(old), Widen(a)));
        __builtin_memcpy(&wanted, &sum, sizeof(T));
    } while (!__atomic_compare_exchange_n(place, &seen, wanted, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

/// Elements of one block in order; blocks of several cores interleave as they come.
template <typename T>
void AddBlocks(void *d, const void *a, const BlockCopy &s)
{
    for (uint32_t i = 0; i < s.blocks; ++i) {
        T *to = reinterpret_cast<T *>(static_cast<char *>(d) + i * s.dstStep);
        const char *from = static_cast<const char *>(a) + i * s.srcStep;
        for (uint32_t e = 0; e < s.bytes / sizeof(T); ++e) {
            T v;
            __builtin_memcpy(&v, from + e * sizeof(T), sizeof(T));
            AddInMemory(to + e, v);
        }
    }
}

}  // namespace twin::TWIN_ISA
