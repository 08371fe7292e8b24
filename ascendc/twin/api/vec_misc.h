// SPDX-License-Identifier: Apache-2.0
//
// vec_misc.h - fills, moves and shuffles inside UB: Duplicate Copy Brcb Gather
// CreateVecIndex ArithProgression Transpose TransDataTo5HD (rules 4.5, 4.9).
#ifndef FLA_TWIN_API_VEC_MISC_H
#define FLA_TWIN_API_VEC_MISC_H

#include "vec_common.h"

namespace AscendC
{

/// Start to start, in blocks; the default 0 for the block strides is the device's own.
struct CopyRepeatParams {
    CopyRepeatParams() = default;
    CopyRepeatParams(uint32_t dst, uint32_t src, uint32_t dstRep, uint32_t srcRep)
        : dstStride(dst), srcStride(src), dstRepeatSize(dstRep), srcRepeatSize(srcRep)
    {
    }
    uint32_t dstStride = 0, srcStride = 0, dstRepeatSize = 8, srcRepeatSize = 8;
};

/// Where the 8 blocks of a repeat and the repeats themselves go.
struct BrcbRepeatParams {
    BrcbRepeatParams() = default;
    BrcbRepeatParams(uint32_t dstBlk, uint32_t dstRep) : dstRepStride(dstRep), dstBlkStride(dstBlk)
    {
    }
    uint32_t dstRepStride = 8, dstBlkStride = 1;
};

/// The high-half switches matter for 8-bit elements only.
struct TransDataTo5HDParams {
    TransDataTo5HDParams() = default;
    TransDataTo5HDParams(bool dstHigh, bool srcHigh, uint32_t repeat, uint32_t dstRep,
                         uint32_t srcRep)
        : dstHighHalf(dstHigh),
          srcHighHalf(srcHigh),
          repeatTimes(repeat),
          dstRepStride(dstRep),
          srcRepStride(srcRep)
    {
    }
    bool dstHighHalf = false, srcHighHalf = false;
    uint32_t repeatTimes = 1, dstRepStride = 0, srcRepStride = 0;
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// Moves know widths, not types.
template <typename T>
constexpr bool kMovable = sizeof(T) == 2 || sizeof(T) == 4;

/// Any element type as its raw bits.
// Values travel as bits, so that one primitive fills every type of a width.
template <typename T>
inline uint64_t RawBits(const T &value)
{
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

/// Fills are the one vector operation that bf16 has too: it is bits, not a number.
template <typename T>
inline void DuplicateCount(const LocalTensor<T> &d, const T &value, uint32_t n, Where where)
{
    static_assert(kMovable<T>, "Duplicate fills 16 and 32-bit elements");
    const uint64_t bits = RawBits(value);
    Issue<Pipe::V>(
        "Duplicate", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            i.Writes(d, n).Lanes(n, kRepLanes<T>);
        },
        [=] { P().duplicate(d.Host(), bits, n, sizeof(T)); });
}
/// Level 0 of the fill.
template <bool isSetMask, typename T, typename M>
inline void DuplicateRep(const LocalTensor<T> &d, const T &value, M mask, uint32_t repeat,
                         uint32_t dstBlk, uint32_t dstRep, Where where)
{
    static_assert(kMovable<T>, "Duplicate fills 16 and 32-bit elements");
    const uint64_t bits = RawBits(value);
    const Repeats r = ResolveMask<isSetMask>(mask, repeat, kRepLanes<T>);
    const RepShape shape{{}, 0, uint16_t(dstBlk), 0, 0, uint16_t(dstRep), 0, 0};
    Issue<Pipe::V>(
        "Duplicate", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            RequireMask(i, r, kRepLanes<T>);
            RequireDstStride(i, dstBlk, 65535);
            RequireStride(i, "dstRepeatStride", dstRep, 255);
            DeclareWalk(i, d, r, kRepLanes<T>, {dstBlk, dstRep}, Access::kWrite);
            i.Lanes(uint64_t(kRepLanes<T>) * r.repeat + r.tail, kRepLanes<T>);
        },
        [=] {
            ForParts(r, shape, [&](const RepShape &s, uint32_t skip) {
                P().duplicateRep(Blocks(d.Host(), uint64_t(skip) * s.dRep), bits, s, sizeof(T));
            });
        });
}

/// Copy's strides go up to 4095 and count, unlike DataCopy's, from block start to block start.
template <bool isSetMask, typename T, typename M>
inline void CopyRep(const LocalTensor<T> &d, const LocalTensor<T> &a, M mask, uint32_t repeat,
                    const AscendC::CopyRepeatParams &p, Where where)
{
    static_assert(kMovable<T>, "Copy moves 16 and 32-bit elements");
    const Repeats r = ResolveMask<isSetMask>(mask, repeat, kRepLanes<T>);
    const RepShape shape{{},
                         0,
                         uint16_t(p.dstStride),
                         uint16_t(p.srcStride),
                         0,
                         uint16_t(p.dstRepeatSize),
                         uint16_t(p.srcRepeatSize),
                         0};
    Issue<Pipe::V>(
        "Copy", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            RequireMask(i, r, kRepLanes<T>);
            RequireDstStride(i, p.dstStride, 4095);
            RequireStride(i, "srcStride", p.srcStride, 4095);
            RequireStride(i, "dstRepeatSize", p.dstRepeatSize, 4095);
            RequireStride(i, "srcRepeatSize", p.srcRepeatSize, 4095);
            RequireOverlap(i, d, a, p.dstStride, p.srcStride, p.dstRepeatSize, p.srcRepeatSize, r,
                           false);
            DeclareWalk(i, a, r, kRepLanes<T>, {p.srcStride, p.srcRepeatSize}, Access::kRead);
            DeclareWalk(i, d, r, kRepLanes<T>, {p.dstStride, p.dstRepeatSize}, Access::kWrite);
            i.Lanes(uint64_t(kRepLanes<T>) * r.repeat + r.tail, kRepLanes<T>);
        },
        [=] {
            ForParts(r, shape, [&](const RepShape &s, uint32_t skip) {
                P().copyRep(Blocks(d.Host(), uint64_t(skip) * s.dRep),
                            Blocks(a.Host(), uint64_t(skip) * s.aRep), s, sizeof(T));
            });
        });
}

/// Bytes a strided destination of 8 blocks per repeat covers, for the overlap rule.
template <typename T>
inline uint64_t Span(uint32_t repeat, uint32_t blk, uint32_t rep)
{
    return repeat ? (uint64_t(repeat - 1) * rep + 7ull * blk + 1) * 32 : 0;
}

/// Each element becomes a whole block: the cheap way to one value per row. With it a binary
/// operation takes src1BlkStride 0 and src1RepStride 1.
template <typename T>
inline void BrcbIssue(const LocalTensor<T> &d, const LocalTensor<T> &a, uint32_t repeat,
                      const AscendC::BrcbRepeatParams &p, Where where)
{
    static_assert(kMovable<T>, "Brcb moves 16 and 32-bit elements");
    Issue<Pipe::V>(
        "Brcb", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            i.Require(repeat <= 255, "repeat-range", "split the call",
                      "repeatTime is %u, at most 255", repeat);
            RequireDstStride(i, p.dstBlkStride, 65535);
            RequireStride(i, "dstRepStride", p.dstRepStride, 65535);
            i.NoOverlap(d, Span<T>(repeat, p.dstBlkStride, p.dstRepStride), a,
                        uint64_t(repeat) * 8 * sizeof(T), false);
            i.Reads(a, repeat * 8);
            if (repeat) {
                i.Writes(d,
                         Extent{0, 32, 8, p.dstBlkStride * 32ull, repeat, p.dstRepStride * 32ull});
            }
            i.Lanes(uint64_t(repeat) * 8 * kBlockLanes<T>, kRepLanes<T>);
        },
        [=] { P().brcb(d.Host(), a.Host(), repeat, p.dstBlkStride, p.dstRepStride, sizeof(T)); });
}

/// Offsets are data, so the checker looks them up and declares each element it is about to read. An
/// offset nobody wrote ends the list; reading it is a fault of its own.
template <typename T>
inline void GatherIssue(const LocalTensor<T> &d, const LocalTensor<T> &a,
                        const LocalTensor<uint32_t> &offset, uint32_t base, uint32_t n, Where where)
{
    static_assert(kMovable<T>, "Gather moves 16 and 32-bit elements");
    Issue<Pipe::V>(
        "Gather", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            i.Reads(offset, n);
            for (uint32_t k = 0; k < n && i.IsDefined(offset, k * 4ull, 4); ++k) {
                const uint32_t at = base + offset.Host()[k];
                i.Require(at % sizeof(T) == 0, "gather-offset",
                          "offsets are bytes of whole elements",
                          "offset %u at index %u is not a multiple of %zu", at, k, sizeof(T));
                i.Reads(a, Extent{at, sizeof(T)});
            }
            i.NoOverlap(d, uint64_t(n) * sizeof(T), offset, n * 4ull, false);
            i.Writes(d, n).Lanes(n, 5);
        },
        [=] { P().gather(d.Host(), a.Host(), offset.Host(), base, n, sizeof(T)); });
}

/// CreateVecIndex and ArithProgression: dst[i] = first + i * step.
template <typename T>
inline void ArithIssue(const char *name, const LocalTensor<T> &d, const T &first, const T &step,
                       uint32_t n, Where where)
{
    static_assert(kOneOf<T, float, half, int32_t, int16_t>,
                  "an index row is half, float, int16 or int32");
    const uint32_t from = ScalarBits(first), by = ScalarBits(step);
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            i.Writes(d, n).Lanes(n, kRepLanes<T>);
        },
        [=] { P().arith[At(TyFor<T>())](d.Host(), from, by, n); });
}

/// Sixteen blocks in, sixteen out. The lists are decoded to addresses once: the effect may be kept.
template <typename T>
inline void TransDataIssue(const LocalTensor<T> (&d)[16], const LocalTensor<T> (&a)[16],
                           const AscendC::TransDataTo5HDParams &p, Where where)
{
    static_assert(sizeof(T) <= 4, "TransDataTo5HD moves 8, 16 and 32-bit elements");
    // Tensors would not fit the effect's storage, addresses do.
    struct Lists {
        T *d[16];
        const T *a[16];
    } lists;
    for (int k = 0; k < 16; ++k) {
        lists.d[k] = d[k].Host();
        lists.a[k] = a[k].Host();
    }
    Issue<Pipe::V>(
        "TransDataTo5HD", where,
        [&](auto &i) {
            i.Require(p.repeatTimes <= 255, "repeat-range", "split the call", "repeatTimes is %u",
                      p.repeatTimes);
            i.Require(p.repeatTimes != 1 || (p.dstRepStride == 0 && p.srcRepStride == 0),
                      "repeat-stride", "pass 0 for both repeat strides when repeatTimes is 1",
                      "the chip adds a stride to the only repeat: dst %u, src %u", p.dstRepStride,
                      p.srcRepStride);
            const uint64_t step = p.srcRepStride * 32ull, to = p.dstRepStride * 32ull;
            for (int k = 0; k < 16; ++k) {
                RequireUb(i, d[k], "dst");
                i.Reads(a[k], Extent{0, 32, p.repeatTimes, step});
            }
            for (int k = 0; k < 16; ++k) {
                // An 8-bit transposition fills half of each destination block.
                const uint64_t start = sizeof(T) == 1 && p.dstHighHalf ? 16 : 0;
                i.Writes(d[k], Extent{start, sizeof(T) == 1 ? 16u : 32u, p.repeatTimes, to});
            }
            i.Lanes(uint64_t(p.repeatTimes) * 16 * kBlockLanes<T>, kRepLanes<T>);
        },
        [=] {
            for (uint32_t r = 0; r < p.repeatTimes; ++r) {
                void *to[16];
                const void *from[16];
                for (int k = 0; k < 16; ++k) {
                    to[k] = Blocks(lists.d[k], uint64_t(r) * p.dstRepStride);
                    from[k] = Blocks(lists.a[k], uint64_t(r) * p.srcRepStride);
                }
                P().transData(to, from, sizeof(T), p.dstHighHalf, p.srcHighHalf);
            }
        });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

// Count form, then mask and repeat.
template <typename T>
inline void Duplicate(const LocalTensor<T> &dst, const T &scalar, int32_t count, TWIN_HERE)
{
    twin::DuplicateCount(dst, scalar, static_cast<uint32_t>(count), where);
}
template <typename T, bool isSetMask = true>
inline void Duplicate(const LocalTensor<T> &dst, const T &scalar, uint64_t mask,
                      uint32_t repeatTimes, uint32_t dstBlockStride, uint32_t dstRepeatStride,
                      TWIN_HERE)
{
    twin::DuplicateRep<isSetMask>(dst, scalar, mask, repeatTimes, dstBlockStride, dstRepeatStride,
                                  where);
}
template <typename T, bool isSetMask = true>
inline void Duplicate(const LocalTensor<T> &dst, const T &scalar, const uint64_t mask[],
                      uint32_t repeatTimes, uint32_t dstBlockStride, uint32_t dstRepeatStride,
                      TWIN_HERE)
{
    twin::DuplicateRep<isSetMask>(dst, scalar, mask, repeatTimes, dstBlockStride, dstRepeatStride,
                                  where);
}

/// UB to UB inside the vector unit, with a mask and wide strides.
template <typename T, bool isSetMask = true>
inline void Copy(const LocalTensor<T> &dst, const LocalTensor<T> &src, uint64_t mask,
                 uint32_t repeatTimes, const CopyRepeatParams &params, TWIN_HERE)
{
    twin::CopyRep<isSetMask>(dst, src, mask, repeatTimes, params, where);
}
template <typename T, bool isSetMask = true>
inline void Copy(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint64_t mask[],
                 uint32_t repeatTimes, const CopyRepeatParams &params, TWIN_HERE)
{
    twin::CopyRep<isSetMask>(dst, src, mask, repeatTimes, params, where);
}

/// 8 elements per repeat, each into a block of its own.
template <typename T>
inline void Brcb(const LocalTensor<T> &dst, const LocalTensor<T> &src, uint32_t repeatTimes,
                 const BrcbRepeatParams &params, TWIN_HERE)
{
    twin::BrcbIssue(dst, src, repeatTimes, params, where);
}
/// dst[i] = the element at srcBaseAddr + srcOffset[i] bytes.
template <typename T>
inline void Gather(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                   const LocalTensor<uint32_t> &srcOffset, uint32_t srcBaseAddr, uint32_t count,
                   TWIN_HERE)
{
    twin::GatherIssue(dst, src, srcOffset, srcBaseAddr, count, where);
}
/// first, first + 1, ..
template <typename T>
inline void CreateVecIndex(LocalTensor<T> dst, const T &firstValue, uint32_t count, TWIN_HERE)
{
    twin::ArithIssue("CreateVecIndex", dst, firstValue, static_cast<T>(1), count, where);
}
/// first, first + diff, .. computed from the index, not by adding up.
template <typename T>
inline void ArithProgression(const LocalTensor<T> &dst, T firstValue, T diffValue, int32_t count,
                             TWIN_HERE)
{
    twin::ArithIssue("ArithProgression", dst, firstValue, diffValue, static_cast<uint32_t>(count),
                     where);
}

/// One 16 x 16 block of 16-bit elements.
template <typename T>
inline void Transpose(const LocalTensor<T> &dst, const LocalTensor<T> &src, TWIN_HERE)
{
    static_assert(twin::kOneOf<T, half, int16_t, uint16_t>,
                  "Transpose moves a 16 x 16 block of half or 16-bit integers");
    twin::Issue<twin::Pipe::V>(
        "Transpose", where,
        [&](auto &i) {
            twin::RequireUb(i, dst, "dst");
            i.NoOverlap(dst, 512, src, 512, true).Reads(src, 256).Writes(dst, 256).Lanes(256, 128);
        },
        [=] { twin::P().transpose16(dst.Host(), src.Host()); });
}
/// Sixteen blocks against sixteen blocks.
template <typename T>
inline void TransDataTo5HD(const LocalTensor<T> (&dstList)[16], const LocalTensor<T> (&srcList)[16],
                           const TransDataTo5HDParams &params, TWIN_HERE)
{
    twin::TransDataIssue(dstList, srcList, params, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_MISC_H
