// SPDX-License-Identifier: Apache-2.0
//
// rep.h - from a function over n contiguous elements to the mask-and-repeat form of a vector call.
//
// WalkRep cuts a level-0 call into contiguous runs of active lanes, in the order the chip executes
// them: a repeat is finished before the next begins, which the accumulate form (dstRepStride 0)
// depends on.
#pragma once

#include "lanes.h"

namespace twin::TWIN_ISA
{

constexpr uint32_t kBlockBytes = 32;

template <typename T>
constexpr uint32_t PerBlock()
{
    return kBlockBytes / sizeof(T);
}

/// Element `lane` of a repeat that starts at p, blocks `blk` apart.
template <typename T>
TWIN_INLINE T *Lane(T *p, uint32_t lane, uint32_t blk)
{
    return p + (lane / PerBlock<T>()) * blk * PerBlock<T>() + lane % PerBlock<T>();
}

struct LaneRun {
    uint32_t first, size;
};

/// Runs of set bits in a 128-bit mask, none crossing a multiple of `limit` lanes.
class LaneRuns
{
  public:
    TWIN_INLINE LaneRuns(const uint64_t mask[2], uint32_t lanes, uint32_t limit)
    {
        uint32_t at = 0;
        while (at < lanes) {
            if (!(mask[at / 64] >> (at % 64) & 1)) {
                ++at;
                continue;
            }
            const uint32_t first = at;
            const uint32_t stop = limit ? (at / limit + 1) * limit : lanes;
            while (at < lanes && at < stop && (mask[at / 64] >> (at % 64) & 1)) {
                ++at;
            }
            runs_[count_++] = {first, at - first};
        }
    }
    uint32_t Count() const { return count_; }
    LaneRun operator[](uint32_t i) const { return runs_[i]; }

  private:
    uint32_t count_ = 0;
    LaneRun runs_[128];
};

constexpr uint32_t Max2(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
constexpr uint32_t Min2(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/// Number of leading lanes when the mask is a prefix, 0 otherwise.
TWIN_INLINE uint32_t PrefixLanes(const uint64_t mask[2], uint32_t lanes)
{
    const uint64_t lo = mask[0], hi = lanes > 64 ? mask[1] : 0;
    if (hi == 0) {
        return (lo & (lo + 1)) == 0 ? static_cast<uint32_t>(__builtin_popcountll(lo)) : 0;
    }
    return lo == ~0ull && (hi & (hi + 1)) == 0
               ? 64 + static_cast<uint32_t>(__builtin_popcountll(hi))
               : 0;
}

/// A contiguous image of one repeat of an operand whose blocks are `blk` apart.
template <uint32_t lanes, typename T>
class Packed
{
  public:
    explicit Packed(uint32_t blk) : blk_(blk) {}
    /// The operand itself when its blocks touch. Whole blocks are read, masked lanes are not used.
    TWIN_INLINE const T *Take(const T *p, uint32_t n)
    {
        if (blk_ == 1) {
            return p;
        }
        for (uint32_t i = 0; i * PerBlock<T>() < n; ++i) {
            __builtin_memcpy(image_ + i * PerBlock<T>(), p + size_t(i) * blk_ * PerBlock<T>(),
                             kBlockBytes);
        }
        return image_;
    }
    TWIN_INLINE void Give(T *p, uint32_t n) const
    {
        for (uint32_t i = 0; blk_ != 1 && i * PerBlock<T>() < n; ++i) {
            const uint32_t rest = Min2(n - i * PerBlock<T>(), PerBlock<T>());
            __builtin_memcpy(p + size_t(i) * blk_ * PerBlock<T>(), image_ + i * PerBlock<T>(),
                             rest * sizeof(T));
        }
    }

  private:
    uint32_t blk_;
    alignas(64) T image_[lanes];
};

/// run(d, a, b, n) handles n contiguous lanes. Out of line: one walk per set of types, not per
/// operation, keeps the table's compile time down and costs a call per repeat.
template <typename D, typename A, typename B, typename F>
__attribute__((noinline)) void WalkRep(D *d, const A *a, const B *b, const RepShape &s, F run)
{
    constexpr uint32_t wide = Max2(Max2(sizeof(D), sizeof(A)), sizeof(B));
    constexpr uint32_t lanes = 256 / wide;
    const size_t dStep = size_t(s.dRep) * PerBlock<D>(), aStep = size_t(s.aRep) * PerBlock<A>(),
                 bStep = size_t(s.bRep) * PerBlock<B>();
    const bool dense = s.dBlk == 1 && s.aBlk == 1 && s.bBlk == 1;
    const uint32_t prefix = PrefixLanes(s.mask, lanes);
    if (prefix > 0) {
        // Repeats that touch are one run. Strided blocks (a row broadcast has stride 0) are packed.
        const bool joined =
            dense && prefix == lanes && dStep == lanes && aStep == lanes && bStep == lanes;
        const uint32_t repeat = joined ? 1 : s.repeat, n = joined ? lanes * s.repeat : prefix;
        Packed<lanes, D> pd(s.dBlk);
        Packed<lanes, A> pa(s.aBlk);
        Packed<lanes, B> pb(s.bBlk);
        for (uint32_t r = 0; r < repeat; ++r) {
            const A *x = pa.Take(a + r * aStep, n);
            const B *y = pb.Take(b + r * bStep, n);
            D *to = d + r * dStep;
            run(const_cast<D *>(pd.Take(to, n)), x, y, n);
            pd.Give(to, n);
        }
        return;
    }
    constexpr uint32_t block = kBlockBytes / wide;  // smallest run that no stride can split
    const LaneRuns runs(s.mask, lanes, dense ? 0 : block);
    for (uint32_t r = 0; r < s.repeat; ++r) {
        for (uint32_t i = 0; i < runs.Count(); ++i) {
            const uint32_t lane = runs[i].first;
            run(Lane(d + r * dStep, lane, s.dBlk), Lane(a + r * aStep, lane, s.aBlk),
                Lane(b + r * bStep, lane, s.bBlk), runs[i].size);
        }
    }
}

}  // namespace twin::TWIN_ISA
