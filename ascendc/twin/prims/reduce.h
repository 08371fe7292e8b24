// SPDX-License-Identifier: Apache-2.0
//
// reduce.h - reductions inside a repeat and over a whole tile.
//
// The chip folds a repeat as a binary tree of neighbours (rules 4.7). Merge is one level of that
// tree on two registers: lanes 0+1, 2+3, ... of both, in order. Half sums in float, rounded once.
#pragma once

#include "elementwise.h"

namespace twin::TWIN_ISA
{

/// Shuffle indices 0, 2, 4 .. over two registers.
TWIN_INLINE VI EvenLanes()
{
    VI m{};
    for (int i = 0; i < kLanes; ++i) {
        m[i] = 2 * i;
    }
    return m;
}

/// One pair of lanes; a nan wins an extreme.
template <Fold op>
TWIN_INLINE VF FoldOf(VF a, VF b)
{
    if constexpr (op == Fold::kSum) {
        return a + b;
    } else if constexpr (op == Fold::kMax) {
        return ((a > b) | (a != a)) ? a : b;
    } else {
        return ((a < b) | (a != a)) ? a : b;
    }
}
template <Fold op>
TWIN_INLINE VF Merge(VF a, VF b)
{
    return FoldOf<op>(__builtin_shuffle(a, b, EvenLanes()),
                      __builtin_shuffle(a, b, EvenLanes() + 1));
}
/// Stands in for a masked lane: it leaves the others' result alone.
template <Fold op>
TWIN_INLINE float Identity()
{
    return op == Fold::kSum ? 0.0f : BitsFloat(op == Fold::kMax ? 0xff800000u : 0x7f800000u);
}

/// `levels` tree levels over `lanes` floats in place; lanes >> levels results at the front.
template <Fold op, uint32_t lanes, uint32_t levels>
TWIN_INLINE void FoldTree(float *t)
{
    VF v[lanes / kLanes];
    uint32_t n = lanes / kLanes;
    for (uint32_t i = 0; i < n; ++i) {
        v[i] = Load(t + i * kLanes);
    }
#pragma GCC unroll 8
    for (uint32_t level = 0; level < levels; ++level) {
        // Two registers make one; a last single one folds onto itself.
#pragma GCC unroll 16
        for (uint32_t i = 0; i < (n + 1) / 2; ++i) {
            v[i] = Merge<op>(v[2 * i], n > 1 ? v[2 * i + 1] : v[2 * i]);
        }
        n = (n + 1) / 2;
    }
    for (uint32_t i = 0; i < n; ++i) {
        Store(t + i * kLanes, v[i]);
    }
}

/// 256 bytes.
template <typename T>
constexpr uint32_t kRepLanes = 256 / sizeof(T);
/// Whether a lane takes part.
template <typename T>
TWIN_INLINE bool LaneOn(const uint64_t mask[2], uint32_t lane)
{
    return mask[lane / 64] >> (lane % 64) & 1;
}

/// The active lanes of one repeat as floats; `identity` where masked.
template <typename T>
TWIN_INLINE void LoadLanes(float *t, const T *a, const FoldShape &s, float identity)
{
    constexpr uint32_t lanes = kRepLanes<T>;
    const uint32_t prefix = PrefixLanes(s.mask, lanes);
    if (s.aBlk == 1 && prefix > 0) {
        for (uint32_t i = 0; i < prefix; ++i) {
            t[i] = Widen(a[i]);
        }
        for (uint32_t i = prefix; i < lanes; ++i) {
            t[i] = identity;
        }
        return;
    }
    for (uint32_t i = 0; i < lanes; ++i) {
        t[i] = LaneOn<T>(s.mask, i) ? Widen(*Lane(a, i, s.aBlk)) : identity;
    }
}

/// Folds groups of 2^levels neighbouring lanes; a group with no active lane leaves its result
/// alone.
template <Fold op, typename T, uint32_t levels>
void FoldGroups(void *d, const void *a, const FoldShape &s)
{
    constexpr uint32_t lanes = kRepLanes<T>, group = 1u << levels, results = lanes >> levels;
    T *dst = static_cast<T *>(d);
    const T *src = static_cast<const T *>(a);
    // Which results exist depends on the mask alone, so it is worked out once.
    bool live[results];
    bool all = true;
    for (uint32_t g = 0; g < results; ++g) {
        live[g] = false;
        for (uint32_t i = 0; i < group; ++i) {
            live[g] |= LaneOn<T>(s.mask, g * group + i);
        }
        all &= live[g];
    }
    // The usual call, all lanes of adjacent blocks, needs no lane by lane load.
    const bool whole = kIsFloat<T> && s.aBlk == 1 && PrefixLanes(s.mask, lanes) == lanes;
    for (uint32_t r = 0; r < s.repeat; ++r) {
        float t[lanes];
        const T *from = src + size_t(r) * s.aRep * PerBlock<T>();
        if (whole) {
            __builtin_memcpy(t, from, sizeof(t));
        } else {
            LoadLanes(t, from, s, Identity<op>());
        }
        FoldTree<op, lanes, levels>(t);
        T *to = dst + size_t(r) * s.dstStep;
        for (uint32_t g = 0; g < results; ++g) {
            if (all || live[g]) {
                to[g] = Narrow<T>(t[g]);
            }
        }
    }
}

// Levels of the tree that fold a block, and a whole repeat.
constexpr uint32_t Log2(uint32_t v)
{
    return v <= 1 ? 0 : 1 + Log2(v / 2);
}
template <typename T>
constexpr uint32_t kBlockLevels = Log2(PerBlock<T>());
template <typename T>
constexpr uint32_t kWholeLevels = Log2(kRepLanes<T>);

struct Best {
    float value;
    uint32_t lane;
};

/// The extreme lane of one repeat; the first one wins a tie, a nan wins everything.
template <Fold op, typename T>
TWIN_INLINE Best BestLane(const T *a, const FoldShape &s)
{
    Best best{Identity<op>(), ~0u};
    for (uint32_t i = 0; i < kRepLanes<T>; ++i) {
        if (!LaneOn<T>(s.mask, i)) {
            continue;
        }
        const float v = Widen(*Lane(a, i, s.aBlk));
        const bool better = op == Fold::kMax ? v > best.value : v < best.value;
        if (best.lane == ~0u || (best.value == best.value && (better || v != v))) {
            best = {v, i};
        }
    }
    return best;
}

/// An index is stored as raw bits in the element type, as the chip does.
template <typename T>
TWIN_INLINE void StoreIndex(T *d, uint32_t index)
{
    __builtin_memcpy(d, &index, sizeof(T));
}

template <Fold op, typename T>
void WholeIndex(void *d, const void *a, const FoldShape &s, FoldOut out)
{
    const T *src = static_cast<const T *>(a);
    for (uint32_t r = 0; r < s.repeat; ++r) {
        const Best best = BestLane<op>(src + size_t(r) * s.aRep * PerBlock<T>(), s);
        T *to = static_cast<T *>(d) + size_t(r) * s.dstStep;
        if (best.lane == ~0u) {
            continue;
        }
        switch (out) {
            case FoldOut::kValue:
                to[0] = Narrow<T>(best.value);
                break;
            case FoldOut::kValueIndex:
                to[0] = Narrow<T>(best.value);
                StoreIndex(to + 1, best.lane);
                break;
            case FoldOut::kIndexValue:
                StoreIndex(to, best.lane);
                to[1] = Narrow<T>(best.value);
                break;
            case FoldOut::kIndex:
                // ONLY_INDEX steps in 4-byte units whatever the type.
                __builtin_memcpy(static_cast<uint32_t *>(d) + size_t(r) * s.dstStep, &best.lane, 4);
                break;
        }
    }
}

/// ReduceSum/Max/Min over n elements: repeats folded one after the other.
template <Fold op, typename T>
void FoldAll(void *d, const void *a, uint32_t n, bool index)
{
    constexpr uint32_t lanes = kRepLanes<T>;
    const T *src = static_cast<const T *>(a);
    // The chip keeps the running value in a register as wide as float.
    float total = 0;
    uint32_t where = 0;
    for (uint32_t i = 0; i < n; i += lanes) {
        const uint32_t m = Min2(lanes, n - i);
        // The last repeat may be short: the missing lanes are masked.
        FoldShape s{{m >= 64 ? ~0ull : (1ull << m) - 1, m >= 128 ? ~0ull
                                                        : m > 64 ? (1ull << (m - 64)) - 1
                                                                 : 0},
                    1,
                    1,
                    1,
                    8};
        if constexpr (op == Fold::kSum) {
            float t[lanes];
            LoadLanes(t, src + i, s, 0.0f);
            FoldTree<op, lanes, kWholeLevels<T>>(t);
            total = i == 0 ? t[0] : total + t[0];
        } else {
            const Best best = BestLane<op>(src + i, s);
            const bool better = op == Fold::kMax ? best.value > total : best.value < total;
            if (i == 0 || (total == total && (better || best.value != best.value))) {
                total = best.value;
                where = i + best.lane;
            }
        }
    }
    T *dst = static_cast<T *>(d);
    dst[0] = Narrow<T>(total);
    if (index) {
        StoreIndex(dst + 1, where);
    }
}

}  // namespace twin::TWIN_ISA
