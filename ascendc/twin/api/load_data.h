// SPDX-License-Identifier: Apache-2.0
//
// load_data.h - L1 (or GM) to L0A and L0B: LoadData 2D and 3DV2, LoadDataWithTranspose,
// InitConstValue (rules 3.5).
//
// Declarations speak of the device's fractals (512 bytes); the host image of L0 is private, see
// prims.h. A fractal may hold rows nobody wrote (L1 beyond nValue), so the source is ReadsAny and
// defined bytes travel with the elements.
#ifndef FLA_TWIN_API_LOAD_DATA_H
#define FLA_TWIN_API_LOAD_DATA_H

#include "data_copy.h"

namespace AscendC
{

/// Fractals of 512 bytes: take startIndex, startIndex + srcStride, .. and leave dstGap between
/// them.
struct LoadData2DParams {
    LoadData2DParams() = default;
    LoadData2DParams(uint32_t start, uint32_t repeat, uint32_t src, uint32_t sidIn, uint32_t gap,
                     bool transpose, uint32_t mode)
        : startIndex(start),
          dstGap(gap),
          srcStride(src),
          ifTranspose(transpose),
          repeatTimes(repeat),
          sid(sidIn),
          addrMode(mode)
    {
    }
    uint32_t startIndex = 0, dstGap = 0, srcStride = 0;
    bool ifTranspose = false;
    uint32_t repeatTimes = 0, sid = 0, addrMode = 0;
};
using LoadData2dParams = LoadData2DParams;

/// Counts squares at the source; both destination gaps count fractals.
struct LoadData2dTransposeParams {
    LoadData2dTransposeParams() = default;
    LoadData2dTransposeParams(uint32_t start, uint32_t repeat, uint32_t src, uint32_t gap,
                              uint32_t fracGap, uint32_t mode = 0)
        : startIndex(start),
          repeatTimes(repeat),
          srcStride(src),
          dstGap(gap),
          dstFracGap(fracGap),
          addrMode(mode)
    {
    }
    uint32_t startIndex = 0, repeatTimes = 0, srcStride = 0, dstGap = 0, dstFracGap = 0,
             addrMode = 0;
};

/// The convolution load. For a matrix: l1H 1, l1W its rows, channelSize its columns, all of filter,
/// stride and dilation 1; then m runs over rows and k over columns.
template <typename T>
struct LoadData3DParamsV2 {
    LoadData3DParamsV2() = default;
    LoadData3DParamsV2(const uint8_t pad[4], uint32_t h, uint32_t w, uint32_t channel,
                       uint32_t kExt, uint32_t mExt, uint32_t kStart, uint32_t mStart, uint32_t sW,
                       uint32_t sH, uint32_t fW, uint32_t fH, uint32_t dW, uint32_t dH,
                       bool transpose, bool smallK, T value, bool sizeW = false, bool sizeH = false,
                       bool fMatrix = false)
        : padList{pad[0], pad[1], pad[2], pad[3]},
          l1H(h),
          l1W(w),
          channelSize(channel),
          kExtension(kExt),
          mExtension(mExt),
          kStartPt(kStart),
          mStartPt(mStart),
          strideW(sW),
          strideH(sH),
          filterW(fW),
          filterH(fH),
          dilationFilterW(dW),
          dilationFilterH(dH),
          enTranspose(transpose),
          enSmallK(smallK),
          padValue(value),
          filterSizeW(sizeW),
          filterSizeH(sizeH),
          fMatrixCtrl(fMatrix)
    {
    }
    uint8_t padList[4] = {0, 0, 0, 0};
    uint32_t l1H = 0, l1W = 0, channelSize = 0, kExtension = 0, mExtension = 0, kStartPt = 0,
             mStartPt = 0;
    uint32_t strideW = 1, strideH = 1, filterW = 1, filterH = 1, dilationFilterW = 1,
             dilationFilterH = 1;
    bool enTranspose = false, enSmallK = false;
    T padValue{};
    bool filterSizeW = false, filterSizeH = false, fMatrixCtrl = false;
};

/// false would take the shape from SetFmatrix, which the twin does not model.
struct IsResetLoad3dConfig {
    constexpr IsResetLoad3dConfig(bool fMatrix, bool padding)
        : isSetFMatrix(fMatrix), isSetPadding(padding)
    {
    }
    bool isSetFMatrix, isSetPadding;
};
inline constexpr IsResetLoad3dConfig IS_RESER_LOAD3D_DEFAULT_CONFIG = {true, true};

/// blockNum and dstGap count 32 bytes in L1 and 512 bytes in L0A and L0B.
template <typename U>
struct InitConstValueParams {
    InitConstValueParams() = default;
    InitConstValueParams(uint32_t repeat, uint32_t blocks, uint32_t gap, U value)
        : repeatTimes(repeat), blockNum(blocks), dstGap(gap), initValue(value)
    {
    }
    uint32_t repeatTimes = 0, blockNum = 0, dstGap = 0;
    U initValue{};
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

/// int8 and int4 operands exist on the chip and have no user here, so they are refused.
template <typename T>
constexpr L0Type L0TypeOf()
{
    static_assert(kOneOf<T, bfloat16_t, half, float>,
                  "the twin's cube works on bf16, half and float operands");
    return std::is_same_v<T, float>  ? L0Type::kF32
           : std::is_same_v<T, half> ? L0Type::kF16
                                     : L0Type::kBf16;
}
/// The side decides the host layout, so it is asked of the tensor and not of the call.
template <typename T>
inline L0 SideOf(const LocalTensor<T> &d)
{
    return d.GetSpace() == Space::L0A ? L0::kA : L0::kB;
}
/// The two sides have rates of their own (256 and 128 bytes a cycle).
template <typename T>
inline Route LoadRoute(const LocalTensor<T> &d)
{
    return d.GetSpace() == Space::L0A ? Route::kL1ToL0A : Route::kL1ToL0B;
}
template <typename I, typename T>
TWIN_RULE void RequireL0(I &i, const LocalTensor<T> &d)
{
    i.Require(d.GetSpace() == Space::L0A || d.GetSpace() == Space::L0B, "load-path",
              "load into an A2 or B2 tensor", "LoadData ends in L0A or L0B");
}

/// Bytes of a fractal, whatever the element type.
constexpr uint64_t kFractal = 512;

/// Defined bytes of one fractal, moved plainly or transposed (`rows` x `cols` elements at src).
template <typename I, typename D, typename S>
TWIN_RULE void MoveDefined(I &i, const D &d, uint64_t dByte, const S &s, uint64_t sByte,
                           uint32_t size, bool transpose)
{
    if (i.IsDefined(s, sByte, kFractal)) {
        return;  // the Writes before already made every byte defined
    }
    if (!transpose) {
        i.CopiesDefined(d, dByte, s, sByte, kFractal);
        return;
    }
    for (uint32_t r = 0; r < 16; ++r) {
        for (uint32_t c = 0; c < 16; ++c) {
            i.CopiesDefined(d, dByte + (c * 16 + r) * size, s, sByte + (r * 16 + c) * size, size);
        }
    }
}

/// LoadData 2D from L1 (MTE1) or GM (MTE2).
/// The pipe follows from the source: MTE1 out of L1, MTE2 straight from GM (already in fractals).
template <Pipe pipe, typename T, typename Src>
inline void Load2dIssue(const LocalTensor<T> &d, const Src &a, const AscendC::LoadData2DParams &p,
                        Where where)
{
    constexpr L0Type type = L0TypeOf<T>();
    const Load2d s{p.startIndex, p.repeatTimes, p.srcStride, p.dstGap + 1, 0, p.ifTranspose};
    Issue<pipe>(
        "LoadData", where,
        [&](auto &i) {
            RequireL0(i, d);
            if constexpr (pipe == Pipe::MTE1) {
                i.In(a, Space::L1, "src");
            }
            RequireField(i, "repeatTimes", p.repeatTimes, 0, 255);
            RequireField(i, "startIndex", p.startIndex, 0, 65535);
            RequireField(i, "srcStride", p.srcStride, 0, 65535);
            RequireField(i, "dstGap", p.dstGap, 0, 65535);
            // The 2D load transposes whole 16-bit fractals only.
            i.Require(!p.ifTranspose || (sizeof(T) == 2 && pipe == Pipe::MTE1), "load2d-transpose",
                      "use LoadDataWithTranspose or the 3D load for 32-bit types",
                      "ifTranspose exists for 16-bit types from L1 only");
            if (p.repeatTimes == 0) {
                return;
            }
            i.ReadsAny(a, Extent{p.startIndex * kFractal, kFractal, p.repeatTimes,
                                 p.srcStride * kFractal});
            i.Writes(d, Extent{0, kFractal, p.repeatTimes, s.dstStep * kFractal});
            for (uint32_t f = 0; f < p.repeatTimes; ++f) {
                MoveDefined(i, d, f * s.dstStep * kFractal, a,
                            (p.startIndex + uint64_t(f) * p.srcStride) * kFractal, sizeof(T),
                            p.ifTranspose);
            }
            i.Moves(pipe == Pipe::MTE1 ? LoadRoute(d) : Route::kGmToL0, p.repeatTimes * kFractal);
        },
        [=] { P().load2d(d.HostWide(), a.Host(), s, SideOf(d), type); });
}

/// Squares: one 16x16 fractal of 16-bit elements, or two 16x8 fractals of 32-bit ones.
template <typename T>
inline void LoadTransposeIssue(const LocalTensor<T> &d, const LocalTensor<T> &a,
                               const AscendC::LoadData2dTransposeParams &p, Where where)
{
    constexpr L0Type type = L0TypeOf<T>();
    constexpr uint32_t fractals = sizeof(T) / 2;
    const Load2d s{p.startIndex, p.repeatTimes, p.srcStride, p.dstGap + 1, p.dstFracGap + 1, true};
    Issue<Pipe::MTE1>(
        "LoadDataWithTranspose", where,
        [&](auto &i) {
            RequireL0(i, d);
            i.In(a, Space::L1, "src");
            RequireField(i, "repeatTimes", p.repeatTimes, 0, 255);
            RequireField(i, "startIndex", p.startIndex, 0, 65535);
            RequireField(i, "srcStride", p.srcStride, 0, 65535);
            RequireField(i, "dstGap", p.dstGap, 0, 65535);
            RequireField(i, "dstFracGap", p.dstFracGap, 0, 65535);
            // A 32-bit square is two neighbouring fractals, columns 0 to 7 and 8 to 15.
            constexpr uint32_t bytes = fractals * kFractal;
            if (p.repeatTimes == 0) {
                return;
            }
            i.ReadsAny(a, Extent{uint64_t(p.startIndex) * bytes, bytes, p.repeatTimes,
                                 uint64_t(p.srcStride) * bytes});
            i.Writes(d, Extent{0, kFractal, fractals, s.fracStep * kFractal, p.repeatTimes,
                               s.dstStep * kFractal});
            for (uint32_t q = 0; q < p.repeatTimes; ++q) {
                const uint64_t from = (p.startIndex + uint64_t(q) * p.srcStride) * bytes,
                               to = q * s.dstStep * kFractal;
                if (i.IsDefined(a, from, bytes)) {
                    continue;
                }
                for (uint32_t r = 0; r < 16; ++r) {
                    for (uint32_t c = 0; c < 16; ++c) {
                        // Source (r, c); destination row c, column r, both in strips of C0 columns.
                        constexpr uint32_t c0 = kBlockLanes<T>;
                        i.CopiesDefined(
                            d,
                            to + (r / c0) * s.fracStep * kFractal + (c * c0 + r % c0) * sizeof(T),
                            a, from + (c / c0) * kFractal + (r * c0 + c % c0) * sizeof(T),
                            sizeof(T));
                    }
                }
            }
            i.Moves(LoadRoute(d), uint64_t(p.repeatTimes) * bytes);
        },
        [=] { P().load2d(d.HostWide(), a.Host(), s, SideOf(d), type); });
}

/// Rules of the 3D load seen as a matrix move.
template <typename T, typename I>
TWIN_RULE void RequireMatrix(I &i, const AscendC::LoadData3DParamsV2<T> &p)
{
    constexpr uint32_t c0 = kBlockLanes<T>;
    const bool plain = p.strideW == 1 && p.strideH == 1 && p.filterW == 1 && p.filterH == 1 &&
                       p.dilationFilterW == 1 && p.dilationFilterH == 1 && !p.filterSizeW &&
                       !p.filterSizeH && !p.fMatrixCtrl && p.padList[0] == 0 && p.padList[1] == 0 &&
                       p.padList[2] == 0 && p.padList[3] == 0;
    i.Require(plain, "load3d-matrix", "set filters, strides and dilations to 1 and padList to 0",
              "the twin models the 3D load of a matrix, not of a convolution");
    i.Require(p.l1H >= 1 && p.l1W >= 1 && p.l1H <= 32767 && p.l1W <= 32767, "load3d-range",
              "l1H 1 and l1W the rows of the matrix", "l1H %u, l1W %u, each at most 32767", p.l1H,
              p.l1W);
    const uint32_t over = p.channelSize % (sizeof(T) == 2 ? 16 : 8);
    i.Require(over == 0 || over == 4 || (over == 8 && sizeof(T) == 2), "load3d-channel",
              "pad the columns to a whole number of C0", "channelSize %u does not fit C0 %u",
              p.channelSize, c0);
    i.Require(p.kStartPt % c0 == 0 && p.kExtension % c0 == 0, "load3d-k",
              "kStartPt and kExtension are multiples of C0", "kStartPt %u, kExtension %u, C0 %u",
              p.kStartPt, p.kExtension, c0);
    i.Require(p.mStartPt % 16 == 0 && p.mExtension % 16 == 0, "load3d-m",
              "mStartPt and mExtension are multiples of 16", "mStartPt %u, mExtension %u",
              p.mStartPt, p.mExtension);
    i.Require(p.mStartPt + p.mExtension <= (p.l1H * p.l1W + 15) / 16 * 16 &&
                  p.kStartPt + p.kExtension <= (p.channelSize + c0 - 1) / c0 * c0,
              "load3d-range", "keep the block inside l1W rows and channelSize columns",
              "rows %u + %u of %u, columns %u + %u of %u", p.mStartPt, p.mExtension, p.l1H * p.l1W,
              p.kStartPt, p.kExtension, p.channelSize);
}

/// Where element (r, c) of the loaded block lands in L0, in bytes.
template <typename T>
inline uint64_t Load3dPlace(const Load3d &s, L0 side, uint32_t r, uint32_t c)
{
    constexpr uint32_t c0 = kBlockLanes<T>;
    uint64_t fractal, inside;
    if (side == L0::kA && !s.transpose) {
        fractal = uint64_t(r / 16) * (s.kSize / c0) + c / c0;
        inside = (r % 16) * c0 + c % c0;
    } else {
        // Rows are k: L0A has k fractals innermost, L0B the 16-column blocks.
        fractal = side == L0::kA ? uint64_t(c / 16) * (s.mSize / c0) + r / c0
                                 : uint64_t(r / c0) * ((s.kSize + 15) / 16) + c / 16;
        inside = (c % 16) * c0 + r % c0;
    }
    return fractal * kFractal + inside * sizeof(T);
}

template <typename T>
inline void Load3dIssue(const LocalTensor<T> &d, const LocalTensor<T> &a,
                        const AscendC::LoadData3DParamsV2<T> &p, Where where)
{
    constexpr L0Type type = L0TypeOf<T>();
    constexpr uint32_t c0 = kBlockLanes<T>;
    // L1 strips hold whole groups of 16 rows, whatever Nd2Nz wrote of the last one.
    const uint32_t rows = (p.l1H * p.l1W + 15) / 16 * 16;
    const Load3d s{rows, p.mStartPt, p.kStartPt, p.mExtension, p.kExtension, p.enTranspose};
    Issue<Pipe::MTE1>(
        "LoadData 3D", where,
        [&](auto &i) {
            RequireL0(i, d);
            i.In(a, Space::L1, "src");
            RequireMatrix<T>(i, p);
            if (p.mExtension == 0 || p.kExtension == 0) {
                return;
            }
            const uint32_t strips = p.kExtension / c0;
            const Extent from{(uint64_t(p.kStartPt / c0) * rows + p.mStartPt) * 32,
                              p.mExtension * 32, strips, uint64_t(rows) * 32};
            i.ReadsAny(a, from);
            const L0 side = SideOf(d);
            // L0B ignores enTranspose: it turns rows into k anyway.
            const bool rowsToK = side == L0::kB || p.enTranspose;
            const uint32_t blocks = (p.kExtension + 15) / 16, half = p.kExtension % 16;
            // What the chip writes: everything, or all but the missing half of a 16-wide block.
            if (!rowsToK || half == 0) {
                i.Writes(d, Extent{0, static_cast<uint32_t>(uint64_t(p.mExtension) * p.kExtension *
                                                            sizeof(T))});
            } else if (side == L0::kB) {
                // fp32 with an odd 8 columns: the last block of each k fractal is filled by half.
                i.Writes(d, Extent{0, (blocks - 1) * 512 + half * 32, p.mExtension / c0,
                                   blocks * kFractal});
            } else {
                i.Writes(d, Extent{0, static_cast<uint32_t>((blocks - 1) *
                                                            uint64_t(p.mExtension / c0) * 512)});
                i.Writes(d, Extent{(blocks - 1) * uint64_t(p.mExtension / c0) * 512, half * 32,
                                   p.mExtension / c0, kFractal});
            }
            // Undefined source bytes stay undefined at their new place. Almost always there are
            // none.
            for (uint32_t strip = 0; strip < strips; ++strip) {
                const uint64_t column = from.start + strip * from.stride1;
                if (i.IsDefined(a, column, from.run)) {
                    continue;
                }
                for (uint32_t r = 0; r < p.mExtension; ++r) {
                    for (uint32_t c = 0; c < c0; ++c) {
                        i.CopiesDefined(d, Load3dPlace<T>(s, side, r, strip * c0 + c), a,
                                        column + (r * c0 + c) * sizeof(T), sizeof(T));
                    }
                }
            }
            i.Moves(LoadRoute(d), uint64_t(p.mExtension) * p.kExtension * sizeof(T));
        },
        [=] { P().load3d(d.HostWide(), a.Host(), s, SideOf(d), type); });
}

/// Fills L1 (32-byte units, MTE2) or L0A / L0B (512-byte units, MTE1).
/// L1 rows below nValue are cleared with this when they could matter.
template <typename T>
inline void InitConstIssue(const LocalTensor<T> &d, const AscendC::InitConstValueParams<T> &p,
                           Where where)
{
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "InitConstValue fills 16 and 32-bit elements");
    const uint32_t unit = d.GetSpace() == Space::L1 ? 32 : 512;
    // The same rules for the three stores; only the unit and the pipe differ.
    auto declare = [&](auto &i) {
        const Space space = d.GetSpace();
        i.Require(space == Space::L1 || space == Space::L0A || space == Space::L0B, "fill-path",
                  "fill A1/B1, A2 or B2 tensors; use Duplicate in UB",
                  "this position can't be filled");
        RequireField(i, "repeatTimes", p.repeatTimes, 0, 32767);
        RequireField(i, "blockNum", p.blockNum, 0, 32767);
        RequireField(i, "dstGap", p.dstGap, 0, 32767);
        if (p.repeatTimes && p.blockNum) {
            i.Writes(d, Extent{0, p.blockNum * unit, p.repeatTimes,
                               uint64_t(p.blockNum + p.dstGap) * unit});
        }
        i.Moves(Route::kFill, uint64_t(p.repeatTimes) * p.blockNum * unit);
    };
    if (d.GetSpace() == Space::L1) {
        uint64_t bits = 0;
        std::memcpy(&bits, &p.initValue, sizeof(T));
        Issue<Pipe::MTE2>("InitConstValue", where, declare, [=] {
            for (uint32_t r = 0; r < p.repeatTimes; ++r) {
                P().duplicate(Blocks(d.Host(), uint64_t(r) * (p.blockNum + p.dstGap)), bits,
                              p.blockNum * kBlockLanes<T>, sizeof(T));
            }
        });
        return;
    }
    // L0 holds floats on the host.
    float value;
    if constexpr (std::is_same_v<T, bfloat16_t>) {
        value = AscendC::ToFloat(p.initValue);
    } else {
        value = static_cast<float>(p.initValue);
    }
    Issue<Pipe::MTE1>("InitConstValue", where, declare, [=] {
        P().fillL0(d.HostWide(), value, p.repeatTimes, p.blockNum, p.dstGap);
    });
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename T>
inline void LoadData(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                     const LoadData2DParams &params, TWIN_HERE)
{
    twin::Load2dIssue<twin::Pipe::MTE1>(dst, src, params, where);
}
/// From GM: it must already lie in fractals there.
template <typename T>
inline void LoadData(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const LoadData2DParams &params, TWIN_HERE)
{
    twin::Load2dIssue<twin::Pipe::MTE2>(dst, src, params, where);
}
template <typename T, const IsResetLoad3dConfig &config = IS_RESER_LOAD3D_DEFAULT_CONFIG>
inline void LoadData(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                     const LoadData3DParamsV2<T> &params, TWIN_HERE)
{
    static_assert(config.isSetFMatrix && config.isSetPadding,
                  "the twin takes the matrix shape from the parameters");
    twin::Load3dIssue(dst, src, params, where);
}
/// The way to transpose fp32 into L0 without the 3D load.
template <typename T>
inline void LoadDataWithTranspose(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                                  const LoadData2dTransposeParams &params, TWIN_HERE)
{
    twin::LoadTransposeIssue(dst, src, params, where);
}
template <typename T>
inline void InitConstValue(const LocalTensor<T> &dst, const InitConstValueParams<T> &params,
                           TWIN_HERE)
{
    twin::InitConstIssue(dst, params, where);
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_LOAD_DATA_H
