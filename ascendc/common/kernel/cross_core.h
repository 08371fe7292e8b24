// SPDX-License-Identifier: Apache-2.0
// Traffic between the cube core of a group and its two vector cores: a ring of slots in GM
// workspace.
//
// Each slot has two flags of its own, so no counter ever exceeds one: `ready` (producer ->
// consumer: the slot is filled) and `free` (consumer -> producer: the slot may be overwritten; the
// credit). Flags are mode 2: what the cube core sets reaches both vector cores, and the cube core
// goes on once both vector cores have set. Each end counts its own uses; nothing else is shared.
// The producer drains at the end, so that every flag is back at zero when the kernel leaves.
//
//   producer  slot = Acquire(); ...write the slot...; Publish<PIPE_MTE3>();   ... finally Drain();
//   consumer  slot = Take();    ...read the slot...;  Release<PIPE_MTE2>();
#ifndef FLA_COMMON_KERNEL_CROSS_CORE_H
#define FLA_COMMON_KERNEL_CROSS_CORE_H

#include "kernel_operator.h"

namespace fla
{

// AIC <-> its two AIVs.
constexpr uint8_t kGroupMode = 2;
// Ids 0..10 are ours; SyncAll takes 11..14.
constexpr uint32_t kCrossFlags = 11;

/// Flag ids of one ring: `kFirstFlag` .. + depth - 1 are ready flags, the next `depth` are free
/// flags.
template <uint16_t kFirstFlag, uint32_t kDepth>
struct RingFlags {
    static constexpr uint32_t depth = kDepth;
    static constexpr uint16_t ready = kFirstFlag;
    static constexpr uint16_t free = kFirstFlag + kDepth;
    static constexpr uint16_t next = kFirstFlag + 2 * kDepth;  // first id after this ring
    static_assert(next <= kCrossFlags, "cross-core flag ids end at 10");
};

/// The end that fills slots. `Flags` is a RingFlags.
template <typename Flags>
class RingProducer
{
  public:
    /// Slot to write; waits for its credit unless it was never used.
    __aicore__ inline uint32_t Acquire()
    {
        const uint32_t slot = used_ % Flags::depth;
        if (used_ >= Flags::depth) {
            AscendC::CrossCoreWaitFlag(Flags::free + slot);
        }
        return slot;
    }

    /// The slot is filled as soon as `kPipe` has finished what it was given.
    template <pipe_t kPipe>
    __aicore__ inline void Publish()
    {
        AscendC::CrossCoreSetFlag<kGroupMode, kPipe>(Flags::ready + used_ % Flags::depth);
        ++used_;
    }

    /// Takes back the credits still out: those of the last slots filled.
    __aicore__ inline void Drain()
    {
        const uint32_t out = used_ < Flags::depth ? used_ : Flags::depth;
        for (uint32_t use = used_ - out; use < used_; ++use) {
            AscendC::CrossCoreWaitFlag(Flags::free + use % Flags::depth);
        }
        used_ = 0;
    }

  private:
    uint32_t used_ = 0;
};

/// The end that empties slots.
template <typename Flags>
class RingConsumer
{
  public:
    /// Waits for the next slot to be filled.
    __aicore__ inline uint32_t Take()
    {
        const uint32_t slot = used_ % Flags::depth;
        AscendC::CrossCoreWaitFlag(Flags::ready + slot);
        return slot;
    }

    /// The slot may be overwritten as soon as `kPipe` has finished what it was given.
    template <pipe_t kPipe>
    __aicore__ inline void Release()
    {
        AscendC::CrossCoreSetFlag<kGroupMode, kPipe>(Flags::free + used_ % Flags::depth);
        ++used_;
    }

  private:
    uint32_t used_ = 0;
};

}  // namespace fla
#endif  // FLA_COMMON_KERNEL_CROSS_CORE_H
