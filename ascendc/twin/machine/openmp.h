// SPDX-License-Identifier: Apache-2.0
#ifndef FLA_TWIN_MACHINE_OPENMP_H
#define FLA_TWIN_MACHINE_OPENMP_H

#include <cstdint>
#include <functional>

namespace twin
{

/// The OpenMP run time that a framework in this process is linked to. Its threads spin for up to
/// 10 ms after an operation: a launch on threads of its own shares the CPUs with them (1.2 to 3
/// times the time for a launch of 1 ms), a launch on theirs starts within a microsecond.
class OpenMp
{
  public:
    /// Threads that the caller's next parallel region would have.
    uint32_t Threads() const { return static_cast<uint32_t>(maxThreads_()); }
    /// Runs `work` on the first `threads` of them, the caller among them, perhaps on fewer.
    void Run(uint32_t threads, const std::function<void()> &work);

  private:
    friend OpenMp *TorchOpenMp();
    explicit OpenMp(void *library);
    bool Complete() const;

    // Part of the stable interface of GNU OpenMP, which LLVM's offers as well.
    void (*parallel_)(void (*)(void *), void *, unsigned, unsigned);
    int (*maxThreads_)();
    int (*threadNumber_)();
};

/// PyTorch's, or nothing: where PyTorch is not loaded, and in a process that was forked without an
/// exec, where the threads of its parent's team do not exist and a parallel region would wait for
/// them forever.
OpenMp *TorchOpenMp();

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_OPENMP_H
