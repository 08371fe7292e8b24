// SPDX-License-Identifier: Apache-2.0
// A C face of the primitive table for ctypes. Enumerations travel as ints in the order of prims.h;
// parameter structs are laid out in bindings.py field for field.
#include "machine/subnormals.h"
#include "prims.h"

using namespace twin;

#define PROBE extern "C" __attribute__((visibility("default")))

PROBE const char *isa_name()
{
    return IsaName();
}
PROBE int use_isa(const char *name)
{
    return UseIsa(name);
}

PROBE int has_binary(int op, int ty)
{
    return P().binary[op][ty] != nullptr;
}
PROBE int has_unary(int op, int ty)
{
    return P().unary[op][ty] != nullptr;
}
PROBE int has_scalar(int op, int ty)
{
    return P().scalar[op][ty] != nullptr;
}
PROBE uint32_t cast_modes(int pair)
{
    return CastModes(static_cast<CastPair>(pair));
}

PROBE void binary(int op, int ty, void *d, const void *a, const void *b, uint32_t n)
{
    P().binary[op][ty](d, a, b, n);
}
PROBE void binary_rep(int op, int ty, void *d, const void *a, const void *b, const RepShape *s)
{
    P().binaryRep[op][ty](d, a, b, *s);
}
PROBE void unary(int op, int ty, void *d, const void *a, uint32_t n)
{
    P().unary[op][ty](d, a, n);
}
PROBE void unary_rep(int op, int ty, void *d, const void *a, const RepShape *s)
{
    P().unaryRep[op][ty](d, a, *s);
}
PROBE void scalar(int op, int ty, void *d, const void *a, uint32_t bits, uint32_t n)
{
    P().scalar[op][ty](d, a, bits, n);
}
PROBE void scalar_rep(int op, int ty, void *d, const void *a, uint32_t bits, const RepShape *s)
{
    P().scalarRep[op][ty](d, a, bits, *s);
}
PROBE void mixed(int axpy, void *d, const void *a, const void *b, uint32_t bits, uint32_t n)
{
    if (axpy) {
        P().axpyMixed(d, a, bits, n);
    } else {
        P().mulAddDstMixed(d, a, b, n);
    }
}
PROBE void cast(int pair, int mode, void *d, const void *a, uint32_t n)
{
    P().cast[pair][mode](d, a, n);
}
PROBE void cast_in_kernel(int pair, int mode, void *d, const void *a, uint32_t n)
{
    FlushSubnormals flush;
    P().cast[pair][mode](d, a, n);
}
PROBE void cast_rep(int pair, int mode, void *d, const void *a, const RepShape *s)
{
    P().castRep[pair][mode](d, a, *s);
}

PROBE void compare(int op, int ty, uint8_t *d, const void *a, const void *b, uint32_t n)
{
    P().compare[op][ty](d, a, b, n);
}
PROBE void compare_scalar(int op, int ty, uint8_t *d, const void *a, uint32_t bits, uint32_t n)
{
    P().compareScalar[op][ty](d, a, bits, n);
}
PROBE void select(void *d, const uint8_t *m, const void *a, const void *b, uint32_t n,
                  uint32_t size, uint32_t period)
{
    P().select(d, m, a, b, n, size, period);
}
PROBE void select_scalar(void *d, const uint8_t *m, const void *a, uint32_t bits, uint32_t n,
                         uint32_t size)
{
    P().selectScalar(d, m, a, bits, n, size, 0);
}

PROBE void block_fold(int op, int column, void *d, const void *a, const FoldShape *s)
{
    P().blockFold[op][column](d, a, *s);
}
PROBE void whole_sum(int column, void *d, const void *a, const FoldShape *s)
{
    P().wholeSum[column](d, a, *s);
}
PROBE void pair_sum(int column, void *d, const void *a, const FoldShape *s)
{
    P().pairSum[column](d, a, *s);
}
PROBE void whole_index(int op, int column, void *d, const void *a, const FoldShape *s, int out)
{
    P().wholeIndex[op][column](d, a, *s, static_cast<FoldOut>(out));
}
PROBE void fold_all(int op, int column, void *d, const void *a, uint32_t n, int index)
{
    P().foldAll[op][column](d, a, n, index != 0);
}

PROBE void duplicate(void *d, uint64_t bits, uint32_t n, uint32_t size)
{
    P().duplicate(d, bits, n, size);
}
PROBE void duplicate_rep(void *d, uint64_t bits, const RepShape *s, uint32_t size)
{
    P().duplicateRep(d, bits, *s, size);
}
PROBE void copy_rep(void *d, const void *a, const RepShape *s, uint32_t size)
{
    P().copyRep(d, a, *s, size);
}
PROBE void brcb(void *d, const void *a, uint32_t repeat, uint32_t blk, uint32_t rep, uint32_t size)
{
    P().brcb(d, a, repeat, blk, rep, size);
}
PROBE void gather(void *d, const void *a, const uint32_t *o, uint32_t base, uint32_t n,
                  uint32_t size)
{
    P().gather(d, a, o, base, n, size);
}
PROBE uint32_t gather_mask(void *d, const void *a, const uint8_t *bits, uint32_t bitStep,
                           uint32_t lanes, uint32_t repeat, uint32_t aBlk, uint32_t aRep,
                           uint32_t size)
{
    return P().gatherMask(d, a, bits, bitStep, lanes, repeat, aBlk, aRep, size);
}
PROBE void arith(int ty, void *d, uint32_t first, uint32_t step, uint32_t n)
{
    P().arith[ty](d, first, step, n);
}
PROBE void transpose16(void *d, const void *a)
{
    P().transpose16(d, a);
}
PROBE void trans_data(void *const *d, const void *const *a, uint32_t size, int dHigh, int aHigh)
{
    P().transData(d, a, size, dHigh != 0, aHigh != 0);
}

PROBE void copy_blocks(void *d, const void *a, const BlockCopy *s)
{
    P().copyBlocks(d, a, *s);
}
PROBE void copy_pad(void *d, const void *a, const BlockCopy *s, const BlockPad *pad)
{
    P().copyPad(d, a, *s, *pad);
}
PROBE void add_blocks(int ty, void *d, const void *a, const BlockCopy *s)
{
    P().addBlocks[ty](d, a, *s);
}
PROBE void nd2nz(void *d, const void *a, const Nd2Nz *s, uint32_t size)
{
    P().nd2nz(d, a, *s, size);
}

PROBE void load2d(float *d, const void *a, const Load2d *s, int side, int type)
{
    P().load2d(d, a, *s, static_cast<L0>(side), static_cast<L0Type>(type));
}
PROBE void load3d(float *d, const void *a, const Load3d *s, int side, int type)
{
    P().load3d(d, a, *s, static_cast<L0>(side), static_cast<L0Type>(type));
}
PROBE void fill_l0(float *d, float value, uint32_t repeat, uint32_t fractals, uint32_t gap)
{
    P().fillL0(d, value, repeat, fractals, gap);
}
PROBE void mmad(float *c, const float *a, const float *b, const MmadShape *s)
{
    P().mmad(c, a, b, *s);
}
PROBE void bias_rows(float *c, const float *bias, uint32_t m, uint32_t n)
{
    P().biasRows(c, bias, m, n);
}
PROBE void fixpipe(int rows, int out, void *d, const float *c, const Fixpipe *s)
{
    (rows ? P().fixpipeRows : P().fixpipeNz)[out](d, c, *s);
}
