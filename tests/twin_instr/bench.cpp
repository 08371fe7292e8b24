// SPDX-License-Identifier: Apache-2.0
// Rates of the primitives on tiles as the kernels use them, for bench_prims.py. Each function times
// itself in here, where a call costs nothing, and returns the best seconds per call.
#include "prims.h"

#include <cstdlib>
#include <ctime>

using namespace twin;

namespace
{

double CpuSeconds()
{
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Best of several batches: other processes only ever add time.
template <typename F>
double Best(int calls, F f)
{
    double best = 1e9;
    for (int round = 0; round < 15; ++round) {
        const double start = CpuSeconds();
        for (int i = 0; i < calls; ++i) {
            f();
        }
        const double seconds = (CpuSeconds() - start) / calls;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/// Arenas as large as L0 and UB images, filled with plain numbers: no denormals, no nan.
float *Arena(int which)
{
    static float *arenas[3];
    constexpr size_t kFloats = 1 << 17;
    if (arenas[which] == nullptr) {
        arenas[which] = static_cast<float *>(std::aligned_alloc(4096, kFloats * sizeof(float)));
        for (size_t i = 0; i < kFloats; ++i) {
            arenas[which][i] = static_cast<float>((i * 7919) % 1000) / 1000.0f + 0.01f;
        }
    }
    return arenas[which];
}

}  // namespace

#define BENCH extern "C" __attribute__((visibility("default")))

BENCH double bench_mmad(uint32_t m, uint32_t n, uint32_t k, uint32_t depth)
{
    const MmadShape s{m, n, k, depth, false, false};
    const int calls = 1 + static_cast<int>(2e7 / (2.0 * m * n * k));
    return Best(calls, [&] { P().mmad(Arena(2), Arena(0), Arena(1), s); });
}
BENCH double bench_unary(int op, uint32_t n)
{
    return Best(200, [&] { P().unary[op][0](Arena(2), Arena(0), n); });
}
BENCH double bench_binary(int op, uint32_t n)
{
    return Best(200, [&] { P().binary[op][0](Arena(2), Arena(0), Arena(1), n); });
}
BENCH double bench_cast(int pair, int mode, uint32_t n)
{
    return Best(200, [&] { P().cast[pair][mode](Arena(2), Arena(0), n); });
}
/// A 64 x 128 tile: GM rows to L1.
BENCH double bench_nd2nz(uint32_t elemBytes)
{
    const Nd2Nz s{1, 64, 128, 0, 128, 64, 1, 0};
    return Best(200, [&] { P().nd2nz(Arena(2), Arena(0), s, elemBytes); });
}
/// 32 fractals of bf16 to L0.
BENCH double bench_load(int side, int transpose)
{
    const Load2d s{0, 32, 1, 1, 0, transpose != 0};
    return Best(200,
                [&] { P().load2d(Arena(2), Arena(0), s, static_cast<L0>(side), L0Type::kBf16); });
}
/// A 64 x 128 product to GM rows.
BENCH double bench_fixpipe(int out)
{
    const Fixpipe s{64, 128, 64 * 16, 128, 1, 0, 0, false, false};
    return Best(200, [&] { P().fixpipeRows[out](Arena(2), Arena(0), s); });
}
