// SPDX-License-Identifier: Apache-2.0
// What one core of the simulated chip looks like to the code that runs on it, in both builds.
// The checked machine derives from it (machine/checked_core.h); kernels and API see only this part.
#ifndef FLA_TWIN_MACHINE_CORE_H
#define FLA_TWIN_MACHINE_CORE_H

#include "types.h"

namespace twin
{

/// Special registers an instruction may set for later ones. They survive until changed, as on the
/// device.
struct Registers {
    uint64_t mask[2];             // vector mask, low and high lanes; all ones at kernel start
    bool counterMode;             // mask[0] is an element count, repeatTime is ignored
    uint8_t atomic;               // 0 none, 1 add, 2 max, 3 min: what a store to GM does
    uint8_t atomicType;           // element type of the atomic, as the API encodes it
    uint64_t compareMask[2];      // SetCmpMask / Compare without destination
    float deqScale;               // SetDeqScale
    double accumulated;           // GetAccVal
    uint64_t reduceMaxMin[2];     // GetReduceMaxMinCount: value bits, index
    bool hf32;                    // SetHF32Mode: fp32 operands of Mmad lose mantissa bits
    uint64_t padValue;            // SetLoadDataPaddingValue / SetPadValue bits
    uint16_t fmatrixH, fmatrixW;  // SetFmatrix
    uint8_t fmatrixPad[4];
    uint16_t loadRepeatStride;  // SetLoadDataRepeat
    uint8_t loadRepeatTime, loadRepeatMode;
    uint64_t fixpipeQuant;  // SetFixpipePreQuantFlag
    bool rowMajorUnitFlag;  // SetMMLayoutTransform

    void Reset()
    {
        *this = Registers{};
        mask[0] = mask[1] = ~0ULL;
    }
};

/// Kernel types of CANN, by the cores they start.
enum class KernelType : uint8_t { kAivOnly, kAicOnly, kMixAiv10, kMixAic10, kMixAic11, kMixAic12 };

struct Core {
    uint8_t *store[kLocalSpaces];  // host images; an AIC has no UB, an AIV only UB
    CoreType type;
    uint32_t group;   // AIC number; an AIV shares it with its partner
    uint32_t sub;     // 0 or 1 among the AIVs of a group
    uint32_t groups;  // blockDim
    uint32_t ratio;   // AIVs per group of this kernel type (what GetTaskRation returns on AIV)
    KernelType kernelType;  // MIX 1:2 until the kernel declares another
    void *tpipe;            // the kernel's TPipe, for GetTPipePtr
    Registers regs;
};

/// The core the calling fiber is. Fibers never change their OS thread.
extern TWIN_EXPORT __thread Core *tCore;
inline Core &Me()
{
    return *tCore;
}

inline uint32_t BlockIndex(const Core &c)
{
    return c.type == CoreType::AIV ? c.group * c.ratio + c.sub : c.group;
}

/// What KERNEL_TASK_TYPE_DEFAULT does: false when this core does not exist in a kernel of that
/// type, and the entry returns at once. (On the device a pre-compile pass reads the macro and never
/// starts the core.)
inline bool EnterKernel(KernelType type)
{
    Core &c = Me();
    bool cube = c.type == CoreType::AIC;
    c.kernelType = type;
    c.ratio = type == KernelType::kMixAic12 ? 2 : 1;
    switch (type) {
        case KernelType::kAivOnly:
        case KernelType::kMixAiv10:
            return !cube && c.sub == 0;
        case KernelType::kAicOnly:
        case KernelType::kMixAic10:
            return cube;
        default:
            return cube || c.sub < c.ratio;
    }
}

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_CORE_H
