// SPDX-License-Identifier: Apache-2.0
//
// cube.h - Mmad (rules 3.7). Lanes of the 16 x 16 blocks beyond m and n are undefined afterwards;
// with m == 1 the chip reads A as plain contiguous elements, and so does the twin.
#ifndef FLA_TWIN_API_CUBE_H
#define FLA_TWIN_API_CUBE_H

#include "load_data.h"

namespace AscendC
{

struct MmadParams {
    MmadParams() = default;
    MmadParams(uint32_t mIn, uint32_t nIn, uint32_t kIn, uint32_t unit, bool source, bool init)
        : m(mIn), n(nIn), k(kIn), unitFlag(unit), cmatrixSource(source), cmatrixInitVal(init)
    {
    }
    uint32_t m = 0, n = 0, k = 0;
    bool isBias = false;
    uint32_t unitFlag = 0;
    bool kDirectionAlign = false, cmatrixSource = false, cmatrixInitVal = true;
};

}  // namespace AscendC

namespace twin
{
inline namespace TWIN_NS
{

constexpr uint32_t Blocks16(uint32_t n)
{
    return (n + 15) / 16;
}

/// A: Zz fractals [16 m][C0 k], only m rows and k columns of them are read.
template <typename T, typename I>
TWIN_RULE void DeclareA(I &i, const LocalTensor<T> &a, const AscendC::MmadParams &p)
{
    constexpr uint32_t c0 = kBlockLanes<T>, size = sizeof(T);
    if (p.m == 1) {
        i.Reads(a, p.k);
        return;
    }
    const uint32_t align = p.kDirectionAlign ? 16 : c0;
    const uint32_t fractals = (p.k + align - 1) / align * (align / c0), full = p.k / c0,
                   rest = p.k % c0;
    for (uint32_t mb = 0; mb < Blocks16(p.m); ++mb) {
        const uint32_t rows = p.m - mb * 16 < 16 ? p.m - mb * 16 : 16;
        const uint64_t start = uint64_t(mb) * fractals * kFractal;
        if (full) {
            i.Reads(a, Extent{start, rows * 32, full, kFractal});
        }
        if (rest) {
            i.Reads(a, Extent{start + full * kFractal, rest * size, rows, 32});
        }
    }
}

/// B: Zn fractals [16 n][C0 k], n blocks innermost.
template <typename T, typename I>
TWIN_RULE void DeclareB(I &i, const LocalTensor<T> &b, const AscendC::MmadParams &p)
{
    constexpr uint32_t c0 = kBlockLanes<T>, size = sizeof(T);
    const uint32_t full = p.k / c0, rest = p.k % c0;
    const uint64_t row = Blocks16(p.n) * kFractal;  // bytes of one k fractal row
    // The n columns of one k fractal are contiguous: 32 bytes each, block after block.
    if (full) {
        i.Reads(b, Extent{0, p.n * 32, full, row});
    }
    if (rest) {
        i.Reads(b, Extent{full * row, rest * size, p.n, 32});
    }
}

/// C: Nz strips [M16][16]; valid lanes are defined, the rest of each block is not.
template <typename T, typename I>
TWIN_RULE void DeclareC(I &i, const LocalTensor<T> &c, const AscendC::MmadParams &p,
                        bool accumulate)
{
    const uint32_t m16 = Blocks16(p.m) * 16, full = p.n / 16, rest = p.n % 16;
    const uint64_t strip = m16 * 64ull;
    auto valid = [&](auto touch) {
        if (full) {
            touch(Extent{0, p.m * 64, full, strip});
        }
        if (rest) {
            touch(Extent{full * strip, rest * 4, p.m, 64});
        }
    };
    if (accumulate) {
        valid([&](const Extent &e) { i.Reads(c, e, 1024); });
    }
    valid([&](const Extent &e) { i.Writes(c, e, 1024); });
    if (m16 != p.m) {
        i.WritesUndefined(c, Extent{p.m * 64ull, (m16 - p.m) * 64, Blocks16(p.n), strip}, 1024);
    }
    if (rest) {
        i.WritesUndefined(c, Extent{full * strip + rest * 4, (16 - rest) * 4, p.m, 64}, 1024);
    }
}

template <typename A, typename B, typename I>
TWIN_RULE void DeclareMmad(I &i, const LocalTensor<float> &c, const LocalTensor<A> &a,
                           const LocalTensor<B> &b, const AscendC::MmadParams &p, bool accumulate)
{
    i.In(c, Space::L0C, "dst").In(a, Space::L0A, "left operand").In(b, Space::L0B, "right operand");
    i.Require(p.m <= 4095 && p.n <= 4095 && p.k <= 4095, "mmad-range",
              "cut the product: m, n, k go up to 4095", "m %u, n %u, k %u", p.m, p.n, p.k);
    i.Require(p.unitFlag == 0, "mmad-unit-flag", "use M_FIX and FIX_M events",
              "unitFlag %u is not modelled", p.unitFlag);
    if (p.m == 0 || p.n == 0 || p.k == 0) {
        return;
    }
    DeclareA(i, a, p);
    DeclareB(i, b, p);
    // Two products on one block need PipeBarrier<PIPE_M> only while they are short. Said before the
    // block is declared: the check uses it.
    if (Blocks16(p.m) * Blocks16(p.n) >= 10) {
        i.OrderedInPipe();
    }
    DeclareC(i, c, p, accumulate);
    i.Macs(p.m, p.n, p.k, sizeof(A) == 4 ? 4 : 16);
}

template <typename A, typename B>
constexpr bool MmadLegal()
{
    return std::is_same_v<A, B> && kOneOf<A, bfloat16_t, half, float>;
}
/// What the primitive needs of the parameters.
template <typename A>
inline MmadShape ShapeOf(const AscendC::MmadParams &p, bool accumulate)
{
    return {p.m, p.n, p.k, kBlockLanes<A>, accumulate, p.kDirectionAlign};
}

}  // namespace TWIN_NS
}  // namespace twin

namespace AscendC
{
inline namespace TWIN_NS
{

template <typename DstT, typename A, typename B>
inline void Mmad(const LocalTensor<DstT> &dst, const LocalTensor<A> &left,
                 const LocalTensor<B> &right, const MmadParams &params, TWIN_HERE)
{
    static_assert(std::is_same_v<DstT, float> && twin::MmadLegal<A, B>(),
                  "Mmad multiplies two bf16, half or float operands into float");
    const twin::MmadShape shape = twin::ShapeOf<A>(params, !params.cmatrixInitVal);
    twin::Issue<twin::Pipe::M>(
        "Mmad", where,
        [&](auto &i) {
            i.Require(!params.cmatrixSource, "mmad-bias", "pass the bias tensor to Mmad",
                      "cmatrixSource is set without a bias operand");
            twin::DeclareMmad(i, dst, left, right, params, !params.cmatrixInitVal);
        },
        [=] {
            if (shape.m && shape.n && shape.k) {
                twin::P().mmad(dst.Host(), left.HostWide(), right.HostWide(), shape);
            }
        });
}

/// C starts from the bias table: n floats, the same for every row.
template <typename DstT, typename A, typename B, typename BiasT>
inline void Mmad(const LocalTensor<DstT> &dst, const LocalTensor<A> &left,
                 const LocalTensor<B> &right, const LocalTensor<BiasT> &bias,
                 const MmadParams &params, TWIN_HERE)
{
    static_assert(
        std::is_same_v<DstT, float> && std::is_same_v<BiasT, float> && twin::MmadLegal<A, B>(),
        "Mmad multiplies two bf16, half or float operands into float, the bias is float");
    const twin::MmadShape shape = twin::ShapeOf<A>(params, true);
    twin::Issue<twin::Pipe::M>(
        "Mmad", where,
        [&](auto &i) {
            i.In(bias, twin::Space::BT, "bias").Reads(bias, params.n);
            twin::DeclareMmad(i, dst, left, right, params, false);
        },
        [=] {
            if (shape.m && shape.n && shape.k) {
                twin::P().biasRows(dst.Host(), bias.Host(), shape.m, shape.n);
                twin::P().mmad(dst.Host(), left.HostWide(), right.HostWide(), shape);
            }
        });
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_CUBE_H
