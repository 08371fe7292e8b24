// SPDX-License-Identifier: Apache-2.0
// ucontext makes the first jump onto a fresh stack; after that _setjmp and _longjmp switch without
// the two system calls (signal mask) of swapcontext. A cube tile waits a dozen times, so the switch
// has to be cheap.

// The fortified longjmp refuses to jump to a frame "above" the current one, which is what a fiber
// switch is.
#undef _FORTIFY_SOURCE
#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

namespace twin
{

namespace
{
__thread Fiber *tStarting =
    nullptr;  // hands the fiber to its trampoline: makecontext passes only ints
}

Fiber::~Fiber()
{
    if (stack_ != nullptr) {
        munmap(stack_, kStackBytes);
    }
}

void Fiber::Start(void (*entry)(void *), void *argument)
{
    if (stack_ == nullptr) {
        void *p =
            mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            throw std::bad_alloc();
        }
        stack_ = static_cast<char *>(p);
        mprotect(stack_, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
    }
    entry_ = entry;
    argument_ = argument;
    started_ = false;
    done_ = false;
}

// _setjmp comes back with 1 when the fiber yields or ends. The first time a context is made for the
// new stack.
void Fiber::Resume()
{
    if (_setjmp(outside_) != 0) {
        return;
    }
    if (started_) {
        _longjmp(inside_, 1);
    }
    started_ = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    tStarting = this;
    makecontext(&context, &Fiber::Trampoline, 0);
    setcontext(&context);
}

void Fiber::Trampoline()
{
    tStarting->Main();
}

// Runs at the bottom of the fiber's stack and leaves by a jump: there is no frame to return to.
void Fiber::Main()
{
    entry_(argument_);
    done_ = true;
    _longjmp(outside_, 1);
}

void Fiber::Yield()
{
    if (_setjmp(inside_) == 0) {
        _longjmp(outside_, 1);
    }
}

}  // namespace twin
