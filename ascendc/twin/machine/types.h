// SPDX-License-Identifier: Apache-2.0
// The nouns of the simulated machine: pipes, stores, core types, places in kernel source.
// Everything else in the twin is written in these words; this header uses nothing but the standard
// library.
#ifndef FLA_TWIN_MACHINE_TYPES_H
#define FLA_TWIN_MACHINE_TYPES_H

#include <cstddef>
#include <cstdint>

// The API and the kernels are compiled four times ({fast, checked} x {AIC, AIV}) and may be linked
// into one shared object. Each build lives in its own inline namespace, so that no two bodies share
// a symbol.
#ifndef TWIN_CHECKED
#define TWIN_CHECKED 0
#endif
#ifndef TWIN_CORE
#define TWIN_CORE AIV
#endif
#define TWIN_JOIN2(a, b) a##b
#define TWIN_JOIN(a, b) TWIN_JOIN2(a, b)
#if TWIN_CHECKED
#define TWIN_NS TWIN_JOIN(checked_, TWIN_CORE)
#else
#define TWIN_NS TWIN_JOIN(fast_, TWIN_CORE)
#endif

/// What libfla_twin offers to kernel libraries; all else is hidden.
#define TWIN_EXPORT __attribute__((visibility("default")))

namespace twin
{

/// The instruction queues of one core. S issues for all the others.
enum class Pipe : uint8_t { S, V, M, MTE1, MTE2, MTE3, FIX, kCount };
constexpr int kPipes = static_cast<int>(Pipe::kCount);

/// Address spaces. UB belongs to an AIV, L1 to FB to an AIC, GM to all.
enum class Space : uint8_t { UB, L1, L0A, L0B, L0C, BT, FB, GM, kCount };
constexpr int kLocalSpaces = static_cast<int>(Space::GM);

constexpr const char *kSpaceName[] = {"UB", "L1", "L0A", "L0B", "L0C", "BT", "FB", "GM"};
constexpr const char *kPipeName[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};

/// How an instruction touches bytes; the last two write.
enum class Access : uint8_t { kRead, kReadAny, kWrite, kWriteUndefined };
constexpr bool IsWrite(Access a)
{
    return a >= Access::kWrite;
}

enum class CoreType : uint8_t { AIC, AIV };

/// A line of kernel source. API functions take it as a defaulted last parameter, see TWIN_HERE.
struct Where {
    const char *file;
    int line;
    static constexpr Where Here(const char *f = __builtin_FILE(), int l = __builtin_LINE())
    {
        return {f, l};
    }
};

// Evaluated where the call is written: a fault names the kernel's line without a macro at the call.
// (Through a function: GCC folds the two built-ins at the declaration when they stand inside
// braces.)
#define TWIN_HERE ::twin::Where where = ::twin::Where::Here()

/// Bytes a kernel may use. UB is 192 KB less the 8 KB the framework scribbles on, L1 512 KB less
/// the message area.
constexpr uint32_t kSpaceBytes[kLocalSpaces] = {184 * 1024, 511 * 1024, 64 * 1024, 64 * 1024,
                                                128 * 1024, 1024,       2048};

/// Smallest start alignment an instruction accepts in each space.
constexpr uint32_t kSpaceAlign[kLocalSpaces] = {32, 32, 512, 512, 64, 64, 128};

/// L0A and L0B hold operands already widened to fp32 on the host: the host address is
/// `(float *)base + byteOffset / 2 (+ element)`, so their host image is twice the device size.
constexpr bool IsWidened(Space s)
{
    return s == Space::L0A || s == Space::L0B;
}
constexpr uint32_t HostBytes(Space s)
{
    // Whole device size (not only the usable part) plus a guard, so that a fast build that
    // overruns by one vector does not leave its own arena.
    constexpr uint32_t device[kLocalSpaces] = {192 * 1024, 512 * 1024, 64 * 1024, 64 * 1024,
                                               128 * 1024, 1024,       4096};
    return device[static_cast<int>(s)] * (IsWidened(s) ? 2 : 1) + 256;
}

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_TYPES_H
