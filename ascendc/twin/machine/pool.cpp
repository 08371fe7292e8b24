// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "openmp.h"

namespace twin
{

namespace
{

// One launch at a time. A launch wakes as many helpers as it asks for, works itself, and waits for
// those that came; idle helpers sleep, because the caller's framework needs the cores between
// launches. The caller looks for the last helper a while before it sleeps too: being woken takes
// longer than most waits.
//
// The threads of a framework may spin on the other CPUs for milliseconds after its last operation,
// and a helper shares a CPU with one of them. So helpers are kept off the caller's CPU while it
// works, the caller does not wait for one that has not begun when nothing is left to take, and when
// it must wait it lends its CPU to one that works.
class Pool
{
  public:
    // Remembers who made it: threads do not follow a fork.
    Pool() : process_(getpid()) {}
    pid_t Process() const { return process_; }

    void Run(uint32_t helpers, const std::function<void()> &work)
    {
        std::lock_guard<std::mutex> oneLaunch(launch_);
        {
            std::lock_guard<std::mutex> hold(lock_);
            while (helpers_.size() < helpers) {
                Helper &helper = helpers_.emplace_back();
                helper.thread = std::thread([this, &helper] { Serve(helper); });
            }
            LeaveCallerAlone();
            work_ = &work;
            wanted_ = helpers;
            busy_ = helpers;
        }
        wake_.notify_all();
        work();
        Dismiss();
        for (int spin = 0; spin < kSpins && busy_.load(std::memory_order_acquire) != 0; ++spin) {
            Pause();
        }
        std::unique_lock<std::mutex> hold(lock_);
        LendCpu();
        done_.wait(hold, [this] { return busy_ == 0; });
    }

  private:
    struct Helper {
        std::thread thread;
        bool working = false;
    };

    // Nothing is left to take: a helper that has not come yet need not.
    void Dismiss()
    {
        std::lock_guard<std::mutex> hold(lock_);
        busy_ -= wanted_;
        wanted_ = 0;
    }

    // Not a yield: to a thread that spins, that gives away a whole time slice.
    static void Pause()
    {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    void LeaveCallerAlone()
    {
        const int cpu = sched_getcpu();
        cpu_set_t others;
        if (cpu < 0 || sched_getaffinity(0, sizeof others, &others) != 0) {
            return;
        }
        CPU_CLR(cpu, &others);
        if (CPU_COUNT(&others) == 0) {
            return;
        }
        for (Helper &helper : helpers_) {
            pthread_setaffinity_np(helper.thread.native_handle(), sizeof others, &others);
        }
    }

    // An order rather than a permission: idle CPUs seldom look for work within a launch's time.
    void LendCpu()
    {
        const int cpu = sched_getcpu();
        auto working = std::find_if(helpers_.begin(), helpers_.end(),
                                    [](const Helper &helper) { return helper.working; });
        if (cpu < 0 || working == helpers_.end()) {
            return;
        }
        cpu_set_t mine;
        CPU_ZERO(&mine);
        CPU_SET(cpu, &mine);
        pthread_setaffinity_np(working->thread.native_handle(), sizeof mine, &mine);
    }

    // A helper takes one share of the launch and goes back to sleep.
    void Serve(Helper &self)
    {
        std::unique_lock<std::mutex> hold(lock_);
        while (true) {
            wake_.wait(hold, [this] { return wanted_ != 0; });
            --wanted_;
            self.working = true;
            const std::function<void()> *work = work_;
            hold.unlock();
            (*work)();
            hold.lock();
            self.working = false;
            if (--busy_ == 0) {
                done_.notify_all();
            }
        }
    }

    static constexpr int kSpins = 8000;  // some 200 us

    pid_t process_;
    std::mutex launch_, lock_;
    std::condition_variable wake_, done_;
    std::deque<Helper> helpers_;  // which stay where they are
    const std::function<void()> *work_ = nullptr;
    uint32_t wanted_ = 0;
    std::atomic<uint32_t> busy_{0};
};

// Made at the first launch that needs it: importing the package must not start threads. Never
// destroyed: at exit the helpers sleep, and in a forked child they do not exist, so nobody could
// join them (or destroy the condition they slept on) without hanging.
Pool &ThePool()
{
    static std::mutex guard;
    static Pool *pool = nullptr;
    std::lock_guard<std::mutex> hold(guard);
    if (pool == nullptr || pool->Process() != getpid()) {
        pool = new Pool();
    }
    return *pool;
}

}  // namespace

// Launches of one thread never touch the pool, so they may run side by side in several application
// threads.
void RunOnThreads(uint32_t threads, const std::function<void()> &work)
{
    if (threads <= 1) {
        work();
        return;
    }
    if (OpenMp *team = TorchOpenMp(); team != nullptr && team->Threads() >= threads) {
        team->Run(threads, work);
        return;
    }
    ThePool().Run(threads - 1, work);
}

}  // namespace twin
