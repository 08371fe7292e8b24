// SPDX-License-Identifier: Apache-2.0
//
// vec_select.h - Compare, CompareScalar, Select (rules 4.6). A mask holds one bit per lane, lowest
// first. Select's two tensor modes scribble on the reserved 8 KB above the usable UB; a kernel
// can't name that memory here, so nothing has to be poisoned.
#ifndef FLA_TWIN_API_VEC_SELECT_H
#define FLA_TWIN_API_VEC_SELECT_H

#include "vec_common.h"

namespace AscendC
{

/// Order matters: it is twin::Cmp's.
enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t {
    VSEL_CMPMASK_SPR = 0,
    VSEL_TENSOR_SCALAR_MODE,
    VSEL_TENSOR_TENSOR_MODE
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// int32 can be compared for equality only (the real headers let the rest through).
template <typename T, typename U, typename I>
TWIN_RULE void RequireCompare(I &i, const LocalTensor<U> &d, AscendC::CMPMODE mode, uint32_t n)
{
    RequireUb(i, d, "dst");
    i.Require(!std::is_same_v<T, int32_t> || mode == AscendC::CMPMODE::EQ, "compare-type",
              "int32 knows EQ only: cast to float", "mode %u on int32",
              static_cast<uint32_t>(mode));
    i.Require(uint64_t(n) * sizeof(T) % 256 == 0, "compare-multiple",
              "round the count up to 256 bytes of lanes",
              "%u elements are not a multiple of 256 bytes", n);
}

/// Bits out: a repeat of 256 bytes of lanes yields 8 or 16 bytes.
template <typename T, typename U>
inline void CompareIssue(const LocalTensor<U> &d, const LocalTensor<T> &a, const LocalTensor<T> &b,
                         AscendC::CMPMODE mode, uint32_t n, Where where)
{
    static_assert(kOneOf<T, float, half, int32_t> && sizeof(U) == 1,
                  "Compare takes half, float or int32 and writes bytes");
    Issue<Pipe::V>(
        "Compare", where,
        [&](auto &i) {
            RequireCompare<T>(i, d, mode, n);
            i.NoOverlap(d, n / 8, a, uint64_t(n) * sizeof(T), false);
            i.NoOverlap(d, n / 8, b, uint64_t(n) * sizeof(T), false);
            i.Reads(a, n).Reads(b, n).Writes(d, n / 8).Lanes(n, kRepLanes<T>);
        },
        [=] {
            P().compare[At(mode)][At(TyFor<T>())](reinterpret_cast<uint8_t *>(d.Host()), a.Host(),
                                                  b.Host(), n);
        });
}
template <typename T, typename U>
inline void CompareScalarIssue(const LocalTensor<U> &d, const LocalTensor<T> &a, const T &scalar,
                               AscendC::CMPMODE mode, uint32_t n, Where where)
{
    static_assert(kOneOf<T, float, half, int32_t> && sizeof(U) == 1,
                  "Compare takes half, float or int32 and writes bytes");
    const uint32_t bits = ScalarBits(scalar);
    Issue<Pipe::V>(
        "CompareScalar", where,
        [&](auto &i) {
            RequireCompare<T>(i, d, mode, n);
            i.NoOverlap(d, n / 8, a, uint64_t(n) * sizeof(T), false);
            i.Reads(a, n).Writes(d, n / 8).Lanes(n, kRepLanes<T>);
        },
        [=] {
            P().compareScalar[At(mode)][At(TyFor<T>())](reinterpret_cast<uint8_t *>(d.Host()),
                                                        a.Host(), bits, n);
        });
}

/// SPR mode repeats the bits of one repeat for every repeat.
template <typename T>
inline uint32_t SelectPeriod(AscendC::SELMODE mode)
{
    return mode == AscendC::SELMODE::VSEL_CMPMASK_SPR ? kRepLanes<T> : 0;
}
/// Only as many mask bits are read as lanes are decided; both forms share this.
template <typename T, typename U, typename I>
TWIN_RULE void DeclareSelect(I &i, const LocalTensor<T> &d, const LocalTensor<U> &mask,
                             const LocalTensor<T> &a, AscendC::SELMODE mode, uint32_t n)
{
    RequireUb(i, d, "dst");
    const uint32_t bits =
        mode == AscendC::SELMODE::VSEL_CMPMASK_SPR && n > kRepLanes<T> ? kRepLanes<T> : n;
    i.Reads(mask, Extent{0, (bits + 7) / 8});
    i.NoOverlap(d, uint64_t(n) * sizeof(T), a, uint64_t(n) * sizeof(T), true);
    i.Reads(a, n);
}

/// Bit 1 takes the first source. Unlike a multiplication by 0 or 1 this does not turn inf into nan.
template <typename T, typename U>
inline void SelectIssue(const LocalTensor<T> &d, const LocalTensor<U> &mask,
                        const LocalTensor<T> &a, const LocalTensor<T> &b, AscendC::SELMODE mode,
                        uint32_t n, Where where)
{
    static_assert(kReal<T>, "Select exists for half and float");
    const uint32_t period = SelectPeriod<T>(mode);
    Issue<Pipe::V>(
        "Select", where,
        [&](auto &i) {
            i.Require(mode != AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, "select-mode",
                      "two tensors want VSEL_CMPMASK_SPR or VSEL_TENSOR_TENSOR_MODE",
                      "scalar mode with a tensor");
            DeclareSelect(i, d, mask, a, mode, n);
            i.NoOverlap(d, uint64_t(n) * sizeof(T), b, uint64_t(n) * sizeof(T), true);
            i.Reads(b, n).Writes(d, n).Lanes(n, kRepLanes<T>);
        },
        [=] {
            P().select(d.Host(), reinterpret_cast<const uint8_t *>(mask.Host()), a.Host(), b.Host(),
                       n, sizeof(T), period);
        });
}
/// The other source is one value for all lanes.
template <typename T, typename U>
inline void SelectScalarIssue(const LocalTensor<T> &d, const LocalTensor<U> &mask,
                              const LocalTensor<T> &a, T scalar, AscendC::SELMODE mode, uint32_t n,
                              Where where)
{
    static_assert(kReal<T>, "Select exists for half and float");
    const uint32_t bits = ScalarBits(scalar);
    Issue<Pipe::V>(
        "Select", where,
        [&](auto &i) {
            i.Require(mode == AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, "select-mode",
                      "a scalar wants VSEL_TENSOR_SCALAR_MODE", "mode %u with a scalar",
                      static_cast<uint32_t>(mode));
            DeclareSelect(i, d, mask, a, mode, n);
            i.Writes(d, n).Lanes(n, kRepLanes<T>);
        },
        [=] {
            P().selectScalar(d.Host(), reinterpret_cast<const uint8_t *>(mask.Host()), a.Host(),
                             bits, n, sizeof(T), 0);
        });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T, typename U>
inline void Compare(const LocalTensor<U> &dst, const LocalTensor<T> &src0,
                    const LocalTensor<T> &src1, CMPMODE mode, uint32_t count, TWIN_HERE)
{
    twin::CompareIssue(dst, src0, src1, mode, count, where);
}
template <typename T, typename U>
inline void CompareScalar(const LocalTensor<U> &dst, const LocalTensor<T> &src, const T scalar,
                          CMPMODE mode, uint32_t count, TWIN_HERE)
{
    twin::CompareScalarIssue(dst, src, scalar, mode, count, where);
}
template <typename T, typename U>
inline void Select(const LocalTensor<T> &dst, const LocalTensor<U> &mask,
                   const LocalTensor<T> &src0, const LocalTensor<T> &src1, SELMODE mode,
                   uint32_t count, TWIN_HERE)
{
    twin::SelectIssue(dst, mask, src0, src1, mode, count, where);
}
template <typename T, typename U>
inline void Select(const LocalTensor<T> &dst, const LocalTensor<U> &mask,
                   const LocalTensor<T> &src0, T scalar, SELMODE mode, uint32_t count, TWIN_HERE)
{
    twin::SelectScalarIssue(dst, mask, src0, scalar, mode, count, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_VEC_SELECT_H
