// SPDX-License-Identifier: Apache-2.0
//
// data_copy.h - DataCopy and DataCopyPad between GM, UB and L1, and Nd2Nz (rules 3.1 to 3.3).
//
// The pipe follows from the two ends: into a local store MTE2, out to GM MTE3, UB to UB the vector
// pipe. There is no path between UB and L1, and on an AIC none from GM to UB; the checker says so.
#ifndef FLA_TWIN_API_DATA_COPY_H
#define FLA_TWIN_API_DATA_COPY_H

#include "vec_common.h"

namespace AscendC
{

/// Lengths and strides in 32-byte blocks; a stride is the gap from tail to head.
struct DataCopyParams {
    DataCopyParams() = default;
    DataCopyParams(uint32_t count, uint32_t len, uint32_t src, uint32_t dst)
        : blockCount(count), blockLen(len), srcStride(src), dstStride(dst)
    {
    }
    uint32_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0;
};

/// For DataCopyPad: blockLen and the GM stride are bytes, the UB stride counts 32-byte blocks.
struct DataCopyExtParams {
    DataCopyExtParams() = default;
    DataCopyExtParams(uint32_t count, uint32_t len, uint32_t src, uint32_t dst, uint32_t rsvIn)
        : blockCount(count), blockLen(len), srcStride(src), dstStride(dst), rsv(rsvIn)
    {
    }
    uint32_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

/// Paddings in elements of the tensor; the value arrives as raw bits.
struct DataCopyPadParams {
    DataCopyPadParams() = default;
    DataCopyPadParams(bool pad, uint32_t left, uint32_t right, uint64_t value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value)
    {
    }
    bool isPad = false;
    uint32_t leftPadding = 0, rightPadding = 0;
    uint64_t paddingValue = 0;
};

template <typename T>
struct DataCopyPadExtParams {
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, uint32_t left, uint32_t right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value)
    {
    }
    bool isPad = false;
    uint32_t leftPadding = 0, rightPadding = 0;
    T paddingValue{};
};

/// GM side in elements, L1 side in 32-byte units. srcDValue has 16 bits: a row stride of 65536
/// elements and more can't be said, which long [T, H, D] layouts run into.
struct Nd2NzParams {
    Nd2NzParams() = default;
    Nd2NzParams(uint32_t ndNumIn, uint32_t nValueIn, uint32_t dValueIn,
                uint32_t srcNdMatrixStrideIn, uint32_t srcDValueIn, uint32_t dstNzC0StrideIn,
                uint32_t dstNzNStrideIn, uint32_t dstNzMatrixStrideIn)
        : ndNum(ndNumIn),
          nValue(nValueIn),
          dValue(dValueIn),
          srcNdMatrixStride(srcNdMatrixStrideIn),
          srcDValue(srcDValueIn),
          dstNzC0Stride(dstNzC0StrideIn),
          dstNzNStride(dstNzNStrideIn),
          dstNzMatrixStride(dstNzMatrixStrideIn)
    {
    }
    uint32_t ndNum = 0, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0;
    uint32_t dstNzC0Stride = 0, dstNzNStride = 0, dstNzMatrixStride = 0;
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

using AscendC::GlobalTensor;

/// A field of the instruction that must hold this value, counted in its own unit.
template <typename I>
TWIN_RULE void RequireField(I &i, const char *field, uint32_t value, uint32_t low, uint32_t high)
{
    i.Require(value >= low && value <= high, "copy-range", "cut the copy into several",
              "%s is %u, allowed are %u to %u", field, value, low, high);
}
template <typename I>
TWIN_RULE void RequireDmaParams(I &i, const AscendC::DataCopyParams &p)
{
    RequireField(i, "blockCount", p.blockCount, 0, 4095);
    RequireField(i, "blockLen", p.blockLen, 0, 65535);
    RequireField(i, "srcStride", p.srcStride, 0, 65535);
    RequireField(i, "dstStride", p.dstStride, 0, 65535);
}
template <typename I>
TWIN_RULE void RequireWholeBlocks(I &i, uint64_t bytes)
{
    i.Require(bytes % 32 == 0, "copy-multiple",
              "use DataCopyPad, or round the count up to 32 bytes",
              "%llu bytes are not a multiple of 32: the chip would drop the rest",
              static_cast<unsigned long long>(bytes));
}

/// The device counts gaps, the primitives count from start to start.
inline BlockCopy DmaShape(const AscendC::DataCopyParams &p)
{
    return {p.blockLen ? p.blockCount : 0, p.blockLen * 32, size_t(p.blockLen + p.srcStride) * 32,
            size_t(p.blockLen + p.dstStride) * 32};
}
// A block copy as the checker sees its two ends.
inline Extent SrcExtent(const BlockCopy &s)
{
    return {0, s.bytes, s.blocks, s.srcStep};
}
inline Extent DstExtent(const BlockCopy &s)
{
    return {0, s.bytes, s.blocks, s.dstStep};
}
inline uint64_t Bytes(const BlockCopy &s)
{
    return uint64_t(s.blocks) * s.bytes;
}

/// Stores to GM honour SetAtomicAdd of the issuing core.
template <typename T>
inline void StoreBlocks(T *d, const T *a, const BlockCopy &s, bool add)
{
    if (!add) {
        P().copyBlocks(d, a, s);
    } else if constexpr (kHasTy<T>) {
        P().addBlocks[At(TyFor<T>())](d, a, s);
    } else if constexpr (std::is_same_v<T, bfloat16_t>) {
        P().addBlocksBf16(d, a, s);
    }
}
/// An atomic store reads what it adds to, so two cores that add to one place without an order
/// between them are a race here: float sums would depend on who came first.
template <typename T, typename I, typename D>
TWIN_RULE void DeclareStore(I &i, const D &d, const BlockCopy &s, uint32_t atomic)
{
    i.Require(atomic <= 1, "atomic-kind", "only SetAtomicAdd is modelled", "atomic mode %u",
              atomic);
    if (atomic) {
        i.Require(kHasTy<T> || std::is_same_v<T, bfloat16_t>, "atomic-type",
                  "accumulate in half, bf16, float or int", "this element type has no atomic add");
        i.Reads(d, DstExtent(s));
    }
    i.Writes(d, DstExtent(s));
}

/// GM into UB or L1. Which of the two a core may name follows from its type: the checker refuses
/// the other, where the device would silently skip or misdirect the copy.
template <typename T, typename Rules>
inline void GmToLocal(const LocalTensor<T> &d, const GlobalTensor<T> &a, const BlockCopy &s,
                      Where where, const Rules &rules)
{
    Issue<Pipe::MTE2>(
        "DataCopy", where,
        [&](auto &i) {
            rules(i);
            const Space space = d.GetSpace();
            i.Require(space == Space::UB || space == Space::L1, "copy-path",
                      "copy GM to VECIN/VECCALC or A1/B1",
                      "GM to this position has no plain DataCopy");
            i.Reads(a, SrcExtent(s)).Writes(d, DstExtent(s));
            i.Moves(space == Space::UB ? Route::kGmToUb : Route::kGmToL1, Bytes(s));
        },
        [=] { P().copyBlocks(d.Host(), a.Host(), s); });
}
/// UB or L1 out to GM.
template <typename T, typename Rules>
inline void LocalToGm(const GlobalTensor<T> &d, const LocalTensor<T> &a, const BlockCopy &s,
                      Where where, const Rules &rules)
{
    const uint32_t atomic = Me().regs.atomic;
    Issue<Pipe::MTE3>(
        "DataCopy", where,
        [&](auto &i) {
            rules(i);
            const Space space = a.GetSpace();
            i.Require(space == Space::UB || space == Space::L1, "copy-path",
                      "L0C leaves through Fixpipe only", "this position has no DataCopy to GM");
            i.Reads(a, SrcExtent(s));
            DeclareStore<T>(i, d, s, atomic);
            i.Moves(space == Space::UB ? Route::kUbToGm : Route::kL1ToGm, Bytes(s));
        },
        [=] { StoreBlocks(d.Host(), a.Host(), s, atomic == 1); });
}

/// UB to UB on the vector pipe; L1 to the bias table or the fixpipe buffer on MTE1 / FIX.
/// The pipe is data here, because the destination's position is.
template <typename T, typename Rules>
inline void LocalToLocal(const LocalTensor<T> &d, const LocalTensor<T> &a, const BlockCopy &s,
                         Where where, const Rules &rules)
{
    auto declare = [&](auto &i) {
        rules(i);
        const Space from = a.GetSpace(), to = d.GetSpace();
        const bool inUb = from == Space::UB && to == Space::UB;
        const bool tables = from == Space::L1 && (to == Space::BT || to == Space::FB);
        i.Require(inUb || tables, "copy-path",
                  "UB and L1 meet only in GM: store with MTE3, load with MTE2",
                  "no path between these two local positions");
        i.Reads(a, SrcExtent(s)).Writes(d, DstExtent(s));
        i.Moves(inUb              ? Route::kUbToUb
                : to == Space::BT ? Route::kL1ToBt
                                  : Route::kL1ToFb,
                Bytes(s));
    };
    auto effect = [=] { P().copyBlocks(d.Host(), a.Host(), s); };
    // By the source: a copy that leaves UB belongs to the vector unit even when it has no way to
    // go, so that the fault names the missing path and not the pipe.
    if (a.GetSpace() == Space::UB) {
        Issue<Pipe::V>("DataCopy", where, declare, effect);
    } else if (d.GetSpace() == Space::FB) {
        Issue<Pipe::FIX>("DataCopy", where, declare, effect);
    } else {
        Issue<Pipe::MTE1>("DataCopy", where, declare, effect);
    }
}

/// Strides to BT count 64 bytes and to FB 128 on the destination side (rules 3.6).
inline BlockCopy TableShape(const AscendC::DataCopyParams &p, Space to)
{
    BlockCopy s = DmaShape(p);
    const uint32_t unit = to == Space::BT ? 64 : to == Space::FB ? 128 : 32;
    s.bytes = p.blockLen * unit;
    s.srcStep = s.bytes + size_t(p.srcStride) * 32;
    s.dstStep = s.bytes + size_t(p.dstStride) * unit;
    return s;
}

/// The count form is one block; a remainder below 32 bytes would be dropped by the chip.
template <typename T, typename Call>
inline void CopyCount(uint32_t count, Where where, const Call &call)
{
    const uint64_t bytes = uint64_t(count) * sizeof(T);
    call(BlockCopy{bytes ? 1u : 0u, static_cast<uint32_t>(bytes), static_cast<size_t>(bytes),
                   static_cast<size_t>(bytes)},
         where, [=](auto &i) { RequireWholeBlocks(i, bytes); });
}

// --- DataCopyPad
// ------------------------------------------------------------------------------------------

/// Bytes of whole 32-byte lines.
inline uint32_t Up32(uint64_t bytes)
{
    return static_cast<uint32_t>((bytes + 31) / 32 * 32);
}

template <typename I>
TWIN_RULE void RequirePadParams(I &i, const AscendC::DataCopyExtParams &p, uint32_t elemBytes)
{
    RequireField(i, "blockCount", p.blockCount, 0, 4095);
    RequireField(i, "blockLen", p.blockLen, 0, 2097151);
    i.Require(p.blockLen % elemBytes == 0, "copy-multiple",
              "blockLen is in bytes of whole elements",
              "blockLen %u is not a multiple of the element size %u", p.blockLen, elemBytes);
}

/// GM to UB, each block on its own 32-byte line. What the pad leaves open is undefined.
template <typename T>
inline void PadIn(const LocalTensor<T> &d, const GlobalTensor<T> &a,
                  const AscendC::DataCopyExtParams &p, bool isPad, uint32_t left, uint32_t right,
                  uint64_t value, Where where)
{
    constexpr uint32_t size = sizeof(T);
    const uint32_t used = left * size + p.blockLen + right * size, line = Up32(used);
    const BlockCopy s{p.blockLen ? p.blockCount : 0, p.blockLen, size_t(p.blockLen) + p.srcStride,
                      size_t(line) + size_t(p.dstStride) * 32};
    // isPad without paddings repeats the block's first element up to the end of its line.
    // Only the gap to the next line is free to fill then.
    const bool repeatFirst = isPad && left == 0 && right == 0;
    Issue<Pipe::MTE2>(
        "DataCopyPad", where,
        [&](auto &i) {
            RequireUb(i, d, "dst");
            RequirePadParams(i, p, size);
            i.Require(left * size <= 32 && right * size <= 32, "pad-range",
                      "pad at most 32 bytes on a side", "leftPadding %u, rightPadding %u elements",
                      left, right);
            i.Require(size < 8 || value == 0, "pad-value", "64-bit types pad with zero only",
                      "paddingValue is not 0");
            i.Reads(a, SrcExtent(s));
            // Padding that isPad does not switch on is there, but with whatever the chip left in
            // it.
            auto span = [&](uint32_t start, uint32_t bytes, bool defined) {
                if (bytes != 0 && s.blocks != 0) {
                    const Extent e{start, bytes, s.blocks, s.dstStep};
                    if (defined) {
                        i.Writes(d, e);
                    } else {
                        i.WritesUndefined(d, e);
                    }
                }
            };
            span(0, left * size, isPad);
            span(left * size, p.blockLen, true);
            span(left * size + p.blockLen, right * size, isPad);
            span(used, line - used, repeatFirst);
            i.Moves(Route::kGmToUb, Bytes(s));
        },
        [=] {
            if (!repeatFirst) {
                P().copyPad(d.Host(), a.Host(), s,
                            {size, isPad ? left : 0, isPad ? right : 0, value});
                return;
            }
            // Each block repeats its own first element, so the pad value differs per block.
            const uint32_t fill = (line - used) / size;
            for (uint32_t b = 0; b < s.blocks; ++b) {
                const char *from = reinterpret_cast<const char *>(a.Host()) + b * s.srcStep;
                uint64_t first = 0;
                std::memcpy(&first, from, size);
                P().copyPad(reinterpret_cast<char *>(d.Host()) + b * s.dstStep, from,
                            {1, s.bytes, 0, 0}, {size, 0, fill, first});
            }
        });
}

/// UB to GM, exact bytes.
/// What goes out is exactly blockLen bytes per block, so neighbours in GM are never touched.
template <typename T>
inline void PadOut(const GlobalTensor<T> &d, const LocalTensor<T> &a,
                   const AscendC::DataCopyExtParams &p, Where where)
{
    const BlockCopy s{p.blockLen ? p.blockCount : 0, p.blockLen,
                      size_t(Up32(p.blockLen)) + size_t(p.srcStride) * 32,
                      size_t(p.blockLen) + p.dstStride};
    const uint32_t atomic = Me().regs.atomic;
    Issue<Pipe::MTE3>(
        "DataCopyPad", where,
        [&](auto &i) {
            RequireUb(i, a, "src");
            RequirePadParams(i, p, sizeof(T));
            i.Reads(a, SrcExtent(s));
            DeclareStore<T>(i, d, s, atomic);
            i.Moves(Route::kUbToGm, Bytes(s));
        },
        [=] { StoreBlocks(d.Host(), a.Host(), s, atomic == 1); });
}

// --- Nd2Nz
// ------------------------------------------------------------------------------------------------

/// Row-major GM to fractal order in L1, the cube's way in. Columns are padded with zeros to C0,
/// rows are not padded at all: what L1 held below row nValue stays, and the checker keeps it
/// undefined unless somebody cleared it.
template <typename T>
inline void Nd2NzCopy(const LocalTensor<T> &d, const GlobalTensor<T> &a,
                      const AscendC::Nd2NzParams &p, Where where)
{
    static_assert(sizeof(T) <= 4, "Nd2Nz moves 8, 16 and 32-bit elements");
    const Nd2Nz s{p.ndNum,     p.nValue,        p.dValue,       p.srcNdMatrixStride,
                  p.srcDValue, p.dstNzC0Stride, p.dstNzNStride, p.dstNzMatrixStride};
    Issue<Pipe::MTE2>(
        "DataCopy Nd2Nz", where,
        [&](auto &i) {
            i.In(d, Space::L1, "dst");
            RequireField(i, "ndNum", p.ndNum, 0, 4095);
            RequireField(i, "nValue", p.nValue, 0, 16384);
            RequireField(i, "dValue", p.dValue, 0, 65535);
            RequireField(i, "srcNdMatrixStride", p.srcNdMatrixStride, 0, 65535);
            i.Require(p.srcDValue >= 1 && p.srcDValue <= 65535, "nd2nz-row-stride",
                      "load row by row (nValue 1) or view the tensor with shorter rows",
                      "srcDValue is %u elements, the field holds 1 to 65535", p.srcDValue);
            RequireField(i, "dstNzC0Stride", p.dstNzC0Stride, 1, 16384);
            RequireField(i, "dstNzNStride", p.dstNzNStride, 1, 16384);
            RequireField(i, "dstNzMatrixStride", p.dstNzMatrixStride, 0, 65535);
            if (p.ndNum == 0 || p.nValue == 0 || p.dValue == 0) {
                return;
            }
            constexpr uint64_t size = sizeof(T);
            const uint32_t strips = (p.dValue + kBlockLanes<T> - 1) / kBlockLanes<T>;
            i.Reads(a, Extent{0, static_cast<uint32_t>(p.dValue * size), p.nValue,
                              p.srcDValue * size, p.ndNum, p.srcNdMatrixStride * size});
            // Rows beyond nValue stay as they are: nothing is declared for them.
            for (uint32_t nd = 0; nd < p.ndNum; ++nd) {
                i.Writes(d, Extent{nd * p.dstNzMatrixStride * size, 32, p.nValue,
                                   p.dstNzNStride * 32ull, strips, p.dstNzC0Stride * 32ull});
            }
            i.Moves(Route::kGmToL1, uint64_t(p.ndNum) * p.nValue * p.dValue * size);
        },
        [=] { P().nd2nz(d.Host(), a.Host(), s, sizeof(T)); });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src, uint32_t count,
                     TWIN_HERE)
{
    twin::CopyCount<T>(count, where,
                       [&](auto s, auto w, auto rules) { twin::GmToLocal(dst, src, s, w, rules); });
}
template <typename T>
inline void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src, uint32_t count,
                     TWIN_HERE)
{
    twin::CopyCount<T>(count, where,
                       [&](auto s, auto w, auto rules) { twin::LocalToGm(dst, src, s, w, rules); });
}
template <typename T>
inline void DataCopy(const LocalTensor<T> &dst, const LocalTensor<T> &src, uint32_t count,
                     TWIN_HERE)
{
    twin::CopyCount<T>(count, where, [&](auto s, auto w, auto rules) {
        twin::LocalToLocal(dst, src, s, w, rules);
    });
}
template <typename T>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const DataCopyParams &params, TWIN_HERE)
{
    twin::GmToLocal(dst, src, twin::DmaShape(params), where,
                    [&](auto &i) { twin::RequireDmaParams(i, params); });
}
template <typename T>
inline void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src,
                     const DataCopyParams &params, TWIN_HERE)
{
    twin::LocalToGm(dst, src, twin::DmaShape(params), where,
                    [&](auto &i) { twin::RequireDmaParams(i, params); });
}
template <typename T>
inline void DataCopy(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                     const DataCopyParams &params, TWIN_HERE)
{
    twin::LocalToLocal(dst, src, twin::TableShape(params, dst.GetSpace()), where,
                       [&](auto &i) { twin::RequireDmaParams(i, params); });
}
template <typename T>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const Nd2NzParams &params, TWIN_HERE)
{
    twin::Nd2NzCopy(dst, src, params, where);
}

// The Ext forms are the ones to use: byte lengths up to 2 MB.
template <typename T>
inline void DataCopyPad(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                        const DataCopyExtParams &params, const DataCopyPadExtParams<T> &pad,
                        TWIN_HERE)
{
    uint64_t value = 0;
    std::memcpy(&value, &pad.paddingValue, sizeof(T));
    twin::PadIn(dst, src, params, pad.isPad, pad.leftPadding, pad.rightPadding, value, where);
}
/// The older form: blockLen is bytes too, but 16 bits wide.
template <typename T>
inline void DataCopyPad(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                        const DataCopyParams &params, const DataCopyPadParams &pad, TWIN_HERE)
{
    twin::PadIn(dst, src,
                {params.blockCount, params.blockLen, params.srcStride, params.dstStride, 0},
                pad.isPad, pad.leftPadding, pad.rightPadding, pad.paddingValue, where);
}
template <typename T>
inline void DataCopyPad(const GlobalTensor<T> &dst, const LocalTensor<T> &src,
                        const DataCopyExtParams &params, TWIN_HERE)
{
    twin::PadOut(dst, src, params, where);
}
template <typename T>
inline void DataCopyPad(const GlobalTensor<T> &dst, const LocalTensor<T> &src,
                        const DataCopyParams &params, TWIN_HERE)
{
    twin::PadOut(dst, src,
                 {params.blockCount, params.blockLen, params.srcStride, params.dstStride, 0},
                 where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_DATA_COPY_H
