// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace twin
{

namespace
{

// One launch at a time. A launch wakes as many helpers as it asks for, works itself, and waits for
// them; idle helpers sleep, because the caller's framework needs the cores between launches.
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
            work_ = &work;
            wanted_ = busy_ = helpers;
        }
        wake_.notify_all();
        work();
        std::unique_lock<std::mutex> hold(lock_);
        done_.wait(hold, [this] { return busy_ == 0; });
    }

  private:
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

    pid_t process_;
    std::mutex launch_, lock_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    const std::function<void()> *work_ = nullptr;
    uint32_t wanted_ = 0, busy_ = 0;
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
