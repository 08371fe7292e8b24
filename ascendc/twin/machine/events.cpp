// SPDX-License-Identifier: Apache-2.0
// Order inside a core: event flags, barriers, the event pool and the memory of TPipe.
#include <exception>

#include "checked_core.h"

namespace twin
{

namespace
{

using AscendC::HardEvent;

// Which pipes a core type has.
bool OnVector(Pipe p)
{
    return p == Pipe::S || p == Pipe::V || p == Pipe::MTE2 || p == Pipe::MTE3;
}
bool OnCube(Pipe p)
{
    return p != Pipe::V;
}

/// The 13 events of an AIV and the 24 of an AIC are exactly those whose two pipes the core has.
/// CANN 8.1 headers skip the others without a word, which turns a slip into a race.
void RequireEvent(CheckedCore &core, int event, int id, const char *call, Where where)
{
    bool ok = event >= 0 && event < kEvents;
    if (ok) {
        EventPipes e = kEventPipes[event];
        ok = core.type == CoreType::AIV ? OnVector(e.from) && OnVector(e.to)
                                        : OnCube(e.from) && OnCube(e.to);
    }
    if (!ok) {
        RaiseFault(core, Complaint{"event-core", Pipe::kCount, where,
                                   Format("%s<%s> on an %s, which has no such event", call,
                                          EventName(event), core.TypeName()),
                                   "use an event between two pipes of this core type"});
    }
    if (id < 0 || id > 7) {
        RaiseFault(core, Complaint{"event-id", Pipe::kCount, where,
                                   Format("%s<%s>(%d): ids are 0 to 7", call, EventName(event), id),
                                   "use 0 to 5, or an id from AllocEventID"});
    }
}

/// A kernel may use 0 to 5 that no queue and no TPipe holds, and any id it was given.
void RequireFreeId(CheckedCore &core, int event, int id, const char *call, Where where)
{
    if ((core.heldByKernel[event] >> id) & 1) {
        return;
    }
    if ((core.heldByQueue[event] >> id) & 1) {
        RaiseFault(core, Complaint{"event-id", Pipe::kCount, where,
                                   Format("%s<%s>(%d): the id is held by TPipe or a queue", call,
                                          EventName(event), id),
                                   event == static_cast<int>(HardEvent::M_MTE1)
                                       ? "use ids 3 to 5 of M_MTE1, or AllocEventID"
                                       : "take an id with AllocEventID"});
    }
    if (id > 5) {
        RaiseFault(core, Complaint{"event-id", Pipe::kCount, where,
                                   Format("%s<%s>(%d): 6 and 7 belong to the framework", call,
                                          EventName(event), id),
                                   "use 0 to 5, or an id from AllocEventID"});
    }
}

// The wait: deliver the copies the flag stands for, and let the waiting pipe (or, for S, everything
// issued later) know what the raising pipe knew.
void Lower(CheckedCore &core, int event, EventFlag &f)
{
    EventPipes e = kEventPipes[event];
    int to = static_cast<int>(e.to);
    f.raised = false;
    core.Deliver(e.from, f.copies);
    core.known[to].Join(f.clock);
    core.cycles[to] = std::max(core.cycles[to], f.cycles);
    core.issueVersion += e.to == Pipe::S;
}

/// Everything issued before is done before everything issued after.
// Also what TPipe does at its end, and the first thing SyncAll does. Simulated time waits for the
// slowest pipe.
void BarrierAll(CheckedCore &core)
{
    Clock all;
    uint64_t latest = 0;
    for (int p = 0; p < kPipes; ++p) {
        all.Join(core.known[p]);
        latest = std::max(latest, core.cycles[p]);
    }
    for (int p = 0; p < kPipes; ++p) {
        all.at[p] = core.now[p];
    }
    for (int p = 0; p < kPipes; ++p) {
        core.known[p] = all;
        core.cycles[p] = latest;
    }
    ++core.issueVersion;
    core.DeliverAll();
}

// Ids given to the kernel and ids used by queues are kept apart: a kernel may use the former, never
// the latter.
uint8_t &Held(CheckedCore &core, int event, FlagUser user)
{
    return user == FlagUser::kKernel ? core.heldByKernel[event] : core.heldByQueue[event];
}

// A flag the kernel raised without asking is not free either.
int LowestFree(const CheckedCore &core, int event)
{
    uint8_t taken = core.heldByKernel[event] | core.heldByQueue[event];
    for (int id = 0; id < 8; ++id) {
        if (((taken >> id) & 1) == 0 && !core.flag[event][id].raised) {
            return id;
        }
    }
    return -1;
}

}  // namespace

// A flag is one bit: raising it twice loses one, which shows only in the next round on the device.
void CheckedSetFlag(int event, int id, FlagUser user, Where where)
{
    CheckedCore &core = MyChecked();
    if (user == FlagUser::kKernel && Skipped(*core.machine, where)) {
        return;
    }
    RequireEvent(core, event, id, "SetFlag", where);
    if (user == FlagUser::kKernel) {
        RequireFreeId(core, event, id, "SetFlag", where);
    }
    EventFlag &f = core.flag[event][id];
    if (f.raised) {
        RaiseFault(core,
                   Complaint{"flag-set-twice", kEventPipes[event].from, where,
                             Format("SetFlag<%s>(%d) while the flag of %s is still raised",
                                    EventName(event), id, Place(f.where).c_str()),
                             "pair every SetFlag with one WaitFlag of the same event and id"});
    }
    Pipe from = kEventPipes[event].from;
    int p = static_cast<int>(from);
    // The flag carries what the raising pipe knows now; instructions issued later on that pipe are
    // not covered.
    f.raised = true;
    f.user = user;
    f.clock = core.Release(from);
    f.cycles = std::max(core.cycles[p], core.cycles[0]);
    f.copies = core.pending[p].issued;
    f.where = where;
    ++core.machine->report.counters.flagsSet;
}

// All instructions of a core are issued in program order by S, so a flag that nothing before has
// raised could only be raised by something after the wait. That works on the device when another
// pipe waits, and hangs when S does; the documents call for set before wait, and so does this.
void CheckedWaitFlag(int event, int id, FlagUser user, Where where)
{
    CheckedCore &core = MyChecked();
    if (user == FlagUser::kKernel && Skipped(*core.machine, where)) {
        return;
    }
    RequireEvent(core, event, id, "WaitFlag", where);
    EventFlag &f = core.flag[event][id];
    if (!f.raised) {
        RaiseFault(
            core,
            Complaint{"flag-wait", kEventPipes[event].to, where,
                      Format("WaitFlag<%s>(%d) finds no SetFlag before it: the core would hang",
                             EventName(event), id),
                      Format("issue SetFlag<HardEvent::%s>(%d) first, on every path",
                             EventName(event), id)});
    }
    if (user == FlagUser::kKernel && f.user != FlagUser::kKernel) {
        RaiseFault(core, Complaint{"event-id", kEventPipes[event].to, where,
                                   Format("WaitFlag<%s>(%d) would take a queue's flag of %s",
                                          EventName(event), id, Place(f.where).c_str()),
                                   "take an id with AllocEventID"});
    }
    Lower(core, event, f);
}

// Orders a pipe with itself. Copies of that pipe are delivered: a later one may overwrite them.
void CheckedBarrier(Pipe pipe, Where where)
{
    CheckedCore &core = MyChecked();
    if (Skipped(*core.machine, where)) {
        return;
    }
    if (pipe == Pipe::kCount) {
        BarrierAll(core);
        return;
    }
    RequirePipe(core, pipe, "PipeBarrier", where);
    int p = static_cast<int>(pipe);
    core.known[p].at[p] = core.now[p];
    core.Deliver(pipe, core.pending[p].issued);
}

// Ids from the pool may be 6 and 7, because the framework itself hands them out.
int CheckedAllocEvent(int event, FlagUser user, Where where)
{
    CheckedCore &core = MyChecked();
    RequireEvent(core, event, 0, "AllocEventID", where);
    int id = LowestFree(core, event);
    if (id < 0) {
        RaiseFault(core, Complaint{"event-pool", Pipe::kCount, where,
                                   Format("all 8 ids of %s are in use", EventName(event)),
                                   "release ids with ReleaseEventID, or use fewer queue buffers"});
    }
    Held(core, event, user) |= static_cast<uint8_t>(1U << id);
    return id;
}

// Only looks: two fetches in a row give the same id, as on the device.
int CheckedFetchEvent(int event, Where where)
{
    CheckedCore &core = MyChecked();
    RequireEvent(core, event, 0, "FetchEventID", where);
    int id = LowestFree(core, event);
    return id < 0 ? 0 : id;
}

void CheckedReleaseEvent(int event, int id, FlagUser user, Where where)
{
    CheckedCore &core = MyChecked();
    RequireEvent(core, event, id, "ReleaseEventID", where);
    uint8_t &held = Held(core, event, user);
    if (((held >> id) & 1) == 0) {
        RaiseFault(core, Complaint{"event-pool", Pipe::kCount, where,
                                   Format("ReleaseEventID<%s>(%d) of an id that was not allocated",
                                          EventName(event), id),
                                   "release what AllocEventID returned, once"});
    }
    held &= static_cast<uint8_t>(~(1U << id));
}

void CheckedPipeCreate(void *tpipe, Where where)
{
    CheckedCore &core = MyChecked();
    if (core.activePipe != nullptr) {
        RaiseFault(core, Complaint{"one-tpipe", Pipe::kCount, where,
                                   "a second TPipe while the first is alive",
                                   "make one TPipe per kernel and hand out references"});
    }
    core.activePipe = tpipe;
    core.pipeBuffers = 0;
    std::fill(std::begin(core.positionBuffers), std::end(core.positionBuffers), 0U);
    // Own M_MTE1 flags of a cube kernel therefore start at 3.
    if (core.type == CoreType::AIC) {  // the constructor takes and raises ids 0 to 2
        core.heldByQueue[static_cast<int>(HardEvent::M_MTE1)] |= 7;
    }
}

// Buffers that were freed have a flag on the way that the framework takes back itself. A buffer
// that was enqueued and never taken out has one too, and that one is a mistake of the kernel.
void CheckedPipeReset(Where where)
{
    CheckedCore &core = MyChecked();
    for (int e = 0; e < kEvents; ++e) {
        for (int id = 0; id < 8; ++id) {
            EventFlag &f = core.flag[e][id];
            if (f.raised && f.user == FlagUser::kQueueFull) {
                RaiseFault(core, Complaint{"queue-leftover", kEventPipes[e].from, f.where,
                                           "a tensor was put into a queue and never taken out",
                                           Format("DeQue it before the pipe ends at %s",
                                                  Place(where).c_str())});
            }
            if (f.raised && f.user == FlagUser::kQueueFree) {
                Lower(core, e, f);
                core.heldByQueue[e] &= static_cast<uint8_t>(~(1U << id));
            }
        }
    }
    core.pipeBuffers = 0;
    std::fill(std::begin(core.positionBuffers), std::end(core.positionBuffers), 0U);
}

// The destructor of TPipe runs PIPE_ALL on the device as well.
void CheckedPipeDestroy(void *tpipe, bool, Where where)
{
    CheckedCore &core = MyChecked();
    if (core.activePipe != tpipe || std::uncaught_exceptions() > 0) {
        return;  // destroyed before, or the launch is being given up
    }
    CheckedPipeReset(where);
    BarrierAll(core);
    core.activePipe = nullptr;
    core.heldByQueue[static_cast<int>(HardEvent::M_MTE1)] &= static_cast<uint8_t>(~7U);
}

// Memory is handed out in a line and never returned before Reset, so the sum is what counts.
void CheckedInitBuffer(const BufferRequest &r, uint64_t used, Where where)
{
    CheckedCore &core = MyChecked();
    int s = static_cast<int>(r.space);
    auto refuse = [&](const char *rule, std::string what, const char *repair) {
        RaiseFault(core, Complaint{rule, Pipe::kCount, where, std::move(what), repair});
    };
    if (core.store[s] == nullptr) {
        refuse(
            "core-type",
            Format("InitBuffer in %s, which an %s does not have", kSpaceName[s], core.TypeName()),
            "make buffers under ASCEND_IS_AIC or ASCEND_IS_AIV");
    }
    if (used > kSpaceBytes[s]) {
        refuse("capacity",
               Format("InitBuffer brings %s to %llu bytes, %u are usable", kSpaceName[s],
                      static_cast<unsigned long long>(used), kSpaceBytes[s]),
               "plan smaller buffers");
    }
    core.pipeBuffers += r.buffers;
    if (core.pipeBuffers > 64) {
        refuse("buffer-count", Format("%u buffers in one TPipe, at most 64", core.pipeBuffers),
               "use fewer buffers");
    }
    if (r.queue) {
        uint32_t &there = core.positionBuffers[r.position];
        there += r.buffers;
        if (there > 8 || r.buffers == 0) {
            refuse("queue-buffers",
                   Format("%u queue buffers in one position, 1 to 8 are possible", there),
                   "use fewer queues, or TBuf with flags of your own");
        }
    }
    Counters &c = core.machine->report.counters;
    c.peakBytes[s] = std::max(c.peakBytes[s], used);
}

}  // namespace twin
