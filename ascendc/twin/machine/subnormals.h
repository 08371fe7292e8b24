// SPDX-License-Identifier: Apache-2.0
// Flushes results below 2^-126 to zero while a kernel runs, in both builds.
//
// A departure from the hardware, which keeps subnormals at full speed; a CPU takes some 150 cycles
// for each. Strong gates make many of them (a decay on its way to zero), and a forward took four
// times as long with them. What is lost is below 1.2e-38, in places where the next step of the
// decay is zero anyway. Only results are flushed: data that arrives subnormal is read as it is.
#ifndef FLA_TWIN_MACHINE_SUBNORMALS_H
#define FLA_TWIN_MACHINE_SUBNORMALS_H

#include <cstdint>

namespace twin
{

class FlushSubnormals
{
  public:
    FlushSubnormals() : before_(Read()) { Write(before_ | kFlush); }
    ~FlushSubnormals() { Write(before_); }
    FlushSubnormals(const FlushSubnormals &) = delete;
    FlushSubnormals &operator=(const FlushSubnormals &) = delete;

  private:
#if defined(__x86_64__)
    static constexpr uint64_t kFlush = 1U << 15;  // MXCSR.FTZ
    static uint64_t Read() { return __builtin_ia32_stmxcsr(); }
    static void Write(uint64_t word) { __builtin_ia32_ldmxcsr(static_cast<uint32_t>(word)); }
#elif defined(__aarch64__)
    static constexpr uint64_t kFlush = 1U << 24;  // FPCR.FZ
    static uint64_t Read()
    {
        uint64_t word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void Write(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
    static constexpr uint64_t kFlush = 0;
    static uint64_t Read() { return 0; }
    static void Write(uint64_t) {}
#endif
    uint64_t before_;
};

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_SUBNORMALS_H
