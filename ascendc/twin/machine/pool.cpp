// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace twin
{

namespace
{

// One launch at a time. A launch wakes as many helpers as it asks for, works itself, and waits for
// them; idle helpers sleep, because the caller's framework needs the cores between launches. The
// caller looks for the last helper a while before it sleeps too: being woken takes longer than most
// waits.
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
            while (threads_.size() < helpers) {
                threads_.emplace_back([this] { Serve(); });
            }
            LeaveCallerAlone();
            work_ = &work;
            wanted_ = busy_ = helpers;
        }
        wake_.notify_all();
        work();
        for (int spin = 0; spin < kSpins && busy_.load(std::memory_order_acquire) != 0; ++spin) {
            std::this_thread::yield();
        }
        std::unique_lock<std::mutex> hold(lock_);
        done_.wait(hold, [this] { return busy_ == 0; });
    }

  private:
    // Keeps the helpers off the caller's CPU. Where the threads of a framework still spin on the
    // others after its last operation, the scheduler would wake a helper there, in the caller's
    // place, and one CPU would do the work of two.
    void LeaveCallerAlone()
    {
        cpu_set_t allowed;
        const int cpu = sched_getcpu();
        if (cpu < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
            return;
        }
        CPU_CLR(cpu, &allowed);
        if (CPU_COUNT(&allowed) == 0) {
            return;
        }
        for (std::thread &thread : threads_) {
            pthread_setaffinity_np(thread.native_handle(), sizeof allowed, &allowed);
        }
    }

    // A helper takes one share of the launch and goes back to sleep.
    void Serve()
    {
        std::unique_lock<std::mutex> hold(lock_);
        while (true) {
            wake_.wait(hold, [this] { return wanted_ != 0; });
            --wanted_;
            const std::function<void()> *work = work_;
            hold.unlock();
            (*work)();
            hold.lock();
            if (--busy_ == 0) {
                done_.notify_all();
            }
        }
    }

    static constexpr int kSpins = 200;  // some 50 us

    pid_t process_;
    std::mutex launch_, lock_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
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
    ThePool().Run(threads - 1, work);
}

}  // namespace twin
