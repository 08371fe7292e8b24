// SPDX-License-Identifier: Apache-2.0
// A checked launch: sets the chip up, runs its cores in an order the seed decides, and closes the
// books.
#include "checked.h"

#include "checked_core.h"

namespace twin
{

namespace
{

void CoreMain(void *argument)
{
    auto &core = *static_cast<CheckedCore *>(argument);
    try {
        core.entry(core.machine->launch->args);
        core.DeliverAll();
    } catch (const Unwind &) {
        // The fault is already written; the frames of this core are gone.
    }
}

/// Arguments that overlap become one range; it may be written when any of them may.
std::vector<GmStore> MergeRanges(const std::vector<GmRange> &ranges)
{
    std::vector<GmRange> sorted;
    for (const GmRange &r : ranges) {
        if (r.base != nullptr && r.bytes != 0) {
            sorted.push_back(r);
        }
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const GmRange &a, const GmRange &b) { return a.base < b.base; });
    std::vector<GmStore> stores;
    for (const GmRange &r : sorted) {
        auto *base = static_cast<uint8_t *>(r.base);
        // Frameworks pass one buffer twice for in-place calls; then its contents arrive from
        // outside.
        if (!stores.empty() && base < stores.back().base + stores.back().bytes) {
            GmStore &s = stores.back();
            s.bytes = std::max<uint64_t>(s.bytes, static_cast<uint64_t>(base + r.bytes - s.base));
            s.kind = s.kind == r.kind ? s.kind : GmRange::kInOut;
            s.name += std::string("/") + r.name;
            continue;
        }
        stores.push_back(GmStore{base, r.bytes, r.kind, r.name, {}});
    }
    for (GmStore &s : stores) {
        if (s.Writable()) {
            s.shadow.Reset(s.base, 1, s.bytes, s.kind == GmRange::kInOut);
        }
    }
    return stores;
}

/// Keeps the groups of the thread's earlier launches: their stacks and memories are expensive to
/// make.
std::vector<std::unique_ptr<CheckedGroup>> &IdleGroups()
{
    static thread_local std::vector<std::unique_ptr<CheckedGroup>> idle;
    return idle;
}

// All cores of all groups exist from the start, whatever the kernel type: which of them the kernel
// has is known only when the entry declares it, and the others return there.
void MakeCores(Machine &m)
{
    uint32_t blocks = m.launch->blockDim;
    auto &idle = IdleGroups();
    while (m.groups.size() < blocks) {
        if (idle.empty()) {
            m.groups.push_back(std::make_unique<CheckedGroup>());
        } else {
            m.groups.push_back(std::move(idle.back()));
            idle.pop_back();
        }
        for (CheckedCore &c : m.groups.back()->core) {
            m.cores.push_back(&c);
        }
        for (auto &mode : m.groups.back()->vectorSets) {
            for (Rounds &r : mode) {
                r = Rounds{};
            }
        }
    }
    for (uint32_t i = 0; i < m.cores.size(); ++i) {
        m.cores[i]->type = i % 3 == 0 ? CoreType::AIC : CoreType::AIV;
        m.cores[i]->sub = i % 3 == 2;
        m.groups[i / 3]->arena.Attach(*m.cores[i]);
        m.cores[i]->Start(m, i, m.Agents());
    }
}

/// The same seed gives the same order on every platform, which the standard generators' helpers do
/// not promise. Small and good enough to shuffle cores: splitmix64.
struct Random {
    uint64_t state;
    uint64_t Next()
    {
        uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
};

// A core that waits can go on when its inbox has something; all others are between two steps.
bool Runnable(const CheckedCore &c)
{
    return c.waitsFor < 0 || !c.inbox[c.waitsFor].empty();
}

void Resume(CheckedCore &c)
{
    tCore = &c;
    c.fiber.Resume();
}

// Every core that is left waits. The text is cut: with 60 cores the first few tell the story.
void ReportDeadlock(Machine &m, const std::vector<CheckedCore *> &alive)
{
    std::string who;
    for (CheckedCore *c : alive) {
        if (who.size() > 1200) {
            who += "; and others";
            break;
        }
        who +=
            (who.empty() ? "" : "; ") + Format("%s waits for flag %d at %s", CoreName(*c).c_str(),
                                               c->waitsFor, Place(c->waitsAt).c_str());
    }
    m.faulted = true;
    m.fault = "twin fault: deadlock: op " + std::string(m.launch->kernel->op) +
              ": no core can go on: " + who +
              "; let the partner set each flag as often as it is waited for (in mode 2 both AIVs "
              "must set)";
}

// One core at a time, from one wait or cross-core set to the next. Races do not depend on the order
// (clocks find them), but deadlocks and counters may, so the seed chooses.
void Schedule(Machine &m)
{
    Random random{m.options->seed};
    std::vector<CheckedCore *> alive;
    for (CheckedCore *c : m.cores) {
        if (!c->fiber.Done()) {
            alive.push_back(c);
        }
    }
    std::vector<size_t> ready;
    while (!alive.empty() && !m.faulted) {
        ready.clear();
        for (size_t i = 0; i < alive.size(); ++i) {
            if (Runnable(*alive[i])) {
                ready.push_back(i);
            }
        }
        if (ready.empty()) {
            ReportDeadlock(m, alive);
            break;
        }
        size_t pick = ready[random.Next() % ready.size()];
        Resume(*alive[pick]);
        if (alive[pick]->fiber.Done()) {
            alive.erase(alive.begin() + static_cast<long>(pick));
        }
    }
    for (CheckedCore *c :
         alive) {  // after a fault: each wait throws, so that every frame is destroyed
        c->fiber.CancelIfNotStarted();
        while (!c->fiber.Done()) {
            Resume(*c);
        }
    }
    tCore = nullptr;
}

// The end of the launch: what was left undone, what was counted, and the trace.
std::string Close(Machine &m)
{
    if (!m.faulted) {
        CheckLeftovers(m);
    }
    // An output element that no core wrote must not keep a plausible value from the caller's
    // buffer.
    for (GmStore &g : m.gm) {
        if (g.Writable()) {
            g.shadow.PoisonUntouched();
        }
    }
    for (CheckedCore *c : m.cores) {
        for (uint64_t cycles : c->cycles) {
            m.report.counters.cycles = std::max(m.report.counters.cycles, cycles);
        }
    }
    m.report.Publish();
    if (!m.options->trace.empty()) {
        std::vector<std::string> names;
        for (CheckedCore *c : m.cores) {
            names.push_back(CoreName(*c));
        }
        if (!m.report.Write(m.options->trace, m.launch->kernel->op, m.options->chip->megahertz,
                            names) &&
            !m.faulted) {
            m.faulted = true;
            m.fault = "FLA_NPU_TWIN_TRACE: cannot write " + m.options->trace;
        }
    }
    return m.fault;
}

}  // namespace

// A core starts with nothing known, nothing raised and every byte undefined. Nothing is carried
// over from the last kernel, as nothing may be relied on.
void CheckedCore::Start(Machine &m, uint32_t coreIndex, uint32_t agents)
{
    machine = &m;
    index = coreIndex;
    group = coreIndex / 3;
    groups = m.launch->blockDim;
    ratio = 2;
    kernelType = KernelType::kMixAic12;
    tpipe = activePipe = nullptr;
    regs.Reset();
    for (int p = 0; p < kPipes; ++p) {
        known[p] = Clock{};
        now[p] = seenIssue[p] = 0;
        cycles[p] = 0;
        pending[p] = PendingCopies{};
    }
    issueVersion = 1;
    remote.assign(agents, 0);
    for (int e = 0; e < kEvents; ++e) {
        heldByKernel[e] = heldByQueue[e] = 0;
        for (EventFlag &f : flag[e]) {
            f.raised = false;
        }
    }
    for (auto &box : inbox) {
        box.clear();
    }
    waitsFor = -1;
    cache.clear();
    for (int s = 0; s < kLocalSpaces; ++s) {
        if (store[s] != nullptr) {
            shadow[s].Reset(store[s], IsWidened(static_cast<Space>(s)) ? 2 : 1, kSpaceBytes[s],
                            false);
        }
    }
    entry = type == CoreType::AIC ? m.launch->kernel->checkedAic : m.launch->kernel->checkedAiv;
    if (entry != nullptr) {
        fiber.Start(&CoreMain, this);
    }
}

// The machine lives for one launch and belongs to the calling thread, so launches of several
// threads do not meet.
Result RunChecked(const Launch &launch, const Options &options)
{
    Machine m;
    m.launch = &launch;
    m.options = &options;
    m.gm = MergeRanges(launch.gm);
    MakeCores(m);
    Schedule(m);
    std::string fault = Close(m);
    for (auto &g : m.groups) {
        IdleGroups().push_back(std::move(g));
    }
    return fault.empty() ? Result{0, ""} : Result{kStatusFault, fault};
}

}  // namespace twin
