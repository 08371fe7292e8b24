// SPDX-License-Identifier: Apache-2.0
//
// rep_registers.h - the mask-and-repeat calls that kernels make by the hundred, in registers.
//
// A float call whose lanes fill whole registers and whose operands are either contiguous inside a
// repeat or one block spread over it (block stride 0) needs neither a call per repeat nor a packed
// image: a row times a row of factors, a row times its own factor, a row added to every other one.
#pragma once

#include "rep.h"

namespace twin::TWIN_ISA
{

/// Operations done here; each register computes what BinaryOp computes per lane.
constexpr bool InRegisters(Binary op)
{
    return op == Binary::kAdd || op == Binary::kSub || op == Binary::kMul || op == Binary::kDiv ||
           op == Binary::kMulAddDst || op == Binary::kFusedMulAdd;
}

template <Binary op>
TWIN_INLINE VF OfRegisters([[maybe_unused]] VF d, VF a, VF b)
{
    if constexpr (op == Binary::kAdd) {
        return a + b;
    } else if constexpr (op == Binary::kSub) {
        return a - b;
    } else if constexpr (op == Binary::kMul) {
        return a * b;
    } else if constexpr (op == Binary::kDiv) {
        return a / b;
    } else if constexpr (op == Binary::kMulAddDst) {
        return d + a * b;
    } else {
        return a * d + b;
    }
}

/// Register `w` of a repeat: its own lanes, or the one block in all of them.
template <bool spread>
TWIN_INLINE VF TakeRegister(const float *p, uint32_t w)
{
    constexpr uint32_t block = PerBlock<float>();
    if constexpr (!spread) {
        return Load(p + w * kLanes);
    } else if constexpr (kLanes > block) {
        return Twice(p);
    } else {
        return Load(p + w * kLanes % block);
    }
}

/// `regs` registers per repeat. Repeats stay in order, one is stored before the next is loaded.
template <Binary op, bool aSpread, bool bSpread>
TWIN_INLINE void RegisterReps(float *d, const float *a, const float *b, const RepShape &s,
                              uint32_t regs)
{
    constexpr uint32_t block = PerBlock<float>();
    for (uint32_t r = 0; r < s.repeat; ++r) {
        for (uint32_t w = 0; w < regs; ++w) {
            VF old{};
            if constexpr (op >= Binary::kMulAddDst) {
                old = Load(d + w * kLanes);
            }
            Store(d + w * kLanes,
                  OfRegisters<op>(old, TakeRegister<aSpread>(a, w), TakeRegister<bSpread>(b, w)));
        }
        d += s.dRep * block;
        a += s.aRep * block;
        b += s.bRep * block;
    }
}

/// Does the call if it has the form described above; false leaves it to WalkRep.
template <Binary op>
TWIN_INLINE bool TryRegisters(float *d, const float *a, const float *b, const RepShape &s)
{
    constexpr uint32_t lanes = 64;
    const uint32_t prefix = PrefixLanes(s.mask, lanes);
    // A spread destination is not looked for, nor an operand that is spread over by itself twice.
    if (prefix == 0 || prefix % kLanes != 0 || s.dBlk != 1 || s.aBlk > 1 || s.bBlk > 1) {
        return false;
    }
    auto run = [&](auto aSpread, auto bSpread) TWIN_LAMBDA {
        constexpr bool x = decltype(aSpread)::value, y = decltype(bSpread)::value;
        if (prefix == lanes) {
            RegisterReps<op, x, y>(d, a, b, s, lanes / kLanes);
        } else {
            RegisterReps<op, x, y>(d, a, b, s, prefix / kLanes);
        }
    };
    if (s.aBlk == 1 && s.bBlk == 1) {
        run(Int<0>{}, Int<0>{});
    } else if (s.aBlk == 1) {
        run(Int<0>{}, Int<1>{});
    } else if (s.bBlk == 1) {
        run(Int<1>{}, Int<0>{});
    } else {
        return false;
    }
    return true;
}

}  // namespace twin::TWIN_ISA
