// SPDX-License-Identifier: Apache-2.0
/*
 * State of the checked machine
 *
 * Order. Every instruction gets the next time of its pipe. A pipe's clock `known[p]` says, for each
 * pipe of the own core, up to which time its next instruction comes after that pipe's work. S
 * issues for all, so what S has waited for (WaitFlag<X_S>, CrossCoreWaitFlag, PIPE_ALL) holds for
 * everything issued later: each instruction first joins the S clock. Only what S itself wrote does
 * not follow from issue order; that takes S_X flags. Knowledge about other cores arrives through
 * CrossCoreWaitFlag alone, hence one `remote` clock per core is exact.
 *
 * Late copies. Effects of MTE2, MTE3 and FIX wait in a list and run when a flag that covers them is
 * waited for, in order. A flag remembers how far its pipe's list has to be run.
 */
#ifndef FLA_TWIN_MACHINE_CHECKED_CORE_H
#define FLA_TWIN_MACHINE_CHECKED_CORE_H

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../api/position.h"
#include "arena.h"
#include "fiber.h"
#include "hooks.h"
#include "instruction.h"
#include "launch.h"
#include "options.h"
#include "report.h"
#include "shadow.h"

namespace twin
{

struct Machine;

/// Own-core part of a clock, one time per pipe.
struct Clock {
    uint32_t at[8] = {};
    void Join(const Clock &o)
    {
        for (int i = 0; i < 8; ++i) {
            at[i] = std::max(at[i], o.at[i]);
        }
    }
};

/// Copies that have been issued and not yet delivered, of one pipe.
struct PendingCopies {
    struct Slot {
        void (*run)(void *);
        alignas(16) unsigned char effect[Instruction::kEffectBytes];
    };
    std::deque<Slot> slots;
    uint64_t issued = 0, delivered = 0;

    void DeliverUpTo(uint64_t number)
    {
        while (delivered < number) {
            slots.front().run(slots.front().effect);
            slots.pop_front();
            ++delivered;
        }
    }
};

/// One of the eight flags of an event.
struct EventFlag {
    bool raised = false;
    FlagUser user = FlagUser::kKernel;
    Clock clock;
    uint64_t cycles = 0;
    uint64_t copies = 0;  // the raising pipe's list has to be delivered up to here
    Where where{};
};

struct CheckedCore;

/// A cross-core flag on its way: what its setters had done, and the copies that have to be visible.
struct Token {
    int mode = 0;
    std::vector<uint32_t> clock;
    uint64_t cycles = 0;
    struct Due {
        CheckedCore *core;
        Pipe pipe;
        uint64_t copies;
    };
    std::vector<Due> due;
    Where where{};
};

/// Rounds of one flag among a fixed set of setters; a round is complete when all have set once
/// more.
struct Rounds {
    std::vector<uint32_t> sets;
    std::deque<Token> open;  // rounds some member has set and some have not
    uint32_t complete = 0;
    Where lastSet{};
};

/// A 64-byte line in a core's data cache.
struct CacheLineState {
    uint8_t bytes[64];
    uint64_t dirty = 0;  // one bit per byte
    Epoch seen[32];      // last write of each 2-byte granule when the line was loaded
    Where where{};
};

struct CheckedCore : Core {
    Machine *machine = nullptr;
    Fiber fiber;
    KernelFn entry = nullptr;
    uint32_t index = 0;  // among all cores of the launch: agent = index * 8 + pipe

    Clock known[kPipes];
    uint32_t now[kPipes] = {};
    uint32_t issueVersion = 1, seenIssue[kPipes] = {};
    std::vector<uint32_t> remote;  // by agent; own entries stay 0

    LocalShadow shadow[kLocalSpaces];
    EventFlag flag[kEvents][8];
    uint8_t heldByKernel[kEvents] = {}, heldByQueue[kEvents] = {};
    PendingCopies pending[kPipes];

    void *activePipe = nullptr;
    uint32_t pipeBuffers = 0;
    uint32_t positionBuffers[static_cast<int>(AscendC::TPosition::MAX)] = {};

    std::deque<Token> inbox[kFlagIds];
    int waitsFor = -1;
    Where waitsAt{};

    std::unordered_map<uint64_t, CacheLineState> cache;
    uint64_t cycles[kPipes] = {};  // simulated time of each pipe; S is the issue time

    const char *TypeName() const { return type == CoreType::AIC ? "AIC" : "AIV"; }
    /// All that p's next instruction is ordered after, S's waits included.
    const Clock &Joined(Pipe p)
    {
        int i = static_cast<int>(p);
        if (p != Pipe::S && seenIssue[i] != issueVersion) {
            known[i].Join(known[0]);
            seenIssue[i] = issueVersion;
        }
        return known[i];
    }
    /// Clock that a flag raised by p carries: p's earlier work is done.
    Clock Release(Pipe p)
    {
        Clock c = Joined(p);
        c.at[static_cast<int>(p)] = now[static_cast<int>(p)];
        return c;
    }
    void Deliver(Pipe p, uint64_t number) { pending[static_cast<int>(p)].DeliverUpTo(number); }
    void DeliverAll()
    {
        for (PendingCopies &p : pending) {
            p.DeliverUpTo(p.issued);
        }
    }
    void Start(Machine &m, uint32_t coreIndex, uint32_t agents);
};

struct CheckedGroup {
    CoreArena arena;
    CheckedCore core[3];
    Rounds vectorSets[2][kFlagIds];  // AIV sets of modes 1 and 2
};

/// A range of GM after overlapping arguments have been merged.
struct GmStore {
    uint8_t *base;
    uint64_t bytes;
    GmRange::Kind kind;
    std::string name;
    GlobalShadow shadow;  // unused for inputs and tiling: nobody may write them
    bool Writable() const { return kind != GmRange::kInput && kind != GmRange::kTiling; }
};

/// The source line of an instruction, by number.
struct Site {
    const char *name;
    Where where;
};

struct Machine {
    const Launch *launch = nullptr;
    const Options *options = nullptr;
    std::vector<std::unique_ptr<CheckedGroup>> groups;
    std::vector<CheckedCore *> cores;  // by index: AICs' group * 3 + (0 AIC, 1, 2 AIV)
    std::vector<GmStore> gm;           // by address
    size_t lastGm = 0;
    Rounds all[3][kFlagIds];  // flags across groups: AICs, AIVs, both
    std::vector<std::vector<Epoch>> readerLists{1};
    std::vector<Site> sites{1};
    std::vector<uint16_t> siteTable = std::vector<uint16_t>(1U << 14);
    uint64_t dirtyLines = 0;
    std::string fault;
    bool faulted = false;
    Report report;

    uint32_t Agents() const { return static_cast<uint32_t>(cores.size()) * 8; }
    uint16_t SiteOf(const char *name, Where where);
    GmStore *Find(uint64_t address);
};

/// Thrown through the kernel of every core once the launch has failed.
struct Unwind {};

inline CheckedCore &MyChecked()
{
    return static_cast<CheckedCore &>(*tCore);
}

/// Ends the launch with the one line of text the caller gets. pipe may be kCount when none is
/// concerned.
struct Complaint {
    const char *rule;
    Pipe pipe;
    Where where;
    std::string what;
    std::string repair;
};
[[noreturn]] void RaiseFault(CheckedCore &core, const Complaint &complaint);
/// The same without unwinding, for what is found when the core has already returned.
void NoteFault(CheckedCore &core, const Complaint &complaint);

std::string Format(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string Place(Where where);
/// "AIV 7"
std::string CoreName(const CheckedCore &core);
const char *EventName(int event);
/// What has to stand between an access of `from` on `fromCore` and one of `to` on `toCore`.
std::string OrderRepair(const CheckedCore &fromCore, Pipe from, const CheckedCore &toCore, Pipe to);

/// True when FLA_NPU_TWIN_SKIP names this line: the fence there does nothing.
bool Skipped(const Machine &m, Where where);
/// Faults when `pipe` does not exist on this core type.
void RequirePipe(CheckedCore &core, Pipe pipe, const char *what, Where where);

/// Faults when a DMA touches bytes that a core's data cache holds unwritten.
void CheckDirtyLines(CheckedCore &core, uint64_t begin, uint64_t end, Pipe pipe, Where where);
/// Complaints that only the end of the kernel can make.
void CheckLeftovers(Machine &m);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_CHECKED_CORE_H
