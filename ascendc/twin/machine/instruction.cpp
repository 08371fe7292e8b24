// SPDX-License-Identifier: Apache-2.0
// The checks of one instruction, in the order in which its declaration makes them.
#include "instruction.h"

#include <cstdarg>
#include <cstdio>

#include "checked_core.h"

namespace twin
{

namespace
{

unsigned long long ULL(uint64_t n)
{
    return n;
}  // what %llu takes on every platform

const char *SpaceText(Space s)
{
    return kSpaceName[static_cast<int>(s)];
}

/// The walk pays per run, so a tile that was described row by row should be one run when its rows
/// touch. Runs that touch become one; a stride of 0 re-reads the same bytes and is one run.
Extent Merge(Extent e)
{
    if (e.count1 > 1 && e.stride1 == 0) {
        e.count1 = 1;
    }
    if (e.count2 > 1 && e.stride2 == 0) {
        e.count2 = 1;
    }
    if (e.count1 > 1 && e.stride1 == e.run &&
        static_cast<uint64_t>(e.run) * e.count1 <= 0xffffffffULL) {
        e.run *= e.count1;
        e.count1 = 1;
    }
    if (e.count1 == 1 && e.count2 > 1) {
        e.count1 = e.count2;
        e.stride1 = e.stride2;
        e.count2 = 1;
        return Merge(e);
    }
    return e;
}

/// Bytes from the tensor's start to the end of the last run.
uint64_t EndOf(const Extent &e)
{
    return e.start + (e.count1 - 1) * e.stride1 + (e.count2 - 1) * e.stride2 + e.run;
}

/// A pipe whose instructions the hardware runs one after another without a barrier: S by nature,
/// FIX because Fixpipe brings its own, MTE1 because no source names a hazard between two loads. V,
/// M, MTE2 and MTE3 overlap.
bool InOrder(Pipe p)
{
    return p == Pipe::S || p == Pipe::MTE1 || p == Pipe::FIX;
}

std::string ElementText(const Region &r, uint64_t byte)
{
    if (r.space == Space::GM) {
        return Format("byte %llu of the tensor", ULL(byte - r.address));
    }
    return Format("%s byte 0x%llx (element %llu of the tensor)", SpaceText(r.space), ULL(byte),
                  ULL((byte - r.address) / r.elementBytes));
}

[[noreturn]] void FaultAt(Pipe pipe, Where where, const char *rule, std::string what,
                          std::string repair)
{
    RaiseFault(MyChecked(), Complaint{rule, pipe, where, std::move(what), std::move(repair)});
}

/// Both accesses are named, because either may be the one that is missing its fence.
/// Turns a finding of the shadow into the fault text.
[[noreturn]] void FaultFound(Pipe pipe, const char *name, Where where, const Region &r,
                             Access access, const Finding &f, uint64_t base)
{
    CheckedCore &core = MyChecked();
    std::string place = ElementText(r, f.at + base);
    if (f.kind == Finding::kUndefined) {
        FaultAt(
            pipe, where, "undefined-read",
            Format("%s reads %s, which nothing in this kernel has written", name, place.c_str()),
            "write it first (Duplicate, a padded copy), or cut the count to the valid elements");
    }
    const Site &site = core.machine->sites[SiteOf(f.other)];
    const CheckedCore &otherCore = *core.machine->cores[AgentOf(f.other) >> 3];
    Pipe otherPipe = static_cast<Pipe>(AgentOf(f.other) & 7);
    std::string who = &otherCore == &core ? std::string() : " of " + CoreName(otherCore);
    FaultAt(pipe, where, "race",
            Format("%s %s %s, not ordered after %s%s, which %s it on pipe %s (%s)", name,
                   IsWrite(access) ? "writes" : "reads", place.c_str(), site.name, who.c_str(),
                   f.otherWrites ? "writes" : "reads", kPipeName[static_cast<int>(otherPipe)],
                   Place(site.where).c_str()),
            OrderRepair(otherCore, otherPipe, core, pipe));
}

}  // namespace

// Source lines get small numbers, so that a shadow entry can name one. Literals are compared by
// address: the same line reached through two libraries is two sites, which costs nothing but a
// slot.
uint16_t Machine::SiteOf(const char *name, Where where)
{
    size_t mask = siteTable.size() - 1;
    uint64_t key = reinterpret_cast<uint64_t>(where.file) * 0x9e3779b97f4a7c15ULL ^
                   reinterpret_cast<uint64_t>(name) * 0xc2b2ae3d27d4eb4fULL ^
                   static_cast<uint64_t>(where.line) * 0x165667b19e3779f9ULL;
    size_t at = (key >> 40) & mask;
    for (size_t probes = 0; probes <= mask; ++probes, at = (at + 1) & mask) {
        uint16_t n = siteTable[at];
        if (n == 0) {
            if (sites.size() > mask * 3 / 4) {
                return 0;  // a kernel with more lines than that gets nameless clashes, never wrong
                           // verdicts
            }
            siteTable[at] = static_cast<uint16_t>(sites.size());
            sites.push_back(Site{name, where});
            return siteTable[at];
        }
        const Site &s = sites[n];
        if (s.where.line == where.line && s.where.file == where.file && s.name == name) {
            return n;
        }
    }
    return 0;
}

// A kernel has some twenty arguments and mostly stays within one for a while.
GmStore *Machine::Find(uint64_t address)
{
    auto inside = [address](const GmStore &g) {
        uint64_t base = reinterpret_cast<uint64_t>(g.base);
        return address >= base && address < base + g.bytes;
    };
    if (lastGm < gm.size() && inside(gm[lastGm])) {
        return &gm[lastGm];
    }
    for (size_t i = 0; i < gm.size(); ++i) {
        if (inside(gm[i])) {
            lastGm = i;
            return &gm[i];
        }
    }
    return nullptr;
}

Instruction::Instruction(Pipe pipe, const char *name, Where where)
    : pipe_(pipe), name_(name), where_(where)
{
    CheckedCore &core = MyChecked();
    RequirePipe(core, pipe, name, where);
    // The clock is taken at issue: what is waited for later, even before this copy is delivered,
    // does not count.
    int p = static_cast<int>(pipe);
    core.Joined(pipe);
    if (InOrder(pipe)) {
        core.known[p].at[p] = core.now[p];
    }
    time_ = ++core.now[p];
    site_ = core.machine->SiteOf(name, where);
}

// One operand of the instruction. The order of the checks is the order in which a reader wants the
// news: first that the place does not exist, then that it is misaligned, last who races for it.
Instruction &Instruction::Touch(const Region &r, const Extent &extent, Access access,
                                uint32_t align)
{
    if (extent.run == 0 || extent.count1 == 0 || extent.count2 == 0) {
        return *this;  // a NOP on the device as well
    }
    Extent e = Merge(extent);
    const char *verb = IsWrite(access) ? "writes" : "reads";
    uint64_t end = EndOf(e);
    if (end > r.capacity) {
        FaultAt(pipe_, where_, "bounds",
                Format("%s %s %llu bytes of a tensor that has %llu (%s offset 0x%llx)", name_, verb,
                       ULL(end), ULL(r.capacity), SpaceText(r.space),
                       ULL(r.space == Space::GM ? 0 : r.address)),
                "cut the count, or take a larger tensor");
    }
    uint32_t demand = align != 0             ? align
                      : r.space == Space::GM ? r.elementBytes
                                             : kSpaceAlign[static_cast<int>(r.space)];
    if ((r.address & (demand - 1)) != 0) {
        FaultAt(pipe_, where_, "alignment",
                Format("%s starts at %s 0x%llx, which is not a multiple of %u", name_,
                       SpaceText(r.space), ULL(r.address), demand),
                "move the tensor to an aligned offset (GM: use DataCopyPad)");
    }
    if (r.space != Space::GM) {
        TouchLocal(r, e, end, access);
    } else {
        TouchGlobal(r, e, end, access);
    }
    return *this;
}

// Walks the runs of an extent through a shadow whose byte 0 is the address `origin`.
template <class AnyShadow>
void Instruction::Sweep(AnyShadow &shadow, uint64_t origin, const Region &r, const Extent &e,
                        Access access)
{
    CheckedCore &core = MyChecked();
    int p = static_cast<int>(pipe_);
    // An instruction that orders itself sees its own pipe as finished, for this walk only: flags
    // raised later must not carry more than the pipe really knows.
    uint32_t own = core.known[p].at[p];
    if (orderedInPipe_) {
        core.known[p].at[p] = time_ - 1;
    }
    Viewer viewer{MakeEpoch(time_, core.index * 8 + static_cast<uint32_t>(p), site_),
                  core.known[p].at, core.remote.data(), &core.machine->readerLists};
    for (uint32_t j = 0; j < e.count2; ++j) {
        for (uint32_t i = 0; i < e.count1; ++i) {
            uint64_t at = r.address - origin + e.start + j * e.stride2 + i * e.stride1;
            Finding f = shadow.Touch(at, at + e.run, access, viewer);
            if (f.kind != Finding::kFine) {
                FaultFound(pipe_, name_, where_, r, access, f, origin);
            }
        }
    }
    core.known[p].at[p] = own;
}

void Instruction::TouchLocal(const Region &r, const Extent &e, uint64_t end, Access access)
{
    CheckedCore &core = MyChecked();
    int s = static_cast<int>(r.space);
    if (core.store[s] == nullptr) {
        FaultAt(pipe_, where_, "core-type",
                Format("%s uses %s, which an %s does not have", name_, SpaceText(r.space),
                       core.TypeName()),
                r.space == Space::UB ? "do vector work under ASCEND_IS_AIV"
                                     : "do cube work under ASCEND_IS_AIC");
    }
    // Reachable only through tensors made by hand or by SetSize: TPipe refuses larger buffers.
    if (r.address + end > kSpaceBytes[s]) {
        FaultAt(pipe_, where_, "capacity",
                Format("%s ends at %s byte %llu, %u are usable", name_, SpaceText(r.space),
                       ULL(r.address + end), kSpaceBytes[s]),
                "plan the memory below that");
    }
    uint64_t &peak = core.machine->report.counters.peakBytes[s];
    peak = std::max(peak, r.address + end);
    Sweep(core.shadow[s], 0, r, e, access);
}

void Instruction::TouchGlobal(const Region &r, const Extent &e, uint64_t end, Access access)
{
    CheckedCore &core = MyChecked();
    Machine &m = *core.machine;
    const char *verb = IsWrite(access) ? "writes" : "reads";
    GmStore *g = m.Find(r.address + e.start);
    if (g == nullptr) {
        FaultAt(pipe_, where_, "gm-range",
                Format("%s %s GM outside every argument of the kernel%s", name_, verb,
                       r.address < 4096 ? " (null: an absent optional tensor?)" : ""),
                "keep rows and heads inside the tensor; cut the tail");
    }
    // GlobalTensors are often made without a size, so the argument's own end is the bound that
    // counts.
    uint64_t base = reinterpret_cast<uint64_t>(g->base);
    if (r.address + end > base + g->bytes) {
        FaultAt(pipe_, where_, "gm-range",
                Format("%s %s %llu bytes past the end of '%s' (%llu bytes)", name_, verb,
                       ULL(r.address + end - base - g->bytes), g->name.c_str(), ULL(g->bytes)),
                "keep rows and heads inside the tensor; cut the tail");
    }
    if (IsWrite(access) && !g->Writable()) {
        FaultAt(pipe_, where_, "input-write",
                Format("%s writes '%s', an input", name_, g->name.c_str()),
                "write to an output or to the workspace");
    }
    if (m.dirtyLines != 0 && pipe_ != Pipe::S) {
        CheckDirtyLines(core, r.address + e.start, r.address + end, pipe_, where_);
    }
    // Nobody may write an input, so nobody can race for it and all of it is defined.
    if (g->Writable()) {
        Sweep(g->shadow, base, r, e, access);
    }
}

// For moves that scatter: a fractal taken from L1 brings rows that nobody wrote, and they stay
// undefined in L0.
Instruction &Instruction::CopyDefined(const Region &d, uint64_t dByte, const Region &s,
                                      uint64_t sByte, uint32_t bytes)
{
    CheckedCore &core = MyChecked();
    uint64_t to = d.address + dByte, from = s.address + sByte;
    if (d.space == Space::GM) {
        return *this;  // undefined bytes never leave for GM: the reader's rule has stopped them
    }
    LocalShadow &target = core.shadow[static_cast<int>(d.space)];
    if (s.space != Space::GM) {
        target.CopyBits(to, core.shadow[static_cast<int>(s.space)], from, bytes);
        return *this;
    }
    GmStore *g = core.machine->Find(from);
    if (g == nullptr || !g->Writable()) {
        target.Mark(to, to + bytes, true);
    } else {
        target.CopyBits(to, g->shadow, from - reinterpret_cast<uint64_t>(g->base), bytes);
    }
    return *this;
}

// Inputs are defined as a whole; a place outside every argument is some other rule's business.
bool Instruction::QueryDefined(const Region &r, uint64_t byte, uint32_t bytes) const
{
    CheckedCore &core = MyChecked();
    if (r.space != Space::GM) {
        return core.shadow[static_cast<int>(r.space)].Defined(r.address + byte,
                                                              r.address + byte + bytes);
    }
    GmStore *g = core.machine->Find(r.address + byte);
    if (g == nullptr || !g->Writable()) {
        return true;
    }
    uint64_t at = r.address + byte - reinterpret_cast<uint64_t>(g->base);
    return g->shadow.Defined(at, at + bytes);
}

Instruction &Instruction::MarkDefined(const Region &r, uint64_t byte, uint32_t bytes, bool defined)
{
    if (r.space != Space::GM) {
        MyChecked().shadow[static_cast<int>(r.space)].Mark(r.address + byte,
                                                           r.address + byte + bytes, defined);
    }
    return *this;
}

// The text is made only here, on the way out: a kept rule costs its condition.
Instruction &Instruction::Require(bool ok, const char *rule, const char *repair, const char *format,
                                  ...)
{
    if (ok) {
        return *this;
    }
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    FaultAt(pipe_, where_, rule, std::string(name_) + ": " + text, repair);
}

Instruction &Instruction::On(CoreType type)
{
    const CheckedCore &core = MyChecked();
    if (core.type != type) {
        FaultAt(
            pipe_, where_, "core-type", Format("%s is issued on an %s", name_, core.TypeName()),
            type == CoreType::AIC ? "put it under ASCEND_IS_AIC" : "put it under ASCEND_IS_AIV");
    }
    return *this;
}

Instruction &Instruction::RequireSpace(const Region &r, Space space, const char *operand)
{
    if (r.space != space) {
        FaultAt(pipe_, where_, "operand-space",
                Format("%s takes %s in %s, it is in %s", name_, operand, SpaceText(space),
                       SpaceText(r.space)),
                Format("pass a tensor in %s", SpaceText(space)));
    }
    return *this;
}

// Partial overlap of source and destination is undefined on the device; equal addresses are mostly
// fine.
Instruction &Instruction::RequireDisjoint(const Region &a, uint64_t aBytes, const Region &b,
                                          uint64_t bBytes, bool same)
{
    bool overlap =
        a.space == b.space && a.address < b.address + bBytes && b.address < a.address + aBytes;
    if (overlap && !(same && a.address == b.address)) {
        FaultAt(pipe_, where_, "overlap",
                Format("%s: operands at %s 0x%llx and 0x%llx overlap", name_, SpaceText(a.space),
                       ULL(a.address), ULL(b.address)),
                same ? "use the same address for both, or none of the same bytes"
                     : "use separate buffers");
    }
    return *this;
}

Instruction &Instruction::OrderedInPipe()
{
    orderedInPipe_ = true;
    return *this;
}

// Counters and simulated time. The rates are those of the published performance tables; latencies
// are not modelled, so the time line shows which pipe is the bottleneck and not how long a kernel
// takes to the microsecond.
Instruction &Instruction::Moves(Route route, uint64_t bytes)
{
    int r = static_cast<int>(route);
    MyChecked().machine->report.counters.routeBytes[r] += bytes;
    cycles_ += (bytes + kRouteBytesPerCycle[r] - 1) / kRouteBytesPerCycle[r];
    return *this;
}

Instruction &Instruction::Lanes(uint64_t elements, uint32_t perCycle)
{
    MyChecked().machine->report.counters.lanes += elements;
    cycles_ += (elements + perCycle - 1) / perCycle;
    return *this;
}

// The cube works on blocks of 16 x 16 x cubeK and pays for the whole block at an edge.
Instruction &Instruction::Macs(uint32_t m, uint32_t n, uint32_t k, uint32_t cubeK)
{
    MyChecked().machine->report.counters.macs += static_cast<uint64_t>(m) * n * k;
    uint64_t blocks =
        static_cast<uint64_t>((m + 15) / 16) * ((n + 15) / 16) * ((k + cubeK - 1) / cubeK);
    cycles_ += blocks;
    return *this;
}

Instruction &Instruction::Cycles(uint64_t cycles)
{
    cycles_ += cycles;
    return *this;
}

void *Instruction::Finish(void (*run)(void *))
{
    CheckedCore &core = MyChecked();
    Machine &m = *core.machine;
    int p = static_cast<int>(pipe_);
    // A pipe starts when it is free and S has issued; S itself only pays one cycle per issue.
    uint64_t start = std::max(core.cycles[p], core.cycles[0]);
    uint64_t length = cycles_ != 0 ? cycles_ : 1;
    core.cycles[p] = start + length;
    core.cycles[0] += pipe_ != Pipe::S;
    ++m.report.counters.instructions[p];
    m.report.counters.busyCycles[p] += length;
    if (!m.options->trace.empty()) {
        m.report.Bar(core.index, pipe_, name_, where_, start, length);
    }
    if (!m.options->lateCopies ||
        (pipe_ != Pipe::MTE2 && pipe_ != Pipe::MTE3 && pipe_ != Pipe::FIX)) {
        return nullptr;
    }
    // The hardware's own issue queue is finite as well; running the oldest early is always legal.
    PendingCopies &pending = core.pending[p];
    if (pending.slots.size() >= 32) {
        pending.DeliverUpTo(pending.delivered + 1);
    }
    pending.slots.emplace_back();
    pending.slots.back().run = run;
    ++pending.issued;
    return pending.slots.back().effect;
}

}  // namespace twin
