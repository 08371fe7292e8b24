// SPDX-License-Identifier: Apache-2.0
/*
 * Fast machine
 *
 * A group (1 AIC, 2 AIV) is three fibers on one OS thread: flags inside a group are plain counters
 * and a wait is a switch to a sibling, so a wait costs tens of nanoseconds. Groups are handed to
 * threads in order of their number; a thread starts the next group only when all its groups are
 * blocked or done, so without all-core sync it holds one group at a time and the group's memory
 * stays in cache. Flags across groups (mode 0, SyncAll) are counted under a lock, and a thread with
 * nothing runnable sleeps at the gate. When every thread sleeps, no flag can ever be set: that is a
 * deadlock, reported and unwound by an exception through each fiber.
 */
#include "fast.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>

#include "arena.h"
#include "fiber.h"
#include "hooks.h"
#include "pool.h"
#include "subnormals.h"

namespace twin
{

__thread Core *tCore = nullptr;

namespace
{

/// Thrown through the kernel of a blocked core when the launch is given up.
struct Unwind {};

struct FastLaunch;
struct Group;

struct FastCore : Core {
    Group *parent = nullptr;
    KernelFn entry = nullptr;
    Fiber fiber;
    int waitsFor = -1;  // flag id, -1 when runnable
    Where waitsAt{};
    // Arrived and not yet consumed. Other threads add to it (mode 0), hence atomic.
    std::atomic<uint32_t> arrived[kFlagIds];
};

struct Group {
    FastLaunch *launch = nullptr;
    CoreArena arena;
    FastCore core[3];  // AIC, AIV 0, AIV 1
    // Sets of each AIV not yet matched by its sibling's, per mode (1 and 2) and flag.
    uint32_t ahead[2][kFlagIds][2];
};

/// Counts one all-core flag: a round is complete when every member has set once more.
struct GlobalFlag {
    std::vector<uint32_t> sets;
    uint32_t rounds = 0;
    uint32_t atRound = 0;  // members whose count is above `rounds`
};

struct FastLaunch {
    const Launch *what;
    std::atomic<uint32_t> nextGroup{0};
    std::atomic<bool> abort{false};
    std::vector<Group *> groups;  // by number, for mode 0
    std::mutex lock;              // everything below
    std::condition_variable gate;
    std::atomic<uint64_t> progress{0};
    // Threads that have come. Who sleeps has found no group left to take, so one that has not come
    // yet could set no flag.
    uint32_t alive = 0;
    uint32_t asleep =
        0;  // of them, since the last progress; one that was woken may still lie there
    GlobalFlag global[3][kFlagIds];  // AIC, AIV, both
    std::string deadlock, fault;
};

FastCore &MyFast()
{
    return static_cast<FastCore &>(*tCore);
}

// The bottom of every core's stack.
void CoreMain(void *argument)
{
    auto &core = *static_cast<FastCore *>(argument);
    try {
        core.entry(core.parent->launch->what->args);
    } catch (const Unwind &) {
        // The launch failed; the report is already written.
    }
}

bool Runnable(const FastCore &c)
{
    return !c.fiber.Done() &&
           (c.waitsFor < 0 || c.arrived[c.waitsFor].load(std::memory_order_acquire) != 0);
}

/// Groups are reused by later launches of the same thread: their memory is warm.
std::vector<std::unique_ptr<Group>> &IdleGroups()
{
    static thread_local std::vector<std::unique_ptr<Group>> idle;
    return idle;
}

std::unique_ptr<Group> StartGroup(FastLaunch &launch, uint32_t number)
{
    std::unique_ptr<Group> g;
    if (IdleGroups().empty()) {
        g = std::make_unique<Group>();
    } else {
        g = std::move(IdleGroups().back());
        IdleGroups().pop_back();
    }
    g->launch = &launch;
    for (auto &mode : g->ahead) {
        for (auto &flag : mode) {
            flag[0] = flag[1] = 0;
        }
    }
    const KernelEntry &kernel = *launch.what->kernel;
    for (uint32_t i = 0; i < 3; ++i) {
        FastCore &c = g->core[i];
        c.type = i == 0 ? CoreType::AIC : CoreType::AIV;
        c.group = number;
        c.sub = i == 2;
        c.groups = launch.what->blockDim;
        c.ratio = 2;
        c.kernelType = KernelType::kMixAic12;
        c.tpipe = nullptr;
        c.regs.Reset();
        g->arena.Attach(c);
        c.parent = g.get();
        c.waitsFor = -1;
        for (auto &a : c.arrived) {
            a.store(0, std::memory_order_relaxed);
        }
        c.entry = i == 0 ? kernel.fastAic : kernel.fastAiv;
        if (c.entry != nullptr) {
            c.fiber.Start(&CoreMain, &c);
        }
    }
    launch.groups[number] = g.get();
    return g;
}

/// Runs every fiber of the group until none can go on. True when it did anything.
bool RunGroup(Group &g)
{
    bool any = false;
    for (bool progress = true; progress;) {
        progress = false;
        for (FastCore &c : g.core) {
            if (Runnable(c)) {
                tCore = &c;
                c.fiber.Resume();
                progress = any = true;
            }
        }
    }
    return any;
}

// Cores without code for them never started and count as done.
bool Finished(const Group &g)
{
    return g.core[0].fiber.Done() && g.core[1].fiber.Done() && g.core[2].fiber.Done();
}

/// Names every blocked core of the thread's groups with the flag and the line it waits at.
void DescribeBlocked(FastLaunch &launch, const std::vector<std::unique_ptr<Group>> &mine)
{
    for (const auto &g : mine) {
        for (const FastCore &c : g->core) {
            if (c.fiber.Done()) {
                continue;
            }
            char line[256];
            std::snprintf(line, sizeof line, "%s%s %u waits for flag %d at %s:%d",
                          launch.deadlock.empty() ? "" : "; ",
                          c.type == CoreType::AIC ? "AIC" : "AIV", BlockIndex(c), c.waitsFor,
                          BaseName(c.waitsAt.file), c.waitsAt.line);
            if (launch.deadlock.size() < 1500) {
                launch.deadlock += line;
            }
        }
    }
}

/// Nothing of this thread can run. Sleeps until a flag crosses groups; false when none ever will.
bool WaitAtGate(FastLaunch &launch, uint64_t seen, const std::vector<std::unique_ptr<Group>> &mine)
{
    for (int spin = 0; spin < 4000;
         ++spin) {  // a sibling thread is usually a few microseconds away
        if (launch.progress.load(std::memory_order_acquire) != seen) {
            return true;
        }
    }
    std::unique_lock<std::mutex> hold(launch.lock);
    launch.asleep += launch.progress.load() == seen ? 1 : 0;
    while (launch.progress.load() == seen && !launch.abort.load()) {
        if (launch.asleep == launch.alive) {
            launch.abort.store(true);
            launch.gate.notify_all();
            break;
        }
        launch.gate.wait(hold);
    }
    if (launch.abort.load()) {
        DescribeBlocked(launch, mine);
        return false;
    }
    return true;
}

/// Resumes every blocked fiber once more so that its wait throws and its frames are destroyed.
void UnwindGroups(std::vector<std::unique_ptr<Group>> &mine)
{
    for (auto &g : mine) {
        for (FastCore &c : g->core) {
            c.fiber.CancelIfNotStarted();
            if (!c.fiber.Done()) {
                tCore = &c;
                c.fiber.Resume();
            }
        }
    }
}

void Enter(FastLaunch &launch)
{
    std::lock_guard<std::mutex> hold(launch.lock);
    ++launch.alive;
}

void Leave(FastLaunch &launch)
{
    std::lock_guard<std::mutex> hold(launch.lock);
    --launch.alive;
    launch.gate.notify_all();  // the last sleeper may now be alone
}

// One OS thread's part of a launch: run what it has, take a new group when all of that is blocked,
// sleep when there is none left to take.
void WorkerMain(FastLaunch &launch)
{
    FlushSubnormals flush;  // a thread of the pool has its own control word
    Enter(launch);
    std::vector<std::unique_ptr<Group>> mine;
    bool more = true;
    while (true) {
        uint64_t seen = launch.progress.load(std::memory_order_acquire);
        bool any = false;
        for (size_t i = 0; i < mine.size();) {
            any |= RunGroup(*mine[i]);
            if (Finished(*mine[i])) {
                IdleGroups().push_back(std::move(mine[i]));
                mine.erase(mine.begin() + static_cast<long>(i));
            } else {
                ++i;
            }
        }
        if (launch.abort.load()) {
            UnwindGroups(mine);
            break;
        }
        if (any) {
            continue;
        }
        if (more) {
            uint32_t number = launch.nextGroup.fetch_add(1);
            if (number < launch.what->blockDim) {
                std::lock_guard<std::mutex> hold(launch.lock);
                mine.push_back(StartGroup(launch, number));
                continue;
            }
            more = false;
        }
        if (mine.empty()) {
            break;
        }
        if (!WaitAtGate(launch, seen, mine)) {
            UnwindGroups(mine);
            break;
        }
    }
    for (auto &g : mine) {
        IdleGroups().push_back(std::move(g));
    }
    tCore = nullptr;
    Leave(launch);
}

/// One member sets a flag that spans groups. which: 0 AICs, 1 AIVs, 2 all cores.
void GlobalSet(FastCore &me, int which, int flag)
{
    FastLaunch &launch = *me.parent->launch;
    uint32_t groups = me.groups;
    uint32_t members = which == 0   ? groups
                       : which == 1 ? groups * me.ratio
                                    : groups * (1 + me.ratio);
    uint32_t index =
        which == 2 && me.type == CoreType::AIV ? groups + BlockIndex(me) : BlockIndex(me);
    std::lock_guard<std::mutex> hold(launch.lock);
    GlobalFlag &f = launch.global[which][flag];
    f.sets.resize(members);
    if (f.sets[index]++ != f.rounds || ++f.atRound < members) {
        return;
    }
    ++f.rounds;
    f.atRound = 0;
    for (uint32_t s : f.sets) {
        f.atRound += s > f.rounds;
    }
    for (Group *g : launch.groups) {  // every member has set, so every group is resident
        for (FastCore &c : g->core) {
            bool cube = c.type == CoreType::AIC;
            if ((which == 2 || (which == 0) == cube) && (cube || c.sub < me.ratio)) {
                c.arrived[flag].fetch_add(1, std::memory_order_release);
            }
        }
    }
    launch.progress.fetch_add(1, std::memory_order_release);
    launch.asleep = 0;
    launch.gate.notify_all();
}

}  // namespace

void FastCrossSet(int mode, int flag)
{
    FastCore &me = MyFast();
    Group &g = *me.parent;
    if (mode == 0) {
        GlobalSet(me, me.type == CoreType::AIC ? 0 : 1, flag);
        return;
    }
    if (me.type == CoreType::AIC) {
        g.core[1].arrived[flag].fetch_add(1, std::memory_order_release);
        g.core[2].arrived[flag].fetch_add(1, std::memory_order_release);
        return;
    }
    // From the vector side a flag arrives when all AIVs of the group have set it.
    if (me.ratio == 2) {
        uint32_t (&ahead)[2] = g.ahead[mode - 1][flag];
        if (ahead[1 - me.sub] == 0) {
            ++ahead[me.sub];
            return;
        }
        --ahead[1 - me.sub];
    }
    if (mode == 2) {
        g.core[0].arrived[flag].fetch_add(1, std::memory_order_release);
    } else {
        g.core[1].arrived[flag].fetch_add(1, std::memory_order_release);
        g.core[2].arrived[flag].fetch_add(1, std::memory_order_release);
    }
}

// Checks the flag before giving way: a credit is mostly there already.
void FastCrossWait(int flag, Where where)
{
    FastCore &me = MyFast();
    while (me.arrived[flag].load(std::memory_order_acquire) == 0) {
        if (me.parent->launch->abort.load(std::memory_order_relaxed)) {
            throw Unwind{};
        }
        me.waitsFor = flag;
        me.waitsAt = where;
        me.fiber.Yield();
    }
    me.waitsFor = -1;
    me.arrived[flag].fetch_sub(1, std::memory_order_acq_rel);
}

void FastSyncAll(bool vectorOnly, Where where)
{
    int flag = vectorOnly ? kSyncAiv : kSyncAll;
    GlobalSet(MyFast(), vectorOnly ? 1 : 2, flag);
    FastCrossWait(flag, where);
}

void FastCapacityFault(const BufferRequest &request, uint64_t used, Where where)
{
    FastCore &me = MyFast();
    FastLaunch &launch = *me.parent->launch;
    {
        std::lock_guard<std::mutex> hold(launch.lock);
        if (launch.fault.empty()) {
            char at[160];
            std::snprintf(
                at, sizeof at,
                ", core %s %u, %s:%d: InitBuffer brings %s to %llu bytes, %u are usable here",
                me.type == CoreType::AIC ? "AIC" : "AIV", BlockIndex(me), BaseName(where.file),
                where.line, kSpaceName[static_cast<int>(request.space)],
                static_cast<unsigned long long>(used),
                me.store[static_cast<int>(request.space)] != nullptr
                    ? kSpaceBytes[static_cast<int>(request.space)]
                    : 0U);
            launch.fault = "twin fault: capacity: op " + std::string(launch.what->kernel->op) + at +
                           "; plan smaller buffers, on the core type that owns the store";
        }
    }
    launch.abort.store(true);
    launch.progress.fetch_add(1);
    launch.gate.notify_all();
    throw Unwind{};
}

// Never more threads than groups: a thread without a group would only sleep.
Result RunFast(const Launch &launch, const Options &options)
{
    FastLaunch state;
    state.what = &launch;
    state.groups.resize(launch.blockDim);
    uint32_t threads = options.threads < launch.blockDim ? options.threads : launch.blockDim;
    RunOnThreads(threads, [&] { WorkerMain(state); });
    if (!state.fault.empty()) {
        return Result{kStatusFault, state.fault};
    }
    if (state.abort.load()) {
        return Result{kStatusFault,
                      "twin fault: deadlock: op " + std::string(launch.kernel->op) +
                          ": no core can go on: " + state.deadlock +
                          "; let the partner set each flag as often as it is waited for"};
    }
    return Result{0, ""};
}

}  // namespace twin
