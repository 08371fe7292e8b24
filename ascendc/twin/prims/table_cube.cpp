// SPDX-License-Identifier: Apache-2.0
//
// table_cube.cpp - the cube part of one instruction set's table, see table_vector.cpp.
#include "cube_moves.h"

namespace twin::TWIN_ISA
{

void FillCube(Prims &p)
{
    p.load2d = Load2dMove;
    p.load3d = Load3dMove;
    p.fillL0 = FillL0;
    p.mmad = Mmad;
    p.biasRows = BiasRows;
    p.fixpipeRows[int(FixOut::kF32)] = FixpipeRows<float>;
    p.fixpipeRows[int(FixOut::kF16)] = FixpipeRows<Half>;
    p.fixpipeRows[int(FixOut::kBf16)] = FixpipeRows<Bf16>;
    p.fixpipeNz[int(FixOut::kF32)] = FixpipeNz<float>;
    p.fixpipeNz[int(FixOut::kF16)] = FixpipeNz<Half>;
    p.fixpipeNz[int(FixOut::kBf16)] = FixpipeNz<Bf16>;
}

}  // namespace twin::TWIN_ISA
