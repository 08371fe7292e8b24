// SPDX-License-Identifier: Apache-2.0
// A cooperative task with its own stack. A fiber stays on the OS thread that first ran it.
#ifndef FLA_TWIN_MACHINE_FIBER_H
#define FLA_TWIN_MACHINE_FIBER_H

#include <csetjmp>
#include <cstddef>

namespace twin
{

class Fiber
{
  public:
    Fiber() = default;
    ~Fiber();
    Fiber(const Fiber &) = delete;
    Fiber &operator=(const Fiber &) = delete;

    /// Prepares to run entry(argument) at the next Resume. The previous entry must have returned.
    void Start(void (*entry)(void *), void *argument);
    /// Runs the fiber on the caller's thread until it yields or returns.
    void Resume();
    /// Called inside a fiber: back to whoever resumed it.
    void Yield();
    bool Done() const { return done_; }
    /// Gives a fiber up that has not run yet; one that has must return by itself (its frames own
    /// things).
    void CancelIfNotStarted() { done_ = done_ || !started_; }

  private:
    static void Trampoline();
    void Main();

    // One page below the stack is inaccessible: an overflow ends in a clear crash, not in another
    // core's stack.
    static constexpr size_t kStackBytes = 256 * 1024;
    char *stack_ = nullptr;
    void (*entry_)(void *) = nullptr;
    void *argument_ = nullptr;
    bool started_ = false;
    bool done_ = true;
    std::jmp_buf inside_;
    std::jmp_buf outside_;
};

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_FIBER_H
