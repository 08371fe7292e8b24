// SPDX-License-Identifier: Apache-2.0
//
// vec_gather.h - GatherMask: squeezes the selected lanes of each repeat together.
//
// Which lanes is said by a built-in pattern (1 to 7) or by bits in a tensor. How many were kept
// comes back through the scalar unit, as on the device; no later instruction has to wait for it.
#ifndef FLA_TWIN_API_VEC_GATHER_H
#define FLA_TWIN_API_VEC_GATHER_H

#include "data_copy.h"

namespace AscendC
{

enum class GatherMaskMode : uint8_t { VERSION_V1 = 0, VERSION_V2 = 1 };
inline constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::VERSION_V2;

/// Source strides in 32-byte blocks; src1RepeatStride steps the bits, 0 uses the same for all.
struct GatherMaskParams {
    GatherMaskParams() = default;
    GatherMaskParams(uint32_t block, uint32_t repeat, uint32_t src0Repeat, uint32_t src1Repeat)
        : src0BlockStride(block),
          repeatTimes(repeat),
          src0RepeatStride(src0Repeat),
          src1RepeatStride(src1Repeat)
    {
    }
    uint32_t src0BlockStride = 1, repeatTimes = 0, src0RepeatStride = 8, src1RepeatStride = 8;
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// Every 2nd lane (from 0, from 1), every 4th (from 0 to 3), all; eight lanes of each.
constexpr uint8_t kGatherPattern[8] = {0, 0x55, 0xaa, 0x11, 0x22, 0x44, 0x88, 0xff};

constexpr uint32_t kPatternLanes = 4096;

/// What both forms share. In reduce mode `mask` counts the elements looked at per repeat.
template <typename T>
struct Squeeze {
    LocalTensor<T> d, a;
    AscendC::GatherMaskParams p;
    uint32_t lanes;

    /// Declares the source lanes, and the first `kept` elements of dst.
    template <typename I>
    void Declare(I &i, uint64_t kept) const
    {
        RequireUb(i, d, "dst");
        RequireField(i, "repeatTimes", p.repeatTimes, 0, 65535);
        RequireField(i, "src0RepeatStride", p.src0RepeatStride, 0, 65535);
        RequireStride(i, "src0BlockStride", p.src0BlockStride, 255);
        const uint32_t full = lanes / kBlockLanes<T>, rest = lanes % kBlockLanes<T>;
        const uint64_t block = p.src0BlockStride * 32ull, step = p.src0RepeatStride * 32ull;
        if (full && p.repeatTimes) {
            i.Reads(a, Extent{0, 32, full, block, p.repeatTimes, step});
        }
        if (rest && p.repeatTimes) {
            i.Reads(a, Extent{full * block, uint32_t(rest * sizeof(T)), p.repeatTimes, step});
        }
        i.Writes(d, kept).Lanes(uint64_t(lanes) * p.repeatTimes, 128 / sizeof(T));
    }
    uint32_t Run(const uint8_t *bits, uint32_t bitStep) const
    {
        return P().gatherMask(d.Host(), a.Host(), bits, bitStep, lanes, p.repeatTimes,
                              p.src0BlockStride, p.src0RepeatStride, sizeof(T));
    }
    /// How many lanes the bits select, for the checker.
    uint64_t Count(const uint8_t *bits, uint32_t bitStep, bool periodic) const
    {
        uint64_t kept = 0;
        for (uint32_t r = 0; r < p.repeatTimes; ++r) {
            for (uint32_t k = 0; k < lanes; ++k) {
                const uint32_t at = periodic ? k % 8 : k;
                kept += bits[uint64_t(r) * bitStep + at / 8] >> (at % 8) & 1;
            }
        }
        return kept;
    }
};

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T, typename U, GatherMaskMode mode = defaultGatherMaskMode>
inline void GatherMask(const LocalTensor<T> &dst, const LocalTensor<T> &src0,
                       const LocalTensor<U> &src1Pattern, bool reduceMode, uint32_t mask,
                       const GatherMaskParams &params, uint64_t &rsvdCnt, TWIN_HERE)
{
    static_assert(sizeof(T) == sizeof(U) && (sizeof(T) == 2 || sizeof(T) == 4),
                  "GatherMask: 16-bit data with uint16 bits, 32-bit data with uint32 bits");
    const twin::Squeeze<T> op{dst, src0, params, reduceMode ? mask : twin::kRepLanes<T>};
    const uint32_t step = params.src1RepeatStride * 32;
    uint64_t *count = &rsvdCnt;
    twin::Issue<twin::Pipe::V>(
        "GatherMask", where,
        [&](auto &i) {
            const uint32_t bytes = (op.lanes + 7) / 8;
            i.Reads(src1Pattern, twin::Extent{0, bytes, params.repeatTimes, step});
            op.Declare(
                i, op.Count(reinterpret_cast<const uint8_t *>(src1Pattern.Host()), step, false));
        },
        [=] { *count = op.Run(reinterpret_cast<const uint8_t *>(src1Pattern.Host()), step); });
}

template <typename T, GatherMaskMode mode = defaultGatherMaskMode>
inline void GatherMask(const LocalTensor<T> &dst, const LocalTensor<T> &src0, uint8_t src1Pattern,
                       bool reduceMode, uint32_t mask, const GatherMaskParams &params,
                       uint64_t &rsvdCnt, TWIN_HERE)
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "GatherMask moves 16 and 32-bit elements");
    const twin::Squeeze<T> op{dst, src0, params, reduceMode ? mask : twin::kRepLanes<T>};
    const uint8_t byte = twin::kGatherPattern[src1Pattern & 7];
    uint64_t *count = &rsvdCnt;
    twin::Issue<twin::Pipe::V>(
        "GatherMask", where,
        [&](auto &i) {
            i.Require(src1Pattern >= 1 && src1Pattern <= 7, "gather-pattern",
                      "patterns go from 1 to 7; pass a tensor of bits for others", "pattern is %u",
                      static_cast<uint32_t>(src1Pattern));
            i.Require(op.lanes <= twin::kPatternLanes, "mask-range", "use more repeats",
                      "mask is %u elements, a pattern covers %u", op.lanes, twin::kPatternLanes);
            op.Declare(i, op.Count(&byte, 0, true));
        },
        [=] {
            uint8_t bits[twin::kPatternLanes / 8];  // spread here: the effect's storage is small
            std::memset(bits, byte, sizeof(bits));
            *count = op.Run(bits, 0);
        });
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_GATHER_H
