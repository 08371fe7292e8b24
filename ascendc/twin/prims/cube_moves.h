// SPDX-License-Identifier: Apache-2.0
//
// cube_moves.h - L1 -> L0 (LoadData) and L0C -> GM or L1 (Fixpipe).
//
// L0 holds floats on the host, so loading is also the conversion from bf16 or half: done once here,
// it costs 2-5 % of a matrix product; done inside the product it would cost 11-37 %.
// What the chip calls "no transposition" for L0B is a transposition here and the other way round,
// because our B slot is k-major while the chip's fractal is n-major.
#pragma once

#include "elementwise.h"
#include "mmad.h"
#include "moves.h"

namespace twin::TWIN_ISA
{

/// rows x 16 block: element (r, c) of a source fractal row-major, `cols` wide, to floats.
template <typename T>
TWIN_INLINE void StraightBlock(float *d, const T *a, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        d[i] = ToFloat(a[i]);
    }
}

typedef uint16_t V8 __attribute__((vector_size(16)));
typedef uint16_t V8u __attribute__((vector_size(16), aligned(2), may_alias));

struct Rows8 {
    V8 r0, r1, r2, r3, r4, r5, r6, r7;
};
/// Interleaves the upper four rows with the lower four; three rounds transpose an 8 x 8 block.
TWIN_INLINE Rows8 Interleave(const Rows8 &v)
{
    constexpr V8 lo = {0, 8, 1, 9, 2, 10, 3, 11}, hi = {4, 12, 5, 13, 6, 14, 7, 15};
    return {__builtin_shuffle(v.r0, v.r4, lo), __builtin_shuffle(v.r0, v.r4, hi),
            __builtin_shuffle(v.r1, v.r5, lo), __builtin_shuffle(v.r1, v.r5, hi),
            __builtin_shuffle(v.r2, v.r6, lo), __builtin_shuffle(v.r2, v.r6, hi),
            __builtin_shuffle(v.r3, v.r7, lo), __builtin_shuffle(v.r3, v.r7, hi)};
}
/// Eight bf16 as floats: interleaving with zeros below shifts each of them up by 16 bits.
TWIN_INLINE void StoreRow(float *d, V8 v)
{
    const V8 zero{};
    const Rows8 wide = Interleave(Rows8{zero, zero, zero, zero, v, v, v, v});
    __builtin_memcpy(d, &wide.r0, 16);
    __builtin_memcpy(d + 4, &wide.r1, 16);
}

/// 8 x 8 block of bf16, rows 16 apart. 128-bit registers are what every target has, and the
/// shuffles stay inside a lane.
TWIN_INLINE void Transposed8x8(float *d, uint32_t dRow, const Bf16 *a)
{
    auto row = [a](int i) TWIN_LAMBDA { return V8(*reinterpret_cast<const V8u *>(a + i * 16)); };
    const Rows8 v = Interleave(Interleave(
        Interleave(Rows8{row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)})));
    StoreRow(d, v.r0);
    StoreRow(d + dRow, v.r1);
    StoreRow(d + 2 * dRow, v.r2);
    StoreRow(d + 3 * dRow, v.r3);
    StoreRow(d + 4 * dRow, v.r4);
    StoreRow(d + 5 * dRow, v.r5);
    StoreRow(d + 6 * dRow, v.r6);
    StoreRow(d + 7 * dRow, v.r7);
}

#if defined(__AVX512F__)
/// 16 x 16 block of bf16 as 16 rows of 8 pairs: pairs are transposed in three rounds, each of which
/// trades a bit of the row in the register's number for a bit of the pair in the lane's. A pair of
/// columns then parts into two rows of floats.
TWIN_INLINE void Transposed16x16(float *d, uint32_t dRow, const Bf16 *a)
{
    VI v[8], w[8];
    __builtin_memcpy(v, a, sizeof(v));  // rows 2 i and 2 i + 1
    auto round = [](VI *to, const VI *from, int apart, VI low, VI high) TWIN_LAMBDA {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const int pair = i / apart % 2 == 0 ? i : i - apart;
            to[i] = __builtin_shuffle(from[pair], from[pair + apart], i == pair ? low : high);
        }
    };
    const VI low4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    const VI low2 = {0, 1, 4, 5, 16, 17, 20, 21, 8, 9, 12, 13, 24, 25, 28, 29};
    const VI low1 = {0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30};
    round(w, v, 4, low4, low4 + 4);
    round(v, w, 2, low2, low2 + 2);
    round(w, v, 1, low1, low1 + 1);
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; ++j) {
        Store(d + 2 * j * dRow, Floats(w[j] << 16));
        Store(d + (2 * j + 1) * dRow, Floats(w[j] & static_cast<int32_t>(0xffff0000u)));
    }
}
#endif

/// d[c][r] = a[r][c]; a has `rows` x `cols` elements, d rows are `dRow` floats apart.
template <uint32_t rows, uint32_t cols, typename T>
TWIN_INLINE void TransposedBlock(float *d, uint32_t dRow, const T *a)
{
    if constexpr (kIsBf16<T> && cols == 16 && rows == 16) {
#if defined(__AVX512F__)
        Transposed16x16(d, dRow, a);
        return;
#endif
        Transposed8x8(d, dRow, a);
        Transposed8x8(d + 8, dRow, a + 8 * 16);
        Transposed8x8(d + 8 * dRow, dRow, a + 8);
        Transposed8x8(d + 8 * dRow + 8, dRow, a + 8 * 16 + 8);
    } else {
        float t[rows * cols];
        StraightBlock(t, a, rows * cols);
        for (uint32_t c = 0; c < cols; ++c) {
            for (uint32_t r = 0; r < rows; ++r) {
                d[c * dRow + r] = t[r * cols + c];
            }
        }
    }
}

template <typename T>
constexpr uint32_t kDepth = PerBlock<T>();  // C0: 16, or 8 for fp32

/// One 512-byte fractal [16][C0] of L1 into one slot.
template <typename T>
TWIN_INLINE void LoadFractal(float *d, const T *a, bool transpose)
{
    if (transpose) {
        TransposedBlock<16, kDepth<T>>(d, 16, a);
    } else {
        StraightBlock(d, a, 16 * kDepth<T>);
    }
}

/// fp32 squares of LoadDataWithTranspose: fractals a (columns 0..7) and a + 128 (columns 8..15).
/// The transposed 16 x 16 leaves as two fractals of depth 8.
inline void LoadSquare32(float *d, const float *a, uint32_t fracStep, L0 side)
{
    for (uint32_t j = 0; j < 2; ++j) {
        float *to = d + size_t(j) * fracStep * kSlot;
        for (uint32_t x = 0; x < 16; ++x) {
            for (uint32_t kk = 0; kk < 8; ++kk) {
                // Source row 8j + kk is k, source column x is m (A) or n (B).
                const float v = a[(x / 8) * 128 + (j * 8 + kk) * 8 + x % 8];
                to[side == L0::kA ? x * 8 + kk : kk * 16 + x] = v;
            }
        }
    }
}

template <typename T>
void Load2dTyped(float *d, const T *a, const Load2d &s, L0 side)
{
    constexpr bool square = sizeof(T) == 4;
    for (uint32_t i = 0; i < s.repeat; ++i) {
        const size_t index = s.start + size_t(i) * s.srcStride;
        float *to = d + size_t(i) * s.dstStep * kSlot;
        if constexpr (square) {
            if (s.transpose) {
                LoadSquare32(to, a + index * 256, s.fracStep, side);
                continue;
            }
        }
        LoadFractal(to, a + index * 16 * kDepth<T>, s.transpose != (side == L0::kB));
    }
}

/// Calls f with the storage type of an operand.
template <typename F>
TWIN_INLINE void ByL0Type(L0Type type, F f)
{
    switch (type) {
        case L0Type::kBf16:
            f(Bf16{});
            break;
        case L0Type::kF16:
            f(Half{});
            break;
        default:
            f(float{});
            break;
    }
}
inline void Load2dMove(float *d, const void *a, const Load2d &s, L0 side, L0Type type)
{
    ByL0Type(type, [&](auto zero) TWIN_LAMBDA {
        Load2dTyped(d, static_cast<const decltype(zero) *>(a), s, side);
    });
}

/// Nz block (r, c) in L1, r a multiple of 16 rows, c of C0 columns.
template <typename T>
TWIN_INLINE const T *NzBlock(const T *a, const Load3d &s, uint32_t r, uint32_t c)
{
    return a + (size_t(c / kDepth<T>) * s.rows + r) * kDepth<T>;
}

/// [mSize, kSize] taken as it is: A keeps rows as m, columns as k.
template <typename T>
TWIN_INLINE void Load3dPlainA(float *d, const T *a, const Load3d &s)
{
    constexpr uint32_t c0 = kDepth<T>;
    const uint32_t kBlocks = s.kSize / c0;
    for (uint32_t mb = 0; mb < s.mSize / 16; ++mb) {
        for (uint32_t kb = 0; kb < kBlocks; ++kb) {
            LoadFractal(d + (size_t(mb) * kBlocks + kb) * kSlot,
                        NzBlock(a, s, s.m + mb * 16, s.k + kb * c0), false);
        }
    }
}

/// Rows become k. A 16-row group gives 16 / C0 fractals of depth C0; columns come in 16s, and when
/// fp32 has an odd 8 left, the other half of the slot keeps what it had.
/// side A: slot [16 x][C0 k], k fractals innermost; side B: slot [C0 k][16 x], x blocks innermost.
template <typename T>
TWIN_INLINE void Load3dRowsToK(float *d, const T *a, const Load3d &s, L0 side)
{
    constexpr uint32_t c0 = kDepth<T>, perGroup = 16 / c0;
    const uint32_t xBlocks = (s.kSize + 15) / 16, kBlocks = s.mSize / c0;
    for (uint32_t g = 0; g < s.mSize / 16; ++g) {
        for (uint32_t col = 0; col < s.kSize; col += c0) {
            const T *block = NzBlock(a, s, s.m + g * 16, s.k + col);
            const uint32_t xb = col / 16, x0 = col % 16;
            for (uint32_t h = 0; h < perGroup; ++h) {
                const uint32_t kb = g * perGroup + h;
                if (side == L0::kA) {
                    TransposedBlock<c0, c0>(d + (size_t(xb) * kBlocks + kb) * kSlot + x0 * c0, c0,
                                            block + h * c0 * c0);
                } else {
                    float *to = d + (size_t(kb) * xBlocks + xb) * kSlot + x0;
                    for (uint32_t kk = 0; kk < c0; ++kk) {
                        StraightBlock(to + kk * 16, block + (h * c0 + kk) * c0, c0);
                    }
                }
            }
        }
    }
}

inline void Load3dMove(float *d, const void *a, const Load3d &s, L0 side, L0Type type)
{
    ByL0Type(type, [&](auto zero) TWIN_LAMBDA {
        using T = decltype(zero);
        // L0B always takes rows as k: that is its [K, N] -> Zn rule.
        if (side == L0::kA && !s.transpose) {
            Load3dPlainA(d, static_cast<const T *>(a), s);
        } else {
            Load3dRowsToK(d, static_cast<const T *>(a), s, side);
        }
    });
}

/// InitConstValue on L0A or L0B: `repeat` runs of `fractals` slots, `gap` slots between runs.
inline void FillL0(float *d, float value, uint32_t repeat, uint32_t fractals, uint32_t gap)
{
    for (uint32_t r = 0; r < repeat; ++r) {
        float *to = d + size_t(r) * (fractals + gap) * kSlot;
        for (uint32_t i = 0; i < fractals * kSlot; ++i) {
            to[i] = value;
        }
    }
}

// --- Fixpipe ---

template <bool relu, typename D>
TWIN_INLINE void FixRun(D *d, const float *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        d[i] = Narrow<D>(relu ? ReluOf(c[i]) : c[i]);
    }
}

/// One row of a strip, a register at a time.
template <bool relu, typename D>
TWIN_INLINE void FixRow16(D *d, const float *c)
{
    if constexpr (kIsHalf<D>) {
        FixRun<relu>(d, c, 16);
    } else {
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += kLanes) {
            VF v = Load(c + i);
            if constexpr (relu) {
                v = ((v > VF{}) | (v != v)) ? v : VF{};
            }
            StoreAs(d + i, v);
        }
    }
}

/// Row major: dst[r][c], rows dstStride elements apart. Four rows at a time: whole cache lines are
/// written while the strips they come from are still near.
template <bool relu, typename D>
TWIN_INLINE void FixpipeRowsOf(D *d, const float *c, const Fixpipe &s)
{
    const uint32_t full = s.n / 16, tail = s.n % 16;
    for (uint32_t nd = 0; nd < s.ndNum; ++nd) {
        const float *src = c + size_t(nd) * s.srcNd;
        D *dst = d + size_t(nd) * s.dstNd;
        constexpr uint32_t ahead = 8;  // rows
        for (uint32_t r = 0; r < Min2(ahead, s.m); ++r) {
            Approach(dst + size_t(r) * s.dstStride, s.n * sizeof(D));
        }
        for (uint32_t r = 0; r < s.m; r += 4) {
            for (uint32_t k = r + ahead; k < Min2(r + ahead + 4, s.m); ++k) {
                Approach(dst + size_t(k) * s.dstStride, s.n * sizeof(D));
            }
            const uint32_t end = Min2(r + 4, s.m);
            uint32_t strip = 0;
            if constexpr (kLanes == 16 && !relu && kIsBf16<D>) {  // a row of two strips at once
                for (; strip + 2 <= full; strip += 2) {
                    const float *two = src + strip * size_t(s.srcStrip);
                    for (uint32_t k = r; k < end; ++k) {
                        StorePair(dst + size_t(k) * s.dstStride + strip * 16, Load(two + k * 16),
                                  Load(two + s.srcStrip + k * 16));
                    }
                }
            }
            for (; strip < full; ++strip) {
                for (uint32_t k = r; k < end; ++k) {
                    FixRow16<relu>(dst + size_t(k) * s.dstStride + strip * 16,
                                   src + strip * size_t(s.srcStrip) + k * 16);
                }
            }
            for (uint32_t k = r; tail && k < end; ++k) {
                FixRun<relu>(dst + size_t(k) * s.dstStride + full * 16,
                             src + full * size_t(s.srcStrip) + k * 16, tail);
            }
        }
    }
}
template <typename D>
void FixpipeRows(void *d, const float *c, const Fixpipe &s)
{
    if (s.relu) {
        FixpipeRowsOf<true>(static_cast<D *>(d), c, s);
    } else {
        FixpipeRowsOf<false>(static_cast<D *>(d), c, s);
    }
}

/// Nz: 16-column strips (8 with split8, fp32 only), dstStride elements apart.
template <bool relu, typename D>
TWIN_INLINE void FixpipeNzOf(D *d, const float *c, const Fixpipe &s)
{
    for (uint32_t strip = 0; strip < s.n / 16; ++strip) {
        const float *src = c + strip * size_t(s.srcStrip);
        if (!s.split8) {
            FixRun<relu>(d + strip * size_t(s.dstStride), src, s.m * 16);
            continue;
        }
        for (uint32_t r = 0; r < s.m; ++r) {
            FixRun<relu>(d + (2 * strip) * size_t(s.dstStride) + r * 8, src + r * 16, 8);
            FixRun<relu>(d + (2 * strip + 1) * size_t(s.dstStride) + r * 8, src + r * 16 + 8, 8);
        }
    }
}
template <typename D>
void FixpipeNz(void *d, const float *c, const Fixpipe &s)
{
    if (s.relu) {
        FixpipeNzOf<true>(static_cast<D *>(d), c, s);
    } else {
        FixpipeNzOf<false>(static_cast<D *>(d), c, s);
    }
}

}  // namespace twin::TWIN_ISA
