// SPDX-License-Identifier: Apache-2.0
/*
 * Flags between cores
 *
 * A flag arrives at its waiters when all its setters have set it once more: mode 0, all cores of
 * one type; mode 1, the two AIVs of a group, both ways; mode 2, the AIC to each of its AIVs, or
 * both AIVs to their AIC. Each waiter has an inbox per flag id; the token in it carries the
 * setters' clocks and the copies that have to be visible after the wait. A counter of the device is
 * the length of an inbox here, and the mode of a wait plays no part, as there.
 */
#include "checked_core.h"

namespace twin
{

namespace
{

[[noreturn]] void Refuse(CheckedCore &core, const char *rule, Where where, std::string what,
                         const char *repair)
{
    RaiseFault(core, Complaint{rule, Pipe::kCount, where, std::move(what), repair});
}

/// Everything that pipe of this core has done, and all that it has learnt from others.
Token MakeToken(CheckedCore &core, Pipe pipe, int mode, Where where)
{
    int p = static_cast<int>(pipe);
    Token t;
    t.mode = mode;
    t.clock = core.remote;
    Clock own = core.Release(pipe);
    for (int i = 0; i < 8; ++i) {
        t.clock[core.index * 8 + static_cast<uint32_t>(i)] = own.at[i];
    }
    t.cycles = std::max(core.cycles[p], core.cycles[0]);
    t.due.push_back({&core, pipe, core.pending[p].issued});
    t.where = where;
    return t;
}

// A round with several setters arrives as one token: after the wait all of them are behind.
void JoinToken(Token &into, const Token &t)
{
    for (size_t i = 0; i < t.clock.size(); ++i) {
        into.clock[i] = std::max(into.clock[i], t.clock[i]);
    }
    into.cycles = std::max(into.cycles, t.cycles);
    into.due.insert(into.due.end(), t.due.begin(), t.due.end());
    into.where = t.where;
}

// The counter of one flag at one core goes up. Its width (4 bits) and its one meaning at a time are
// checked here.
void Post(CheckedCore &from, CheckedCore &to, int flag, const Token &t)
{
    auto &inbox = to.inbox[flag];
    if (!inbox.empty() && inbox.back().mode != t.mode) {
        Refuse(from, "cross-mode", t.where,
               Format("flag %d is set in mode %d while a set in mode %d (%s) has not been waited "
                      "for by %s",
                      flag, t.mode, inbox.back().mode, Place(inbox.back().where).c_str(),
                      CoreName(to).c_str()),
               "use another flag id for the other mode");
    }
    if (inbox.size() >= 15) {
        Refuse(
            from, "cross-counter", t.where,
            Format("flag %d would reach 16 sets that %s has not waited for; the counter holds 15",
                   flag, CoreName(to).c_str()),
            "hand credits back so that the producer stays at most 15 ahead");
    }
    inbox.push_back(t);
}

/// Member `index` of `members` sets; true and the joined token when that completes a round.
bool CompleteRound(Rounds &r, uint32_t members, uint32_t index, const Token &t, Token &whole)
{
    r.sets.resize(members);
    uint32_t position = r.sets[index]++ - r.complete;
    r.lastSet = t.where;
    if (position < r.open.size()) {
        JoinToken(r.open[position], t);
    } else {
        r.open.push_back(t);
    }
    for (uint32_t s : r.sets) {
        if (s <= r.complete) {
            return false;
        }
    }
    whole = std::move(r.open.front());
    r.open.pop_front();
    ++r.complete;
    return true;
}

// Cores that have to set a flag of this kind; a kernel type without cube or with one AIV a group
// has fewer.
uint32_t Members(const CheckedCore &core, int which)
{
    return which == 0   ? core.groups
           : which == 1 ? core.groups * core.ratio
                        : core.groups * (1 + core.ratio);
}

/// A set of a flag that spans groups. which: 0 AICs, 1 AIVs, 2 both.
void SetAll(CheckedCore &core, int which, int flag, const Token &t)
{
    // A block that waits for its turn on a busy core would never set, and the resident ones would
    // never end.
    Machine &m = *core.machine;
    const ChipTable &chip = *m.options->chip;
    uint32_t cubes = m.options->CubeCores();
    bool pureVector =
        core.kernelType == KernelType::kAivOnly || core.kernelType == KernelType::kMixAiv10;
    uint32_t resident = pureVector ? cubes * 2 : cubes;
    if (core.groups > resident) {
        Refuse(core, "resident-blocks", t.where,
               Format("blockDim is %u and %s has %u such cores; an all-core flag needs every block "
                      "resident",
                      core.groups, chip.name, resident),
               "launch at most as many blocks as cores");
    }
    uint32_t index = which == 2 && core.type == CoreType::AIV ? core.groups + BlockIndex(core)
                                                              : BlockIndex(core);
    Token whole;
    if (!CompleteRound(m.all[which][flag], Members(core, which), index, t, whole)) {
        return;
    }
    for (CheckedCore *c : m.cores) {
        bool cube = c->type == CoreType::AIC;
        if ((which == 2 || (which == 0) == cube) && (cube || c->sub < core.ratio)) {
            Post(core, *c, flag, whole);
        }
    }
}

// Modes 1 and 2. From the vector side both AIVs have to set before anything arrives.
void SetInGroup(CheckedCore &core, int mode, int flag, const Token &t)
{
    CheckedGroup &g = *core.machine->groups[core.group];
    if (core.type == CoreType::AIC) {
        for (uint32_t i = 0; i < core.ratio; ++i) {
            Post(core, g.core[1 + i], flag, t);
        }
        return;
    }
    Token whole;
    if (!CompleteRound(g.vectorSets[mode - 1][flag], core.ratio, core.sub, t, whole)) {
        return;
    }
    if (mode == 2) {
        Post(core, g.core[0], flag, whole);
        return;
    }
    for (uint32_t i = 0; i < core.ratio; ++i) {
        Post(core, g.core[1 + i], flag, whole);
    }
}

/// Refuses what the kernel type or the core cannot do.
void RequireMode(CheckedCore &core, int mode, const char *call, Where where)
{
    KernelType type = core.kernelType;
    if (type == KernelType::kAivOnly || type == KernelType::kAicOnly) {
        Refuse(core, "cross-kernel-type", where,
               Format("%s in an AIV_ONLY or AIC_ONLY kernel, which has no cross-core flags", call),
               "declare KERNEL_TYPE_MIX_AIV_1_0 or KERNEL_TYPE_MIX_AIC_1_0");
    }
    bool pairs = type == KernelType::kMixAic12 || type == KernelType::kMixAic11;
    if (mode == 1 && (core.type == CoreType::AIC || type != KernelType::kMixAic12)) {
        Refuse(core, "cross-mode", where, Format("%s: mode 1 joins the two AIVs of a group", call),
               "use mode 2 between AIC and AIV, mode 0 among all cores of one type");
    }
    if (mode == 2 && !pairs) {
        Refuse(core, "cross-mode", where,
               Format("%s: mode 2 needs AIC and AIV in one kernel", call),
               "declare KERNEL_TYPE_MIX_AIC_1_2");
    }
}

// The register has 4 bits; SyncAll takes 11 to 14 and the architecture page leaves 0 to 10 to
// kernels.
void RequireFlagId(CheckedCore &core, int flag, const char *call, Where where)
{
    if (flag > 10) {
        Refuse(core, "cross-id", where,
               Format("%s(%d): 11 to 15 belong to SyncAll and the framework", call, flag),
               "use flag ids 0 to 10");
    }
}

// Blocks until the flag is there, then learns what its setters knew. On this chip the wait holds
// back the whole core, so the knowledge goes to S, which issues for all pipes.
void Receive(CheckedCore &core, int flag, Where where)
{
    while (core.inbox[flag].empty()) {
        if (core.machine->faulted) {
            throw Unwind{};
        }
        core.waitsFor = flag;
        core.waitsAt = where;
        core.fiber.Yield();
    }
    core.waitsFor = -1;
    Token t = std::move(core.inbox[flag].front());
    core.inbox[flag].pop_front();
    // Late as they may be, the copies before the set are visible after the wait.
    for (const Token::Due &d : t.due) {
        d.core->Deliver(d.pipe, d.copies);
    }
    Clock own;  // what came back about this core: an order learnt by a round trip
    for (uint32_t i = 0; i < 8; ++i) {
        own.at[i] = t.clock[core.index * 8 + i];
        t.clock[core.index * 8 + i] = 0;
    }
    for (size_t i = 0; i < t.clock.size(); ++i) {
        core.remote[i] = std::max(core.remote[i], t.clock[i]);
    }
    core.known[0].Join(own);
    ++core.issueVersion;
    core.cycles[0] = std::max(core.cycles[0], t.cycles);
}

}  // namespace

void CheckedCrossSet(int mode, Pipe pipe, int flag, Where where)
{
    CheckedCore &core = MyChecked();
    if (Skipped(*core.machine, where)) {
        return;
    }
    RequireFlagId(core, flag, "CrossCoreSetFlag", where);
    RequirePipe(core, pipe, "CrossCoreSetFlag", where);
    RequireMode(core, mode, "CrossCoreSetFlag", where);
    Token t = MakeToken(core, pipe, mode, where);
    if (mode == 0) {
        SetAll(core, core.type == CoreType::AIC ? 0 : 1, flag, t);
    } else {
        SetInGroup(core, mode, flag, t);
    }
    ++core.machine->report.counters.crossFlagsSet;
    core.fiber.Yield();  // lets the seed decide who goes on first
    if (core.machine->faulted) {
        throw Unwind{};
    }
}

void CheckedCrossWait(int flag, Where where)
{
    CheckedCore &core = MyChecked();
    if (Skipped(*core.machine, where)) {
        return;
    }
    RequireFlagId(core, flag, "CrossCoreWaitFlag", where);
    RequireMode(core, 0, "CrossCoreWaitFlag", where);
    Receive(core, flag, where);
}

void CheckedSyncAll(bool vectorOnly, Where where)
{
    CheckedCore &core = MyChecked();
    if (Skipped(*core.machine, where)) {
        return;
    }
    RequireMode(core, 0, "SyncAll", where);
    KernelType type = core.kernelType;
    bool pure = type == KernelType::kMixAiv10 || type == KernelType::kMixAic10;
    if (vectorOnly && type != KernelType::kMixAiv10) {
        Refuse(core, "syncall-kind", where, "SyncAll<true> in a kernel that has cube cores",
               "use SyncAll<false>() on AIC and AIV alike");
    }
    CheckedBarrier(Pipe::kCount, Where{"SyncAll", 0});
    int which = !pure ? 2 : type == KernelType::kMixAiv10 ? 1 : 0;
    int flag = which == 2 ? kSyncAll : which == 1 ? kSyncAiv : kSyncAic;
    // PIPE_ALL has just finished everything, so any pipe speaks for all; S also carries scalar
    // writes.
    SetAll(core, which, flag, MakeToken(core, Pipe::S, 0, where));
    Receive(core, flag, where);
}

// What a kernel leaves behind is found by the next one: a raised flag lets it run ahead, a counter
// does too.
void CheckLeftovers(Machine &m)
{
    for (CheckedCore *c : m.cores) {
        for (int e = 0; e < kEvents; ++e) {
            for (int id = 0; id < 8; ++id) {
                const EventFlag &f = c->flag[e][id];
                if (f.raised) {
                    NoteFault(
                        *c,
                        Complaint{"flag-leftover", kEventPipes[e].from, f.where,
                                  Format("SetFlag<%s>(%d) is never waited for", EventName(e), id),
                                  "add the WaitFlag: the next kernel starts with the flag raised"});
                }
            }
        }
        for (int flag = 0; flag < kFlagIds; ++flag) {
            if (!c->inbox[flag].empty()) {
                NoteFault(*c,
                          Complaint{"cross-leftover", Pipe::kCount, c->inbox[flag].front().where,
                                    Format("flag %d was set and %s never waits for it", flag,
                                           CoreName(*c).c_str()),
                                    "wait as often as the partner sets: the next kernel starts "
                                    "with the counter up"});
            }
        }
        for (const auto &line : c->cache) {
            if (line.second.dirty != 0) {
                NoteFault(
                    *c, Complaint{
                            "cache-dirty", Pipe::S, line.second.where,
                            "a scalar write to GM is still in the data cache when the kernel ends",
                            "call DataCacheCleanAndInvalid after SetValue"});
            }
        }
    }
    // A set that waits for its siblings is as bad: the register of the one that set is not back at
    // its start.
    auto open = [&](Rounds &r, int flag, CheckedCore &core) {
        if (!r.open.empty()) {
            NoteFault(core, Complaint{"cross-leftover", Pipe::kCount, r.open.front().where,
                                      Format("flag %d was set by some of its cores only", flag),
                                      "set it on every core that shares it (both AIVs in mode 2)"});
        }
    };
    for (int flag = 0; flag < kFlagIds; ++flag) {
        for (auto &which : m.all) {
            open(which[flag], flag, *m.cores[0]);
        }
        for (auto &g : m.groups) {
            open(g->vectorSets[0][flag], flag, g->core[1]);
            open(g->vectorSets[1][flag], flag, g->core[1]);
        }
    }
}

}  // namespace twin
