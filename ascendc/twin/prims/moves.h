// SPDX-License-Identifier: Apache-2.0
//
// moves.h - data movement: fills and shuffles inside UB, DMA blocks, the Nd2Nz layout.
//
// Elements are moved as unsigned integers of their width. A width chosen at run time picks one of
// four bodies through ByWidth; kernels of the same body can't drift apart.
#pragma once

#include "rep.h"

namespace twin::TWIN_ISA
{

/// Calls f with a value of the unsigned type that is `bytes` wide.
template <typename F>
TWIN_INLINE void ByWidth(uint32_t bytes, F f)
{
    switch (bytes) {
        case 1:
            f(uint8_t{});
            break;
        case 2:
            f(uint16_t{});
            break;
        case 4:
            f(uint32_t{});
            break;
        default:
            f(uint64_t{});
            break;
    }
}

/// n equal elements.
inline void Duplicate(void *d, uint64_t bits, uint32_t n, uint32_t elemBytes)
{
    ByWidth(elemBytes, [=](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        for (uint32_t i = 0; i < n; ++i) {
            static_cast<U *>(d)[i] = static_cast<U>(bits);
        }
    });
}

/// The walk wants three operands; a fill passes its destination for all of them.
inline void DuplicateRep(void *d, uint64_t bits, const RepShape &s, uint32_t elemBytes)
{
    RepShape t = s;
    t.aBlk = t.bBlk = s.dBlk;
    t.aRep = t.bRep = s.dRep;
    ByWidth(elemBytes, [=](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        U *dst = static_cast<U *>(d);
        const U *same = dst;
        WalkRep(dst, same, same, t, [bits](U *x, const U *, const U *, uint32_t n) TWIN_LAMBDA {
            for (uint32_t i = 0; i < n; ++i) {
                x[i] = static_cast<U>(bits);
            }
        });
    });
}

/// Blocks of one repeat may sit anywhere, hence the walk and not a memcpy.
inline void CopyRep(void *d, const void *a, const RepShape &s, uint32_t elemBytes)
{
    RepShape t = s;
    t.bBlk = s.aBlk;
    t.bRep = s.aRep;
    ByWidth(elemBytes, [=](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        const U *src = static_cast<const U *>(a);
        WalkRep(static_cast<U *>(d), src, src, t,
                [](U *x, const U *y, const U *, uint32_t n)
                    TWIN_LAMBDA { __builtin_memmove(x, y, n * sizeof(U)); });
    });
}

/// Source elements in order, one block each.
inline void Brcb(void *d, const void *a, uint32_t repeat, uint32_t dBlk, uint32_t dRep,
                 uint32_t elemBytes)
{
    ByWidth(elemBytes, [=](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        for (uint32_t r = 0; r < repeat; ++r) {
            for (uint32_t e = 0; e < 8; ++e) {
                const U value = static_cast<const U *>(a)[r * 8 + e];
                U *block = static_cast<U *>(d) + (size_t(r) * dRep + e * dBlk) * PerBlock<U>();
                for (uint32_t i = 0; i < PerBlock<U>(); ++i) {
                    block[i] = value;
                }
            }
        }
    });
}

/// Offsets may be anything the caller checked, so elements move by memcpy.
inline void Gather(void *d, const void *a, const uint32_t *byteOffsets, uint32_t base, uint32_t n,
                   uint32_t elemBytes)
{
    ByWidth(elemBytes, [=](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        const char *from = static_cast<const char *>(a) + base;
        for (uint32_t i = 0; i < n; ++i) {
            __builtin_memcpy(static_cast<U *>(d) + i, from + byteOffsets[i], sizeof(U));
        }
    });
}

/// bits advance by bitStep bytes per repeat (0: the same pattern for each).
inline uint32_t GatherMask(void *d, const void *a, const uint8_t *bits, uint32_t bitStep,
                           uint32_t lanes, uint32_t repeat, uint32_t aBlk, uint32_t aRep,
                           uint32_t elemBytes)
{
    uint32_t kept = 0;
    ByWidth(elemBytes, [&](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        for (uint32_t r = 0; r < repeat; ++r) {
            const U *src = static_cast<const U *>(a) + size_t(r) * aRep * PerBlock<U>();
            const uint8_t *m = bits + size_t(r) * bitStep;
            for (uint32_t i = 0; i < lanes; ++i) {
                if (m[i / 8] >> (i % 8) & 1) {
                    static_cast<U *>(d)[kept++] = *Lane(src, i, aBlk);
                }
            }
        }
    });
    return kept;
}

inline void Transpose16(void *d, const void *a)
{
    // Through a copy: the chip allows dst == src.
    uint16_t t[256];
    __builtin_memcpy(t, a, sizeof(t));
    for (uint32_t i = 0; i < 16; ++i) {
        for (uint32_t j = 0; j < 16; ++j) {
            static_cast<uint16_t *>(d)[i * 16 + j] = t[j * 16 + i];
        }
    }
}

/// Through a copy of all 16 source blocks: destination blocks may be source blocks.
inline void TransData(void *const *d, const void *const *a, uint32_t elemBytes, bool dHigh,
                      bool aHigh)
{
    uint8_t t[16][32];
    for (uint32_t i = 0; i < 16; ++i) {
        __builtin_memcpy(t[i], a[i], 32);
    }
    for (uint32_t j = 0; j < 16; ++j) {
        for (uint32_t i = 0; i < (elemBytes == 4 ? 8u : 16u); ++i) {
            if (elemBytes == 4) {
                // A column of 16 floats fills two destination blocks.
                __builtin_memcpy(static_cast<uint8_t *>(d[2 * i + j / 8]) + (j % 8) * 4,
                                 t[j] + i * 4, 4);
            } else if (elemBytes == 2) {
                __builtin_memcpy(static_cast<uint8_t *>(d[i]) + j * 2, t[j] + i * 2, 2);
            } else {
                static_cast<uint8_t *>(d[i])[j + (dHigh ? 16 : 0)] = t[j][i + (aHigh ? 16 : 0)];
            }
        }
    }
}

// --- DMA ---

/// Asks for lines that are used soon. Global memory is far, and the hardware guesses late what a
/// copy reads and writes next.
TWIN_INLINE void Approach(const void *p, size_t bytes)
{
    constexpr size_t line = 64;
    for (size_t at = 0; at < bytes; at += line) {
        __builtin_prefetch(static_cast<const char *>(p) + at);
    }
}

/// One contiguous copy. Long ones keep kAhead bytes under way on both sides: a store to a line that
/// is far waits like a load.
constexpr size_t kAhead = 4096;
TWIN_INLINE void CopyRun(char *d, const char *a, size_t bytes)
{
    constexpr size_t step = 256, width = sizeof(VF);
    if (bytes < kAhead || (d < a + bytes && a < d + bytes)) {
        __builtin_memmove(d, a, bytes);
        return;
    }
    Approach(a, kAhead);
    Approach(d, kAhead);
    size_t at = 0;
    for (; at + step <= bytes; at += step) {
        if (at + kAhead < bytes) {
            Approach(a + at + kAhead, step);
            Approach(d + at + kAhead, step);
        }
#pragma GCC unroll 16
        for (size_t w = 0; w < step; w += width) {
            Store(reinterpret_cast<float *>(d + at + w),
                  Load(reinterpret_cast<const float *>(a + at + w)));
        }
    }
    __builtin_memcpy(d + at, a + at, bytes - at);
}

/// Blocks that touch on both sides are one copy.
inline void CopyBlocks(void *d, const void *a, const BlockCopy &s)
{
    if (s.srcStep == s.bytes && s.dstStep == s.bytes) {
        CopyRun(static_cast<char *>(d), static_cast<const char *>(a), size_t(s.blocks) * s.bytes);
        return;
    }
    for (uint32_t i = 0; i < s.blocks; ++i) {
        __builtin_memcpy(static_cast<char *>(d) + i * s.dstStep,
                         static_cast<const char *>(a) + i * s.srcStep, s.bytes);
    }
}

/// Left padding, data, right padding; what follows up to the next line is not touched.
inline void CopyPad(void *d, const void *a, const BlockCopy &s, const BlockPad &pad)
{
    for (uint32_t i = 0; i < s.blocks; ++i) {
        char *to = static_cast<char *>(d) + i * s.dstStep;
        const char *from = static_cast<const char *>(a) + i * s.srcStep;
        for (uint32_t e = 0; e < pad.left; ++e) {
            __builtin_memcpy(to + e * pad.elemBytes, &pad.value, pad.elemBytes);
        }
        to += pad.left * pad.elemBytes;
        CopyRun(to, from, s.bytes);
        to += s.bytes;
        for (uint32_t e = 0; e < pad.right; ++e) {
            __builtin_memcpy(to + e * pad.elemBytes, &pad.value, pad.elemBytes);
        }
    }
}

/// GM rows to L1 Nz. Row by row: the source is read in order, each 32-byte piece lands in its
/// strip.
// Strips are dstC0 units of 32 bytes apart, rows of a strip dstN units.
template <typename U>
TWIN_INLINE void Nd2NzRows(U *d, const U *a, const Nd2Nz &s)
{
    constexpr uint32_t c0 = PerBlock<U>();
    const uint32_t full = s.d / c0, tail = s.d % c0;
    const size_t strip = size_t(s.dstC0) * c0, row = size_t(s.dstN) * c0;
    for (uint32_t i = 0; i < s.ndNum; ++i) {
        const U *src = a + size_t(i) * s.srcMatrix;
        U *dst = d + size_t(i) * s.dstMatrix;
        constexpr uint32_t ahead = 16;  // rows
        const size_t rowBytes = s.d * sizeof(U);
        for (uint32_t n = 0; n < Min2(ahead, s.n); ++n) {
            Approach(src + size_t(n) * s.srcRow, rowBytes);
        }
        for (uint32_t n = 0; n < s.n; n += 4) {
            for (uint32_t k = n + ahead; k < Min2(n + ahead + 4, s.n); ++k) {
                Approach(src + size_t(k) * s.srcRow, rowBytes);
            }
            // Four rows side by side in a strip are two whole cache lines.
            const uint32_t end = Min2(n + 4, s.n);
            for (uint32_t j = 0; j < full; ++j) {
                for (uint32_t k = n; k < end; ++k) {
                    __builtin_memcpy(dst + j * strip + size_t(k) * row,
                                     src + size_t(k) * s.srcRow + j * c0, kBlockBytes);
                }
            }
            for (uint32_t k = n; tail && k < end; ++k) {
                U *to = dst + full * strip + size_t(k) * row;
                __builtin_memset(to, 0, kBlockBytes);
                __builtin_memcpy(to, src + size_t(k) * s.srcRow + full * c0, tail * sizeof(U));
            }
        }
    }
}
inline void Nd2NzMove(void *d, const void *a, const Nd2Nz &s, uint32_t elemBytes)
{
    ByWidth(elemBytes, [&](auto zero) TWIN_LAMBDA {
        using U = decltype(zero);
        Nd2NzRows(static_cast<U *>(d), static_cast<const U *>(a), s);
    });
}

}  // namespace twin::TWIN_ISA
