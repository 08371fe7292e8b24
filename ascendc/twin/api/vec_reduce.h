// SPDX-License-Identifier: Apache-2.0
//
// vec_reduce.h - reductions (rules 4.7). Mind the argument order: the Block and Pair families take
// (repeat, mask), the Whole family (mask, repeat). dst needs the alignment of its own unit only.
#ifndef FLA_TWIN_API_VEC_REDUCE_H
#define FLA_TWIN_API_VEC_REDUCE_H

#include "vec_common.h"

namespace AscendC
{

enum class ReduceOrder : uint8_t {
    ORDER_VALUE_INDEX = 0,
    ORDER_INDEX_VALUE,
    ORDER_ONLY_VALUE,
    ORDER_ONLY_INDEX
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// How a call folds a repeat: results per repeat, the unit of dstRepStride, and dst's alignment.
struct FoldForm {
    uint32_t group;      // lanes per result
    uint32_t stepBytes;  // one dstRepStride
    uint32_t align;
    uint32_t rate;  // lanes per cycle
};
// Rates (rules 1.3): folding blocks is 7 times faster than folding whole repeats in float.
template <typename T>
constexpr FoldForm kBlockForm = {kBlockLanes<T>, 8 * sizeof(T), 8 * sizeof(T), 64};
template <typename T>
constexpr FoldForm kPairForm = {2, 128, 32, 256 / sizeof(T)};
template <typename T>
constexpr FoldForm kWholeForm = {kRepLanes<T>, sizeof(T), sizeof(T), kRepLanes<T> / 7};

/// The arguments of a level-0 reduction in one order, whichever the call had.
struct FoldCall {
    uint32_t repeat, dstRep, srcBlk, srcRep;
    LaneMask mask;
};
template <bool isSetMask, typename M>
inline FoldCall MakeFold(M mask, int32_t repeat, int32_t dstRep, int32_t srcBlk, int32_t srcRep)
{
    return {static_cast<uint32_t>(repeat), static_cast<uint32_t>(dstRep),
            static_cast<uint32_t>(srcBlk), static_cast<uint32_t>(srcRep),
            isSetMask ? LaneMask::Of(mask) : LaneMask{{Me().regs.mask[0], Me().regs.mask[1]}, 0}};
}
/// int32_t masks are counts; keeps them apart from the bit arrays.
inline uint64_t Count(int32_t n)
{
    return static_cast<uint64_t>(n);
}

template <typename T, typename I>
TWIN_RULE void DeclareFold(I &i, const LocalTensor<T> &d, const LocalTensor<T> &a,
                           const FoldCall &f, const FoldForm &form, uint32_t resultBytes)
{
    RequireUb(i, d, "dst");
    const Repeats r{f.mask, f.repeat, 0};
    RequireMask(i, r, kRepLanes<T>);
    RequireStride(i, "dstRepStride", f.dstRep, 65535);
    RequireStride(i, "srcBlkStride", f.srcBlk, 65535);
    RequireStride(i, "srcRepStride", f.srcRep, 65535);
    DeclareWalk(i, a, r, kRepLanes<T>, {f.srcBlk, f.srcRep}, Access::kRead);
    // Reads are declared lane by lane, results group by group.
    // A group without an active lane leaves its result alone.
    for (uint32_t g = 0; g < kRepLanes<T> / form.group && f.repeat; ++g) {
        bool live = false;
        for (uint32_t k = g * form.group; k < (g + 1) * form.group; ++k) {
            live |= f.mask.bits[k / 64] >> (k % 64) & 1;
        }
        if (live) {
            i.Writes(
                d,
                Extent{g * sizeof(T), resultBytes, f.repeat, uint64_t(f.dstRep) * form.stepBytes},
                form.align);
        }
    }
    i.Lanes(uint64_t(kRepLanes<T>) * f.repeat, form.rate ? form.rate : 1);
}
inline FoldShape ShapeOf(const FoldCall &f, uint32_t dstStep)
{
    return {{f.mask.bits[0], f.mask.bits[1]},
            f.repeat,
            dstStep,
            uint16_t(f.srcBlk),
            uint16_t(f.srcRep)};
}

/// Column of the reduction tables.
template <typename T>
constexpr size_t kFoldColumn = std::is_same_v<T, float> ? 0 : 1;

/// Block, pair and whole sums, block extremes: all value-only folds.
template <typename T>
inline void FoldIssue(const char *name, Prims::FoldFn fn, const LocalTensor<T> &d,
                      const LocalTensor<T> &a, const FoldCall &f, const FoldForm &form, Where where)
{
    static_assert(kReal<T>, "reductions exist for half and float");
    // The device counts dstRepStride in the form's own unit, the primitive in elements.
    const FoldShape shape = ShapeOf(f, f.dstRep * form.stepBytes / sizeof(T));
    Issue<Pipe::V>(
        name, where, [&](auto &i) { DeclareFold(i, d, a, f, form, sizeof(T)); },
        [=] { fn(d.Host(), a.Host(), shape); });
}

/// Value and index of the extreme lane; the order decides what is stored and how far results step.
template <Fold op, typename T>
inline void WholeIndexIssue(const char *name, const LocalTensor<T> &d, const LocalTensor<T> &a,
                            const FoldCall &f, AscendC::ReduceOrder order, Where where)
{
    static_assert(kReal<T>, "reductions exist for half and float");
    using O = AscendC::ReduceOrder;
    const FoldOut out = order == O::ORDER_ONLY_VALUE    ? FoldOut::kValue
                        : order == O::ORDER_ONLY_INDEX  ? FoldOut::kIndex
                        : order == O::ORDER_VALUE_INDEX ? FoldOut::kValueIndex
                                                        : FoldOut::kIndexValue;
    const bool both = out == FoldOut::kValueIndex || out == FoldOut::kIndexValue;
    FoldForm form = kWholeForm<T>;
    form.stepBytes = out == FoldOut::kIndex ? 4 : both ? 2 * sizeof(T) : sizeof(T);
    form.align = form.stepBytes;
    const FoldShape shape =
        ShapeOf(f, out == FoldOut::kIndex ? f.dstRep : f.dstRep * (both ? 2 : 1));
    Issue<Pipe::V>(
        name, where, [&](auto &i) { DeclareFold(i, d, a, f, form, form.stepBytes); },
        [=] { P().wholeIndex[At(op)][kFoldColumn<T>](d.Host(), a.Host(), shape, out); });
}

/// ReduceSum/Max/Min over n elements. The result passes through a scalar register on the chip.
template <Fold op, typename T>
inline void FoldAllIssue(const char *name, const LocalTensor<T> &d, const LocalTensor<T> &a,
                         const LocalTensor<T> &work, uint32_t n, bool index, Where where)
{
    static_assert(kReal<T>, "reductions exist for half and float");
    Issue<Pipe::V>(
        name, where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            RequireUb(i, work, "workLocal");
            i.Reads(a, n);
            i.Writes(d, index ? 2 : 1, sizeof(T)).Lanes(n, kRepLanes<T> / 7);
        },
        [=] {
            if (n) {
                P().foldAll[At(op)][kFoldColumn<T>](d.Host(), a.Host(), n, index);
            }
        });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

// (repeat, mask): one value per block or pair.
#define TWIN_BLOCK_FOLD(Name, fn, form)                                                        \
    template <typename T, bool isSetMask = true>                                               \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t repeat,     \
                     int32_t mask, int32_t dstRepStride, int32_t srcBlkStride,                 \
                     int32_t srcRepStride, TWIN_HERE)                                          \
    {                                                                                          \
        twin::FoldIssue(#Name, fn, dst, src,                                                   \
                        twin::MakeFold<isSetMask>(twin::Count(mask), repeat, dstRepStride,     \
                                                  srcBlkStride, srcRepStride),                 \
                        form, where);                                                          \
    }                                                                                          \
    template <typename T, bool isSetMask = true>                                               \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t repeat,     \
                     const uint64_t mask[], int32_t dstRepStride, int32_t srcBlkStride,        \
                     int32_t srcRepStride, TWIN_HERE)                                          \
    {                                                                                          \
        twin::FoldIssue(                                                                       \
            #Name, fn, dst, src,                                                               \
            twin::MakeFold<isSetMask>(mask, repeat, dstRepStride, srcBlkStride, srcRepStride), \
            form, where);                                                                      \
    }
#define TWIN_FOLD(op) twin::P().blockFold[twin::At(twin::Fold::op)][twin::kFoldColumn<T>]
TWIN_BLOCK_FOLD(BlockReduceSum, TWIN_FOLD(kSum), twin::kBlockForm<T>)
TWIN_BLOCK_FOLD(BlockReduceMax, TWIN_FOLD(kMax), twin::kBlockForm<T>)
TWIN_BLOCK_FOLD(BlockReduceMin, TWIN_FOLD(kMin), twin::kBlockForm<T>)
TWIN_BLOCK_FOLD(PairReduceSum, twin::P().pairSum[twin::kFoldColumn<T>], twin::kPairForm<T>)
#undef TWIN_FOLD
#undef TWIN_BLOCK_FOLD

// The fold comes from the table when the call is made: the effect keeps the function, not the name.
// (mask, repeat): one value per repeat.
template <typename T, bool isSetMask = true>
inline void WholeReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t mask,
                           int32_t repeatTimes, int32_t dstRepStride, int32_t srcBlkStride,
                           int32_t srcRepStride, TWIN_HERE)
{
    twin::FoldIssue("WholeReduceSum", twin::P().wholeSum[twin::kFoldColumn<T>], dst, src,
                    twin::MakeFold<isSetMask>(twin::Count(mask), repeatTimes, dstRepStride,
                                              srcBlkStride, srcRepStride),
                    twin::kWholeForm<T>, where);
}
template <typename T, bool isSetMask = true>
inline void WholeReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                           const uint64_t mask[], int32_t repeatTimes, int32_t dstRepStride,
                           int32_t srcBlkStride, int32_t srcRepStride, TWIN_HERE)
{
    twin::FoldIssue(
        "WholeReduceSum", twin::P().wholeSum[twin::kFoldColumn<T>], dst, src,
        twin::MakeFold<isSetMask>(mask, repeatTimes, dstRepStride, srcBlkStride, srcRepStride),
        twin::kWholeForm<T>, where);
}
/// The same fold with yet another argument order; dstBlkStride has no meaning.
template <typename T, bool isSetMask = true>
inline void RepeatReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t repeat,
                            int32_t elemsInOneRepeat, int32_t, int32_t srcBlkStride,
                            int32_t dstRepStride, int32_t srcRepStride, TWIN_HERE)
{
    twin::FoldIssue("RepeatReduceSum", twin::P().wholeSum[twin::kFoldColumn<T>], dst, src,
                    twin::MakeFold<isSetMask>(twin::Count(elemsInOneRepeat), repeat, dstRepStride,
                                              srcBlkStride, srcRepStride),
                    twin::kWholeForm<T>, where);
}

#define TWIN_EXTREME(Name, All, op)                                                               \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, int32_t mask,          \
                     int32_t repeatTimes, int32_t dstRepStride, int32_t srcBlkStride,             \
                     int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,    \
                     TWIN_HERE)                                                                   \
    {                                                                                             \
        twin::WholeIndexIssue<twin::Fold::op>(                                                    \
            #Name, dst, src,                                                                      \
            twin::MakeFold<isSetMask>(twin::Count(mask), repeatTimes, dstRepStride, srcBlkStride, \
                                      srcRepStride),                                              \
            order, where);                                                                        \
    }                                                                                             \
    template <typename T, bool isSetMask = true>                                                  \
    inline void Name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint64_t mask[], \
                     int32_t repeatTimes, int32_t dstRepStride, int32_t srcBlkStride,             \
                     int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,    \
                     TWIN_HERE)                                                                   \
    {                                                                                             \
        twin::WholeIndexIssue<twin::Fold::op>(                                                    \
            #Name, dst, src,                                                                      \
            twin::MakeFold<isSetMask>(mask, repeatTimes, dstRepStride, srcBlkStride,              \
                                      srcRepStride),                                              \
            order, where);                                                                        \
    }                                                                                             \
    template <typename T>                                                                         \
    inline void All(const LocalTensor<T> &dst, const LocalTensor<T> &src,                         \
                    const LocalTensor<T> &work, int32_t count, bool calIndex = false, TWIN_HERE)  \
    {                                                                                             \
        twin::FoldAllIssue<twin::Fold::op>(#All, dst, src, work, static_cast<uint32_t>(count),    \
                                           calIndex, where);                                      \
    }
TWIN_EXTREME(WholeReduceMax, ReduceMax, kMax)
TWIN_EXTREME(WholeReduceMin, ReduceMin, kMin)
#undef TWIN_EXTREME

template <typename T, bool isSetMask = true>
inline void ReduceSum(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                      const LocalTensor<T> &work, int32_t count, TWIN_HERE)
{
    twin::FoldAllIssue<twin::Fold::kSum>("ReduceSum", dst, src, work, static_cast<uint32_t>(count),
                                         false, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_REDUCE_H
