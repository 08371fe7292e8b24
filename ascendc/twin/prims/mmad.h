// SPDX-License-Identifier: Apache-2.0
//
// mmad.h - C[m,n] (+)= A[m,k] B[k,n] on the fractal layouts, no packing.
//
// A: [16 m][depth k] per fractal, fractals row by row of m. B: [depth k][16 n] per fractal,
// fractals row by row of k. C: 16-column strips of M16 rows. Each fractal of A and B owns kSlot
// floats.
//
// A register tile holds kRows x kCols blocks of C while k runs; every element of C is one chain of
// multiply-adds in ascending k whatever tile it falls in, so the tiling leaves no trace in the
// bits. Rows up to the next multiple of the tile are computed and stored too: they lie inside the
// 16 x 16 block, whose lanes beyond m and n the chip leaves undefined.
#pragma once

#include "lanes.h"

namespace twin::TWIN_ISA
{

constexpr uint32_t kSlot = 256;
constexpr int kVecs = 16 / kLanes;  // registers per row of a block

/// Shape of one tile walk, in floats.
struct TileShape {
    uint32_t k;
    size_t aStep, bStep;  // from one k fractal to the next
    size_t cStrip;        // from one 16-column strip of C to the next
    bool accumulate;
};

/// One register tile: `rows` rows, `cols` blocks of 16 columns. depth is C0 of the operands.
template <int rows, int cols, uint32_t depth>
TWIN_INLINE void Tile(float *c, const float *a, const float *b, const TileShape &s)
{
    constexpr int width = cols * kVecs;
    VF acc[rows][width];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int w = 0; w < width; ++w) {
            acc[r][w] = s.accumulate
                            ? Load(c + (w / kVecs) * s.cStrip + r * 16 + (w % kVecs) * kLanes)
                            : VF{};
        }
    }
    auto step = [&](const float *ak, const float *bk) TWIN_LAMBDA {
        VF bv[width];
#pragma GCC unroll 16
        for (int w = 0; w < width; ++w) {
            bv[w] = Load(bk + (w / kVecs) * kSlot + (w % kVecs) * kLanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const VF av = Splat(ak[r * depth]);
#pragma GCC unroll 16
            for (int w = 0; w < width; ++w) {
                acc[r][w] += av * bv[w];
            }
        }
    };
    const uint32_t full = s.k / depth, rest = s.k % depth;
    for (uint32_t f = 0; f < full; ++f) {
#pragma GCC unroll 8
        for (uint32_t kk = 0; kk < depth; ++kk) {
            step(a + kk, b + kk * 16);
        }
        a += s.aStep;
        b += s.bStep;
    }
    for (uint32_t kk = 0; kk < rest; ++kk) {
        step(a + kk, b + kk * 16);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int w = 0; w < width; ++w) {
            Store(c + (w / kVecs) * s.cStrip + r * 16 + (w % kVecs) * kLanes, acc[r][w]);
        }
    }
}

// Tile heights that fill the register file and sum to 16 rows of a fractal.
#if defined(__AVX512F__)
constexpr int kPair = 2;  // 8 x 32: 16 accumulators, 10 loads per 16 FMA
#else
constexpr int kPair = 1;
#endif

/// A 16-row band of C, `cols` blocks wide, cut into the tile heights of this instruction set.
template <int cols, uint32_t depth>
TWIN_INLINE void Band(float *c, const float *a, const float *b, uint32_t rows, const TileShape &s)
{
    auto tile = [&](auto height, uint32_t first) TWIN_LAMBDA {
        if (first < rows) {
            Tile<decltype(height)::value, cols, depth>(c + first * 16, a + first * depth, b, s);
        }
    };
    if constexpr (kLanes == 16 && cols == 1) {
        if (rows <= 8) {
            tile(Int<8>{}, 0);
        } else {
            tile(Int<16>{}, 0);
        }
    } else if constexpr (kLanes == 16) {
        tile(Int<8>{}, 0);
        tile(Int<8>{}, 8);
    } else if constexpr (kLanes == 8) {
        tile(Int<6>{}, 0);
        tile(Int<5>{}, 6);
        tile(Int<5>{}, 11);
    } else {
#pragma GCC unroll 8
        for (uint32_t first = 0; first < 16; first += 2) {
            tile(Int<2>{}, first);
        }
    }
}

template <uint32_t depth>
TWIN_INLINE void MmadBlocks(float *c, const float *a, const float *b, const MmadShape &m)
{
    const uint32_t mBlocks = (m.m + 15) / 16, nBlocks = (m.n + 15) / 16;
    const uint32_t kAlign = m.k16 ? 16 : depth;
    const uint32_t kFractals = (m.k + kAlign - 1) / kAlign * (kAlign / depth);
    const TileShape s{m.k, kSlot, size_t(nBlocks) * kSlot, size_t(mBlocks) * 256, m.accumulate};
    // A strip of B stays in the first-level cache while all of A passes by.
    for (uint32_t nb = 0; nb < nBlocks;) {
        const bool pair = kPair == 2 && nb + 2 <= nBlocks;
        for (uint32_t mb = 0; mb < mBlocks; ++mb) {
            float *cb = c + nb * s.cStrip + size_t(mb) * 256;
            const float *ab = a + size_t(mb) * kFractals * kSlot;
            const float *bb = b + size_t(nb) * kSlot;
            const uint32_t rows = m.m - mb * 16 < 16 ? m.m - mb * 16 : 16;
            if (pair) {
                Band<kPair, depth>(cb, ab, bb, rows, s);
            } else {
                Band<1, depth>(cb, ab, bb, rows, s);
            }
        }
        nb += pair ? 2 : 1;
    }
}

/// m == 1: the chip reads A as plain contiguous k elements (rules 3.7). Row r of the tile would be
/// another fractal row, so this is a loop of its own.
template <uint32_t depth>
TWIN_INLINE void Gemv(float *c, const float *a, const float *b, const MmadShape &m)
{
    const uint32_t nBlocks = (m.n + 15) / 16;
    // 512 device bytes of A are one slot; fp32 fills half of it.
    constexpr uint32_t perSlot = depth * 16;
    for (uint32_t nb = 0; nb < nBlocks; ++nb) {
        float acc[16];
        for (int j = 0; j < 16; ++j) {
            acc[j] = m.accumulate ? c[size_t(nb) * 256 + j] : 0.0f;
        }
        for (uint32_t k = 0; k < m.k; ++k) {
            const float av = a[k / perSlot * kSlot + k % perSlot];
            const float *bk = b + (size_t(k / depth) * nBlocks + nb) * kSlot + (k % depth) * 16;
            for (int j = 0; j < 16; ++j) {
                acc[j] += av * bk[j];
            }
        }
        __builtin_memcpy(c + size_t(nb) * 256, acc, sizeof(acc));
    }
}

template <uint32_t depth>
void MmadDepth(float *c, const float *a, const float *b, const MmadShape &m)
{
    if (m.m == 1) {
        Gemv<depth>(c, a, b, m);
    } else {
        MmadBlocks<depth>(c, a, b, m);
    }
}
inline void Mmad(float *c, const float *a, const float *b, const MmadShape &m)
{
    if (m.depth == 16) {
        MmadDepth<16>(c, a, b, m);
    } else {
        MmadDepth<8>(c, a, b, m);
    }
}

/// Every row of C becomes the bias; Mmad then accumulates onto it.
inline void BiasRows(float *c, const float *bias, uint32_t m, uint32_t n)
{
    const uint32_t rows = (m + 15) / 16 * 16;
    for (uint32_t nb = 0; nb < (n + 15) / 16; ++nb) {
        for (uint32_t r = 0; r < rows; ++r) {
            __builtin_memcpy(c + (size_t(nb) * rows + r) * 16, bias + nb * 16, 64);
        }
    }
}

}  // namespace twin::TWIN_ISA
