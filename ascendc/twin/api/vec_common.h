// SPDX-License-Identifier: Apache-2.0
//
// vec_common.h - what every vector instruction shares: parameter structs, masks, footprints, rules.
//
// Parameter fields are wider than the device's (uint8_t, uint16_t): a stride that does not fit must
// reach the checker, not be cut off on the way.
#ifndef FLA_TWIN_API_VEC_COMMON_H
#define FLA_TWIN_API_VEC_COMMON_H

#include "../prims/prims.h"
#include "tensor.h"

namespace AscendC
{

enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
constexpr uint64_t MASK_PLACEHOLDER = 0;

struct UnaryRepeatParams {
    UnaryRepeatParams() = default;
    UnaryRepeatParams(uint32_t dstBlk, uint32_t srcBlk, uint32_t dstRep, uint32_t srcRep)
        : dstBlkStride(dstBlk), srcBlkStride(srcBlk), dstRepStride(dstRep), srcRepStride(srcRep)
    {
    }
    uint32_t dstBlkStride = 1, srcBlkStride = 1, dstRepStride = 8, srcRepStride = 8;
};

struct BinaryRepeatParams {
    BinaryRepeatParams() = default;
    BinaryRepeatParams(uint32_t dstBlk, uint32_t src0Blk, uint32_t src1Blk, uint32_t dstRep,
                       uint32_t src0Rep, uint32_t src1Rep)
        : dstBlkStride(dstBlk),
          src0BlkStride(src0Blk),
          src1BlkStride(src1Blk),
          dstRepStride(dstRep),
          src0RepStride(src0Rep),
          src1RepStride(src1Rep)
    {
    }
    uint32_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
    uint32_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

}  // namespace AscendC

/// Declarations and rules run in the checked build only; kept out of line they cost a kernel's
/// compile a third of the time.
#define TWIN_RULE inline __attribute__((noinline))

namespace twin
{
inline namespace TWIN_NS
{

using AscendC::LocalTensor;

// --- types
// ------------------------------------------------------------------------------------------------

template <typename T, typename... Us>
constexpr bool kOneOf = (std::is_same_v<T, Us> || ...);
template <typename T>
constexpr bool kHasTy = kOneOf<T, float, half, int32_t, uint32_t, int16_t, uint16_t>;
template <typename T>
constexpr bool kReal = kOneOf<T, float, half>;

/// Column of the operation tables; unsigned integers share the signed column (same bits).
template <typename T>
constexpr Ty TyFor()
{
    return std::is_same_v<T, float>  ? Ty::kF32
           : std::is_same_v<T, half> ? Ty::kF16
           : sizeof(T) == 4          ? Ty::kI32
                                     : Ty::kI16;
}
template <typename E>
constexpr size_t At(E e)
{
    return static_cast<size_t>(e);
}

template <typename T>
inline uint32_t ScalarBits(const T &value)
{
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <typename T>
constexpr uint32_t kRepLanes = 256 / sizeof(T);
template <typename T>
constexpr uint32_t kBlockLanes = 32 / sizeof(T);

// --- masks
// ------------------------------------------------------------------------------------------------

/// Lanes of one repeat, whichever way the caller spelled them. `count` is what was passed when it
/// was a number of leading lanes, else 0.
struct LaneMask {
    uint64_t bits[2];
    uint32_t count;

    static LaneMask Leading(uint64_t n)
    {
        return {{n >= 64 ? ~0ull : (1ull << n) - 1, n >= 128 ? ~0ull
                                                    : n > 64 ? (1ull << (n - 64)) - 1
                                                             : 0},
                static_cast<uint32_t>(n)};
    }
    static LaneMask Of(uint64_t n) { return Leading(n); }
    static LaneMask Of(const uint64_t mask[2]) { return {{mask[0], mask[1]}, 0}; }
    bool Empty(uint32_t lanes) const { return bits[0] == 0 && (lanes <= 64 || bits[1] == 0); }
};

/// A level-0 call after the mask register had its say: at most two rectangles, the second one being
/// the rest of a counter-mode call.
struct Repeats {
    LaneMask mask;
    uint32_t repeat;
    uint32_t tail;  // lanes of one more, partial repeat (counter mode only)
};

template <bool isSetMask, typename M>
inline Repeats ResolveMask(M mask, uint32_t repeat, uint32_t lanes)
{
    const Registers &regs = Me().regs;
    if (!regs.counterMode) {
        return {isSetMask ? LaneMask::Of(mask) : LaneMask{{regs.mask[0], regs.mask[1]}, 0}, repeat,
                0};
    }
    const uint64_t total = isSetMask ? LaneMask::Of(mask).count : regs.mask[0];
    return {LaneMask::Leading(lanes), static_cast<uint32_t>(total / lanes),
            static_cast<uint32_t>(total % lanes)};
}

// --- footprints
// -------------------------------------------------------------------------------------------

/// The byte ranges a masked, strided operand covers, as extents relative to its tensor.
template <typename F>
inline void ForExtents(const LaneMask &mask, uint32_t lanes, uint32_t elemBytes, uint32_t blk,
                       uint32_t rep, uint32_t repeat, F f)
{
    const uint32_t perBlock = 32 / elemBytes;
    if (repeat == 0) {
        return;
    }
    for (uint32_t at = 0; at < lanes;) {
        if (!(mask.bits[at / 64] >> (at % 64) & 1)) {
            ++at;
            continue;
        }
        const uint32_t first = at;
        // With adjacent blocks a run may cross them; else it ends with its block.
        const uint32_t stop = blk == 1 ? lanes : (at / perBlock + 1) * perBlock;
        while (at < lanes && at < stop && (mask.bits[at / 64] >> (at % 64) & 1)) {
            ++at;
        }
        f(Extent{uint64_t(first / perBlock) * blk * 32 + first % perBlock * elemBytes,
                 (at - first) * elemBytes, repeat, uint64_t(rep) * 32});
    }
}

/// Rules every level-0 operand has. Strides are uint8_t on the device, a few uint16_t.
template <typename I>
TWIN_RULE void RequireMask(I &i, const Repeats &r, uint32_t lanes)
{
    i.Require(r.repeat <= 255, "repeat-range", "split the call or use the count form",
              "repeatTime is %u, at most 255", r.repeat);
    i.Require(r.mask.count <= lanes, "mask-range",
              "a mask of leading lanes goes up to the lanes of one repeat",
              "mask is %u, one repeat has %u lanes", r.mask.count, lanes);
}
template <typename I>
TWIN_RULE void RequireStride(I &i, const char *field, uint32_t value, uint32_t limit)
{
    i.Require(value <= limit, "stride-range",
              "strides count 32-byte blocks and are stored in few bits", "%s is %u, at most %u",
              field, value, limit);
}
template <typename I>
TWIN_RULE void RequireDstStride(I &i, uint32_t dstBlk, uint32_t limit)
{
    RequireStride(i, "dstBlkStride", dstBlk, limit);
    i.Require(dstBlk != 0, "dst-block-stride", "use dstBlkStride 1 or more",
              "dstBlkStride 0 is undefined");
}

/// Start and span in bytes of a strided operand, for the overlap rule.
struct Strided {
    uint64_t start;
    uint32_t blk, rep;
    uint64_t Block(uint32_t r, uint32_t b) const
    {
        return start + (uint64_t(r) * rep + uint64_t(b) * blk) * 32;
    }
};
inline bool Touch(uint64_t a, uint64_t b)
{
    return a < b + 32 && b < a + 32;
}

/// Rules 4.2: inside a repeat dst and src are the same blocks or disjoint; a repeat must not read
/// what the one before it wrote, unless `accumulates` (dst == src1 with a repeat stride of 0).
TWIN_RULE bool OverlapLegal(const Strided &d, const Strided &s, uint32_t repeat, uint32_t blocks,
                            bool accumulates)
{
    if (repeat == 0 || blocks == 0) {
        return true;
    }
    const uint64_t dEnd = d.Block(repeat - 1, blocks - 1) + 32,
                   sEnd = s.Block(repeat - 1, blocks - 1) + 32;
    if (dEnd <= s.start || sEnd <= d.start) {
        return true;
    }
    if (accumulates && d.start == s.start && (d.rep == 0 || s.rep == 0)) {
        return true;
    }
    if (d.start == s.start && d.blk == s.blk && d.rep == s.rep &&
        d.rep >= (blocks - 1) * d.blk + 1) {
        return true;
    }
    for (uint32_t r = 0; r < repeat; ++r) {
        for (uint32_t b = 0; b < blocks; ++b) {
            for (uint32_t c = 0; c < blocks; ++c) {
                const uint64_t at = d.Block(r, b);
                const bool same = b == c && at == s.Block(r, c);
                if ((!same && Touch(at, s.Block(r, c))) ||
                    (r + 1 < repeat && Touch(at, s.Block(r + 1, c)))) {
                    return false;
                }
            }
        }
    }
    return true;
}
template <typename I, typename D, typename S>
TWIN_RULE void RequireOverlap(I &i, const LocalTensor<D> &d, const LocalTensor<S> &s, uint32_t dBlk,
                              uint32_t sBlk, uint32_t dRep, uint32_t sRep, const Repeats &r,
                              bool accumulates)
{
    const uint64_t dStart = d.Region().address, sStart = s.Region().address;
    bool legal;
    if constexpr (sizeof(D) == sizeof(S)) {
        const uint32_t blocks =
            r.mask.count ? (r.mask.count + kBlockLanes<D> - 1) / kBlockLanes<D> : 8;
        legal =
            OverlapLegal({dStart, dBlk, dRep}, {sStart, sBlk, sRep}, r.repeat, blocks, accumulates);
    } else {
        // Unlike widths overtake each other in place: the whole spans must be apart.
        const uint32_t last = r.repeat ? r.repeat - 1 : 0;
        constexpr uint32_t wide = sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S);
        const uint64_t dEnd =
            Strided{dStart, dBlk, dRep}.Block(last, 8 * sizeof(D) / wide - 1) + 32;
        const uint64_t sEnd =
            Strided{sStart, sBlk, sRep}.Block(last, 8 * sizeof(S) / wide - 1) + 32;
        legal = r.repeat == 0 || dEnd <= sStart || sEnd <= dStart;
    }
    i.Require(legal, "overlap", "make dst the very same tensor as src or give it its own bytes",
              "dst at UB %llu and src at UB %llu overlap partly",
              static_cast<unsigned long long>(d.Region().address),
              static_cast<unsigned long long>(s.Region().address));
}

/// A strided operand of a level-0 call.
struct Walk {
    uint32_t blk, rep;
};
enum class Access { kRead, kWrite };
template <typename I, typename T>
TWIN_RULE void DeclareWalk(I &i, const LocalTensor<T> &t, const Repeats &r, uint32_t lanes, Walk w,
                           Access access)
{
    auto touch = [&](const Extent &e) {
        if (access == Access::kRead) {
            i.Reads(t, e);
        } else {
            i.Writes(t, e);
        }
    };
    ForExtents(r.mask, lanes, sizeof(T), w.blk, w.rep, r.repeat, touch);
    if (r.tail) {
        ForExtents(LaneMask::Leading(r.tail), lanes, sizeof(T), w.blk, w.rep, 1, [&](Extent e) {
            e.start += uint64_t(r.repeat) * w.rep * 32;
            touch(e);
        });
    }
}

/// Runs f once for the full repeats and once for a counter-mode rest, with operands moved on.
template <typename F>
inline void ForParts(const Repeats &r, const RepShape &s, F f)
{
    RepShape t = s;
    t.mask[0] = r.mask.bits[0];
    t.mask[1] = r.mask.bits[1];
    t.repeat = r.repeat;
    f(t, 0u);
    if (r.tail) {
        const LaneMask rest = LaneMask::Leading(r.tail);
        t.mask[0] = rest.bits[0];
        t.mask[1] = rest.bits[1];
        t.repeat = 1;
        f(t, r.repeat);
    }
}
template <typename T>
inline T *Blocks(T *p, uint64_t blocks)
{
    return p + blocks * kBlockLanes<T>;
}

template <typename I, typename T>
TWIN_RULE void RequireUb(I &i, const LocalTensor<T> &t, const char *operand)
{
    i.In(t, Space::UB, operand);
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

/// Mask register (rules 4.1). In counter mode the low word is the element count of the whole call.
template <typename T, MaskMode mode = MaskMode::NORMAL>
inline void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow)
{
    twin::Me().regs.mask[0] = maskLow;
    twin::Me().regs.mask[1] = maskHigh;
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
inline void SetVectorMask(int32_t len)
{
    uint64_t *mask = twin::Me().regs.mask;
    if constexpr (mode == MaskMode::COUNTER) {
        mask[0] = static_cast<uint64_t>(len);
        mask[1] = 0;
    } else {
        const twin::LaneMask m = twin::LaneMask::Leading(static_cast<uint64_t>(len));
        mask[0] = m.bits[0];
        mask[1] = m.bits[1];
    }
}
inline void ResetMask()
{
    twin::Me().regs.mask[0] = twin::Me().regs.mask[1] = ~0ull;
}
inline void SetMaskCount()
{
    twin::Me().regs.counterMode = true;
}
inline void SetMaskNorm()
{
    twin::Me().regs.counterMode = false;
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_COMMON_H
