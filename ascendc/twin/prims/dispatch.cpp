// SPDX-License-Identifier: Apache-2.0
//
// dispatch.cpp - picks the table. Compiled without instruction-set flags: it runs first.
#include "prims.h"

#include <cstdlib>
#include <cstring>

namespace twin
{

// What table_vector.cpp and table_cube.cpp define in the namespace of each instruction set.
#define TWIN_DECLARE_ISA(isa)       \
    namespace isa                   \
    {                               \
    void FillVector(Prims &p);      \
    void FillCube(Prims &p);        \
    inline void FillTable(Prims &p) \
    {                               \
        FillVector(p), FillCube(p); \
    }                               \
    }
TWIN_DECLARE_ISA(baseline)
#if defined(__x86_64__)
TWIN_DECLARE_ISA(avx2)
TWIN_DECLARE_ISA(avx512)
#endif
#undef TWIN_DECLARE_ISA

namespace
{

struct Isa {
    const char *name;
    void (*fill)(Prims &);
    bool (*here)();
};

bool Always()
{
    return true;
}
#if defined(__x86_64__)
// The levels x86-64-v3 and v4 as the compiler flags define them.
bool HasAvx2()
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi");
}
bool HasAvx512()
{
    return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}
#endif

// Best last.
constexpr Isa kIsas[] = {
    {"baseline", baseline::FillTable, Always},
#if defined(__x86_64__)
    {"avx2", avx2::FillTable, HasAvx2},
    {"avx512", avx512::FillTable, HasAvx512},
#endif
};

const char *active = "";

}  // namespace

// Zero until the constructor below has run; nothing launches a kernel before that.
Prims gPrims;

const char *IsaName()
{
    return active;
}

bool UseIsa(const char *name)
{
    const Isa *chosen = nullptr;
    const bool any = name == nullptr || name[0] == '\0';
    for (const Isa &isa : kIsas) {
        if (isa.here() && (any || std::strcmp(name, isa.name) == 0)) {
            chosen = &isa;
        }
    }
    if (chosen == nullptr) {
        return false;
    }
    if (active != chosen->name) {
        Prims fresh{};
        chosen->fill(fresh);
        gPrims = fresh;
        active = chosen->name;
    }
    return true;
}

namespace
{

// An unknown or unavailable name falls back to the best set: results are valid either way, and
// IsaName tells what runs.
struct AtLoad {
    AtLoad()
    {
        if (!UseIsa(std::getenv("FLA_NPU_TWIN_ISA"))) {
            UseIsa(nullptr);
        }
    }
} atLoad;

}  // namespace

}  // namespace twin
