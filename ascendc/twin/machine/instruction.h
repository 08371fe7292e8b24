// SPDX-License-Identifier: Apache-2.0
/*
 * Instruction — one body per API function for both builds
 *
 *   template <typename T> inline void Add(const LocalTensor<T> &d, const LocalTensor<T> &a,
 *                                         const LocalTensor<T> &b, int32_t n, TWIN_HERE)
 *   {
 *       twin::Issue<twin::Pipe::V>("Add", where,
 *           [&](auto &i) { i.Reads(a, n).Reads(b, n).Writes(d, n).Lanes(n, 256 / sizeof(T)); },
 *           [=] { twin::P().add(d.Host(), a.Host(), b.Host(), n); });
 *   }
 *
 * The first lambda DECLARES what the instruction touches and what it requires. It is a generic
 * lambda, which the fast build never instantiates: there it costs nothing, not even a branch. In
 * the checked build every call in it is checked as it is made: core type, alignment, bounds,
 * initialised bytes, order (vector clocks). DECLARE READS BEFORE WRITES, or an in-place operation
 * vouches for its own input.
 *
 * The second lambda is the EFFECT. It captures BY VALUE and only trivially copyable things
 * (tensors, parameter structs, numbers; a register such as the atomic mode is read when the
 * instruction is issued, so copy it outside), because the checked build may keep it for later:
 * copies on MTE2, MTE3 and FIX run as late as the flags allow. It must not fault and must call the
 * same primitive in both builds, so that results are bitwise equal.
 *
 * Regions. A tensor is passed as it is; `count` is in elements from the tensor's first. For
 * anything but a contiguous run pass an Extent (bytes, relative to the tensor's first byte, two
 * levels of stride): i.Reads(a, twin::Extent{0, 32, 8, blkStride * 32, repeat, repStride * 32}); A
 * stride may be 0 (re-read). The start address of the tensor must be aligned as its space demands
 * (types.h kSpaceAlign; GM: element size); pass `align` in bytes to override it (1 = none), e.g.
 * for a reduction's result.
 */
#ifndef FLA_TWIN_MACHINE_INSTRUCTION_H
#define FLA_TWIN_MACHINE_INSTRUCTION_H

#include <new>
#include <type_traits>
#include <utility>

#include "core.h"

namespace twin
{

/// Bytes relative to a tensor's start: run bytes, repeated count1 times every stride1, all of it
/// count2 times every stride2. Neighbouring runs that touch are merged by the checker, so describe
/// the shape as it is.
struct Extent {
    uint64_t start = 0;
    uint32_t run = 0;
    uint32_t count1 = 1;
    uint64_t stride1 = 0;
    uint32_t count2 = 1;
    uint64_t stride2 = 0;
};

/// A tensor as the machine sees it. LocalTensor and GlobalTensor make one by Region().
struct Region {
    Space space;
    uint8_t elementBytes;
    uint64_t address;   // byte offset in the space; for GM the host address
    uint64_t capacity;  // bytes from address that belong to the tensor, ~0 when unknown
};

/// Routes of the data path, for the byte counters and the simulated time (rates of the chip table).
enum class Route : uint8_t {
    kGmToUb,
    kUbToGm,
    kGmToL1,
    kL1ToGm,
    kGmToL0,
    kL1ToL0A,
    kL1ToL0B,
    kL1ToBt,
    kL1ToFb,
    kL0cToGm,
    kL0cToL1,
    kUbToUb,
    kFill,
    kCount
};

/// One instruction of the checked build. Never constructed by the fast build.
class TWIN_EXPORT Instruction
{
  public:
    Instruction(Pipe pipe, const char *name, Where where);
    Instruction(const Instruction &) = delete;
    Instruction &operator=(const Instruction &) = delete;

    // --- what it touches
    // --------------------------------------------------------------------------------
    /// Every byte must be initialised and ordered after its last writer.
    template <class Tensor>
    Instruction &Reads(const Tensor &t, uint64_t count, uint32_t align = 0)
    {
        return Touch(t.Region(), Contiguous(t, count), Access::kRead, align);
    }
    template <class Tensor>
    Instruction &Reads(const Tensor &t, const Extent &e, uint32_t align = 0)
    {
        return Touch(t.Region(), e, Access::kRead, align);
    }
    /// Ordered, but may hold undefined bytes (LoadData takes whole fractals with rows nobody
    /// wrote). Say with CopiesDefined / SetDefined what becomes of them.
    template <class Tensor>
    Instruction &ReadsAny(const Tensor &t, const Extent &e, uint32_t align = 0)
    {
        return Touch(t.Region(), e, Access::kReadAny, align);
    }
    /// Every byte becomes defined. Ordered after all earlier readers and writers of it.
    template <class Tensor>
    Instruction &Writes(const Tensor &t, uint64_t count, uint32_t align = 0)
    {
        return Touch(t.Region(), Contiguous(t, count), Access::kWrite, align);
    }
    template <class Tensor>
    Instruction &Writes(const Tensor &t, const Extent &e, uint32_t align = 0)
    {
        return Touch(t.Region(), e, Access::kWrite, align);
    }
    /// The device leaves something there that nobody may rely on (pad tails, L0C lanes beyond m and
    /// n).
    template <class Tensor>
    Instruction &WritesUndefined(const Tensor &t, const Extent &e, uint32_t align = 0)
    {
        return Touch(t.Region(), e, Access::kWriteUndefined, align);
    }

    // --- defined bytes, for instructions that move them unevenly; call after the Writes
    // ------------------
    /// Byte i of dst (from dstByte) is as defined as byte i of src (from srcByte).
    template <class D, class S>
    Instruction &CopiesDefined(const D &dst, uint64_t dstByte, const S &src, uint64_t srcByte,
                               uint32_t bytes)
    {
        return CopyDefined(dst.Region(), dstByte, src.Region(), srcByte, bytes);
    }
    template <class Tensor>
    bool IsDefined(const Tensor &t, uint64_t byte, uint32_t bytes) const
    {
        return QueryDefined(t.Region(), byte, bytes);
    }
    template <class Tensor>
    Instruction &SetDefined(const Tensor &t, uint64_t byte, uint32_t bytes, bool defined)
    {
        return MarkDefined(t.Region(), byte, bytes, defined);
    }

    // --- rules
    // --------------------------------------------------------------------------------------------
    /// Faults when !ok. rule: short kebab name ("repeat-range"); repair: what to write instead;
    /// then printf text that says what was passed. The text is formatted only when the rule is
    /// broken.
    Instruction &Require(bool ok, const char *rule, const char *repair, const char *format, ...)
        __attribute__((format(printf, 5, 6)));
    /// The instruction must be issued on this core type (Reads and Writes of local stores already
    /// imply it).
    Instruction &On(CoreType type);
    /// Only the stated spaces are legal for this operand; `operand` is the name used in the
    /// message.
    template <class Tensor>
    Instruction &In(const Tensor &t, Space space, const char *operand)
    {
        return RequireSpace(t.Region(), space, operand);
    }
    /// 4.2: the two operands must be the same address or disjoint (same == false: disjoint only).
    template <class A, class B>
    Instruction &NoOverlap(const A &a, uint64_t aBytes, const B &b, uint64_t bBytes,
                           bool sameAllowed)
    {
        return RequireDisjoint(a.Region(), aBytes, b.Region(), bBytes, sameAllowed);
    }
    /// The hardware orders this instruction after earlier ones of its own pipe without a
    /// PipeBarrier (Mmad of 10 fractals and more; Fixpipe is always so). Call it before the Reads
    /// and Writes it is about.
    Instruction &OrderedInPipe();

    // --- counters and simulated time
    // ------------------------------------------------------------------------
    Instruction &Moves(Route route, uint64_t bytes);
    Instruction &Lanes(uint64_t elements, uint32_t perCycle);
    /// cubeK: 16 half and bf16, 4 float, 8 float in HF32 mode, 32 int8.
    Instruction &Macs(uint32_t m, uint32_t n, uint32_t k, uint32_t cubeK);
    Instruction &Cycles(uint64_t cycles);

    /// Runs the effect now, or keeps it until a flag makes it due.
    template <class Effect>
    void Commit(const Effect &effect)
    {
        using E = std::decay_t<Effect>;
        static_assert(std::is_trivially_copyable_v<E>,
                      "capture by value, trivially copyable things only");
        static_assert(sizeof(E) <= kEffectBytes, "effect captures too much; raise kEffectBytes");
        if (void *slot = Finish([](void *e) { (*static_cast<E *>(e))(); })) {
            new (slot) E(effect);
        } else {
            effect();
        }
    }

    static constexpr size_t kEffectBytes = 448;

  private:
    template <class Tensor>
    static Extent Contiguous(const Tensor &t, uint64_t count)
    {
        // A run is 32 bits wide: split what is longer into a run and a count.
        uint64_t bytes = count * t.Region().elementBytes;
        if (bytes <= 0xffffffffULL) {
            return Extent{0, static_cast<uint32_t>(bytes)};
        }
        return Extent{0, 1U << 20, static_cast<uint32_t>((bytes + (1U << 20) - 1) >> 20),
                      1ULL << 20};
    }
    Instruction &Touch(const Region &r, const Extent &e, Access access, uint32_t align);
    template <class AnyShadow>
    void Sweep(AnyShadow &shadow, uint64_t origin, const Region &r, const Extent &e, Access access);
    void TouchLocal(const Region &r, const Extent &e, uint64_t end, Access access);
    void TouchGlobal(const Region &r, const Extent &e, uint64_t end, Access access);
    Instruction &CopyDefined(const Region &d, uint64_t dByte, const Region &s, uint64_t sByte,
                             uint32_t bytes);
    bool QueryDefined(const Region &r, uint64_t byte, uint32_t bytes) const;
    Instruction &MarkDefined(const Region &r, uint64_t byte, uint32_t bytes, bool defined);
    Instruction &RequireSpace(const Region &r, Space space, const char *operand);
    Instruction &RequireDisjoint(const Region &a, uint64_t aBytes, const Region &b, uint64_t bBytes,
                                 bool same);
    /// Closes the declaration. Returns storage for the effect when it is to run later, else null.
    void *Finish(void (*run)(void *));

    Pipe pipe_;
    bool orderedInPipe_ = false;
    uint16_t site_ = 0;
    uint32_t time_ = 0;
    uint64_t cycles_ = 0;
    const char *name_;
    Where where_;
};

inline namespace TWIN_NS
{

constexpr bool kChecked = TWIN_CHECKED != 0;

/// Issues one instruction on pipe P of the calling core. See the top of this file.
template <Pipe P, class Declare, class Effect>
inline __attribute__((always_inline)) void Issue(const char *name, Where where,
                                                 const Declare &declare, const Effect &effect)
{
    if constexpr (kChecked) {
        Instruction i(P, name, where);
        declare(i);
        i.Commit(effect);
    } else {
        effect();
    }
}

}  // namespace TWIN_NS
}  // namespace twin
#endif  // FLA_TWIN_MACHINE_INSTRUCTION_H
