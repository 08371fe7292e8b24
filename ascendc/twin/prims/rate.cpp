// SPDX-License-Identifier: Apache-2.0
//
// rate.cpp - what tools/bench asks of the library: which instruction set runs, and Mmad by itself.
// C symbols, because the caller is ctypes.
#include "prims.h"

#include <vector>

extern "C" TWIN_EXPORT const char *fla_twin_isa()
{
    return twin::IsaName();
}

/// C [m, n] = A [m, k] @ B [k, n] on operands as LoadData leaves bf16 ones, `repeat` times.
extern "C" TWIN_EXPORT void fla_twin_repeat_mmad(uint32_t m, uint32_t n, uint32_t k,
                                                 uint32_t repeat)
{
    // Bf16 fractals are 16 deep. Ones keep the sums finite whatever the number of repeats.
    constexpr uint32_t kDepth = 16;
    const auto up = [](uint32_t x) { return (x + kDepth - 1) / kDepth * kDepth; };
    // Operands start on a cache line, as the stores of the twin do.
    const auto aligned = [](std::vector<float> &v) {
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(v.data()) + 63) &
                                         ~uintptr_t{63});
    };
    std::vector<float> a(up(m) * up(k) + 16, 1.0F), b(up(k) * up(n) + 16, 1.0F),
        c(up(m) * up(n) + 16);
    for (uint32_t i = 0; i < repeat; ++i) {
        twin::P().mmad(aligned(c), aligned(a), aligned(b), {m, n, k, kDepth, false, false});
    }
}
