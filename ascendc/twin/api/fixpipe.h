// SPDX-License-Identifier: Apache-2.0
//
// fixpipe.h - L0C to GM (row major or Nz) and to L1 (Nz, 16-bit only), rules 3.8.
#ifndef FLA_TWIN_API_FIXPIPE_H
#define FLA_TWIN_API_FIXPIPE_H

#include "cube.h"

/// Global, as the device compiler has it.
enum QuantMode_t { NoQuant = 0, F322F16 = 1, F322BF16 = 16 };

namespace AscendC
{

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };
struct FixpipeConfig {
    CO2Layout format;
};
inline constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
inline constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

/// srcStride: rows of a 16-column strip in L0C (M rounded up to 16). dstStride: elements between
/// rows, or 32-byte blocks between strips in Nz.
struct FixpipeParamsV220 {
    FixpipeParamsV220() = default;
    FixpipeParamsV220(uint32_t nSizeIn, uint32_t mSizeIn, uint32_t srcStrideIn,
                      uint32_t dstStrideIn, bool reluEnIn)
        : nSize(nSizeIn),
          mSize(mSizeIn),
          srcStride(srcStrideIn),
          dstStride(dstStrideIn),
          reluEn(reluEnIn)
    {
    }
    FixpipeParamsV220(uint32_t nSizeIn, uint32_t mSizeIn, uint32_t srcStrideIn,
                      uint32_t dstStrideIn, bool reluEnIn, QuantMode_t quant, int64_t deq,
                      uint32_t ndNumIn, uint32_t srcNd, uint32_t dstNd, uint32_t unit,
                      bool channelSplit = false)
        : nSize(nSizeIn),
          mSize(mSizeIn),
          srcStride(srcStrideIn),
          dstStride(dstStrideIn),
          quantPre(quant),
          deqScalar(static_cast<uint64_t>(deq)),
          ndNum(ndNumIn),
          srcNdStride(srcNd),
          dstNdStride(dstNd),
          reluEn(reluEnIn),
          unitFlag(unit),
          isChannelSplit(channelSplit)
    {
    }
    uint32_t nSize = 0, mSize = 0, srcStride = 0, dstStride = 0;
    QuantMode_t quantPre = QuantMode_t::NoQuant;
    uint64_t deqScalar = 0;
    uint32_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
    bool reluEn = false;
    uint32_t unitFlag = 0;
    bool isChannelSplit = false;
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// The conversion is fixed by the two types; quantPre has to say the same.
template <typename T>
constexpr FixOut FixOutOf()
{
    return std::is_same_v<T, float>  ? FixOut::kF32
           : std::is_same_v<T, half> ? FixOut::kF16
                                     : FixOut::kBf16;
}
template <typename T>
constexpr QuantMode_t QuantOf()
{
    return std::is_same_v<T, float> ? NoQuant : std::is_same_v<T, half> ? F322F16 : F322BF16;
}

template <typename T, typename I>
TWIN_RULE void RequireFixpipe(I &i, const AscendC::FixpipeParamsV220 &p, bool rowMajor)
{
    i.Require(p.nSize >= 1 && p.nSize <= 4095, "fixpipe-range", "nSize is 1 to 4095", "nSize is %u",
              p.nSize);
    i.Require(p.mSize >= 1 && p.mSize <= (rowMajor ? 8192u : 65535u), "fixpipe-range",
              "mSize is 1 to 8192 row major, to 65535 in Nz", "mSize is %u", p.mSize);
    i.Require(p.quantPre == QuantOf<T>(), "fixpipe-quant",
              "NoQuant for float, F322F16 for half, F322BF16 for bfloat16_t",
              "quantPre %d does not produce this type", static_cast<int>(p.quantPre));
    i.Require(p.unitFlag == 0, "fixpipe-unit-flag", "use M_FIX and FIX_M events",
              "unitFlag %u is not modelled", p.unitFlag);
    i.Require(p.dstStride != 0 && p.srcStride <= 65535, "fixpipe-stride",
              "give the row (or strip) distance", "dstStride %u, srcStride %u", p.dstStride,
              p.srcStride);
    i.Require(rowMajor || p.nSize % 16 == 0, "fixpipe-range", "round nSize up to 16 in Nz",
              "nSize is %u", p.nSize);
    i.Require(!p.isChannelSplit || (!rowMajor && std::is_same_v<T, float>), "fixpipe-split",
              "isChannelSplit belongs to float in Nz", "isChannelSplit is set");
    if (p.ndNum > 1) {
        i.Require(
            rowMajor && p.srcNdStride >= 1 && p.srcNdStride <= 512 && p.dstNdStride >= 1 &&
                p.dstNdStride <= 65535,
            "fixpipe-nd", "ndNum > 1 is row major with srcNdStride 1..512 and dstNdStride 1..65535",
            "ndNum %u, srcNdStride %u, dstNdStride %u", p.ndNum, p.srcNdStride, p.dstNdStride);
    }
}

/// What is read of L0C: mSize rows, nSize columns of each matrix.
template <typename I>
TWIN_RULE void DeclareL0c(I &i, const LocalTensor<float> &c, const AscendC::FixpipeParamsV220 &p)
{
    const uint32_t full = p.nSize / 16, rest = p.nSize % 16;
    const uint64_t strip = p.srcStride * 64ull;
    for (uint32_t nd = 0; nd < p.ndNum; ++nd) {
        const uint64_t start = uint64_t(nd) * p.srcNdStride * 1024;
        if (full) {
            i.Reads(c, Extent{start, p.mSize * 64, full, strip});
        }
        if (rest) {
            i.Reads(c, Extent{start + full * strip, rest * 4, p.mSize, 64});
        }
    }
}

/// One body for the three destinations. Nz to L1 in 16 bits is the only way a product becomes an
/// operand again without a trip over GM.
template <bool rowMajor, typename T, typename Dst>
inline void FixpipeIssue(const Dst &d, const LocalTensor<float> &c,
                         const AscendC::FixpipeParamsV220 &p, bool toL1, Where where)
{
    constexpr uint32_t size = sizeof(T);
    // The primitive counts elements; in Nz the instruction counts 32-byte blocks.
    const uint32_t dstStride = rowMajor ? p.dstStride : p.dstStride * (32 / size);
    const Fixpipe s{p.mSize,
                    p.nSize,
                    p.srcStride * 16,
                    dstStride,
                    rowMajor ? p.ndNum : 1,
                    p.srcNdStride * 256,
                    p.dstNdStride,
                    p.reluEn,
                    p.isChannelSplit};
    Issue<Pipe::FIX>(
        "Fixpipe", where,
        [&](auto &i) {
            i.In(c, Space::L0C, "src").In(d, toL1 ? Space::L1 : Space::GM, "dst");
            RequireFixpipe<T>(i, p, rowMajor);
            i.Require(Me().regs.atomic == 0, "atomic-kind", "sum in L0C or on the vector core",
                      "atomic stores of Fixpipe are not modelled");
            i.OrderedInPipe();  // Fixpipe brings its own barrier
            DeclareL0c(i, c, p);
            if (rowMajor) {
                i.Writes(d, Extent{0, p.nSize * size, p.mSize, uint64_t(p.dstStride) * size,
                                   p.ndNum, uint64_t(p.dstNdStride) * size});
            } else {
                // fp32 in L1 order has strips of 8 columns; L0C always has 16.
                const uint32_t width = p.isChannelSplit ? 8 : 16;
                i.Writes(d,
                         Extent{0, p.mSize * width * size, p.nSize / width, p.dstStride * 32ull});
            }
            i.Moves(toL1 ? Route::kL0cToL1 : Route::kL0cToGm,
                    uint64_t(p.ndNum) * p.mSize * p.nSize * size);
        },
        [=] {
            if constexpr (rowMajor) {
                P().fixpipeRows[At(FixOutOf<T>())](d.Host(), c.Host(), s);
            } else {
                P().fixpipeNz[At(FixOutOf<T>())](d.Host(), c.Host(), s);
            }
        });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename DstT, typename SrcT, const FixpipeConfig &config = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<DstT> &dst, const LocalTensor<SrcT> &src,
                    const FixpipeParamsV220 &params, TWIN_HERE)
{
    static_assert(std::is_same_v<SrcT, float> && twin::kOneOf<DstT, float, half, bfloat16_t>,
                  "Fixpipe stores a float L0C as float, half or bfloat16_t");
    twin::FixpipeIssue<config.format == CO2Layout::ROW_MAJOR, DstT>(dst, src, params, false, where);
}
/// To L1. Refused at compile time: float (no such path) and row major (L1 holds fractals).
template <typename DstT, typename SrcT, const FixpipeConfig &config = CFG_ROW_MAJOR>
inline void Fixpipe(const LocalTensor<DstT> &dst, const LocalTensor<SrcT> &src,
                    const FixpipeParamsV220 &params, TWIN_HERE)
{
    static_assert(std::is_same_v<SrcT, float> && twin::kOneOf<DstT, half, bfloat16_t>,
                  "Fixpipe to L1 produces half or bfloat16_t only: float has no path to L1");
    static_assert(config.format == CO2Layout::NZ, "Fixpipe to L1 writes Nz: pass CFG_NZ");
    twin::FixpipeIssue<false, DstT>(dst, src, params, true, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_FIXPIPE_H
