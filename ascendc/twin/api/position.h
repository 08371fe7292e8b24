// SPDX-License-Identifier: Apache-2.0
// Logical positions, pipes and events under the names CANN gives them, and what each of them is on
// this machine.
#ifndef FLA_TWIN_API_POSITION_H
#define FLA_TWIN_API_POSITION_H

#include "../machine/types.h"

// Global, not in AscendC: the device compiler predefines these.
enum pipe_t {
    PIPE_S = 0,
    PIPE_V = 1,
    PIPE_M = 2,
    PIPE_MTE1 = 3,
    PIPE_MTE2 = 4,
    PIPE_MTE3 = 5,
    PIPE_ALL = 6,
    PIPE_FIX = 10,
};

// Names for small numbers; SetFlag takes any integer.
enum event_t {
    EVENT_ID0 = 0,
    EVENT_ID1,
    EVENT_ID2,
    EVENT_ID3,
    EVENT_ID4,
    EVENT_ID5,
    EVENT_ID6,
    EVENT_ID7
};

namespace AscendC
{

using TEventID = int8_t;

// clang-format off
// The order of these two enumerations is CANN's, because kernels may print or store the numbers.
enum class TPosition : uint8_t {
    GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM = VECCALC, SPM, SHM = SPM, TSCM,
    C2PIPE2GM, C2PIPE2LOCAL, MAX,
};
using QuePosition = TPosition;

enum class HardEvent : uint8_t {
    MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3, M_V, V_M, V_V, MTE3_MTE1,
    MTE1_MTE3, MTE1_V, MTE2_M, M_MTE2, V_MTE1, M_FIX, FIX_M, MTE3_MTE2, MTE2_MTE3, S_V, V_S, S_MTE2,
    MTE2_S, S_MTE3, MTE3_S, MTE2_FIX, FIX_MTE2, FIX_S, M_S, FIX_MTE3, MTE1_FIX, FIX_MTE1, FIX_FIX, MAX,
};
// clang-format on

// Arguments of the cache calls. Hints about L2 exist so that kernels compile; the twin has no L2.
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
enum class MemDsbT : uint8_t { ALL = 0, DDR, UB, SEQ };
enum class CacheMode {
    CACHE_MODE_DISABLE = 0,
    CACHE_MODE_NORMAL = 1,
    CACHE_MODE_LAST = 2,
    CACHE_MODE_PERSISTENT = 4
};
enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };

}  // namespace AscendC

namespace twin
{

/// The store behind a position. CO2 is GM, as on a chip whose L0C only drains to memory.
constexpr Space SpaceOf(AscendC::TPosition p)
{
    using P = AscendC::TPosition;
    switch (p) {
        case P::VECIN:
        case P::VECOUT:
        case P::VECCALC:
            return Space::UB;
        case P::A1:
        case P::B1:
        case P::C1:
        case P::TSCM:
            return Space::L1;
        case P::A2:
            return Space::L0A;
        case P::B2:
            return Space::L0B;
        case P::CO1:
            return Space::L0C;
        case P::C2:
            return Space::BT;
        case P::C2PIPE2GM:
            return Space::FB;
        default:
            return Space::GM;
    }
}

/// PIPE_ALL has no single pipe and becomes kCount.
constexpr Pipe PipeOf(pipe_t p)
{
    switch (p) {
        case PIPE_V:
            return Pipe::V;
        case PIPE_M:
            return Pipe::M;
        case PIPE_MTE1:
            return Pipe::MTE1;
        case PIPE_MTE2:
            return Pipe::MTE2;
        case PIPE_MTE3:
            return Pipe::MTE3;
        case PIPE_FIX:
            return Pipe::FIX;
        case PIPE_S:
            return Pipe::S;
        default:
            return Pipe::kCount;  // PIPE_ALL
    }
}

/// A flag goes from one pipe to another.
struct EventPipes {
    Pipe from, to;
};

/// HardEvent X_Y: X raises, Y waits. In the order of the enumeration.
constexpr EventPipes kEventPipes[] = {
    {Pipe::MTE2, Pipe::MTE1}, {Pipe::MTE1, Pipe::MTE2}, {Pipe::MTE1, Pipe::M},
    {Pipe::M, Pipe::MTE1},    {Pipe::MTE2, Pipe::V},    {Pipe::V, Pipe::MTE2},
    {Pipe::MTE3, Pipe::V},    {Pipe::V, Pipe::MTE3},    {Pipe::M, Pipe::V},
    {Pipe::V, Pipe::M},       {Pipe::V, Pipe::V},       {Pipe::MTE3, Pipe::MTE1},
    {Pipe::MTE1, Pipe::MTE3}, {Pipe::MTE1, Pipe::V},    {Pipe::MTE2, Pipe::M},
    {Pipe::M, Pipe::MTE2},    {Pipe::V, Pipe::MTE1},    {Pipe::M, Pipe::FIX},
    {Pipe::FIX, Pipe::M},     {Pipe::MTE3, Pipe::MTE2}, {Pipe::MTE2, Pipe::MTE3},
    {Pipe::S, Pipe::V},       {Pipe::V, Pipe::S},       {Pipe::S, Pipe::MTE2},
    {Pipe::MTE2, Pipe::S},    {Pipe::S, Pipe::MTE3},    {Pipe::MTE3, Pipe::S},
    {Pipe::MTE2, Pipe::FIX},  {Pipe::FIX, Pipe::MTE2},  {Pipe::FIX, Pipe::S},
    {Pipe::M, Pipe::S},       {Pipe::FIX, Pipe::MTE3},  {Pipe::MTE1, Pipe::FIX},
    {Pipe::FIX, Pipe::MTE1},  {Pipe::FIX, Pipe::FIX},
};
constexpr int kEvents = static_cast<int>(AscendC::HardEvent::MAX);
static_assert(sizeof(kEventPipes) / sizeof(kEventPipes[0]) == kEvents, "one row per HardEvent");

/// The HardEvent from one pipe to another, MAX when the hardware has none.
constexpr AscendC::HardEvent EventBetween(Pipe from, Pipe to)
{
    for (int e = 0; e < kEvents; ++e) {
        if (kEventPipes[e].from == from && kEventPipes[e].to == to) {
            return static_cast<AscendC::HardEvent>(e);
        }
    }
    return AscendC::HardEvent::MAX;
}

}  // namespace twin
#endif  // FLA_TWIN_API_POSITION_H
