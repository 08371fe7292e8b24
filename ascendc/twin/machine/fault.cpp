// SPDX-License-Identifier: Apache-2.0
// The one line a failed launch leaves: rule, op, core, pipe, place, what happened, what to do.
#include <cstdarg>
#include <cstdio>

#include "checked_core.h"

namespace twin
{

// The only place that allocates for text; it runs once per launch, after something went wrong.
std::string Format(const char *format, ...)
{
    char text[768];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return text;
}

std::string Place(Where where)
{
    return Format("%s:%d", BaseName(where.file), where.line);
}

std::string CoreName(const CheckedCore &core)
{
    return Format("%s %u", core.TypeName(), BlockIndex(core));
}

// In the order of HardEvent, spelled as the template argument the kernel has to write.
const char *EventName(int event)
{
    static constexpr const char *kNames[] = {
        "MTE2_MTE1", "MTE1_MTE2", "MTE1_M", "M_MTE1",   "MTE2_V",    "V_MTE2",    "MTE3_V",
        "V_MTE3",    "M_V",       "V_M",    "V_V",      "MTE3_MTE1", "MTE1_MTE3", "MTE1_V",
        "MTE2_M",    "M_MTE2",    "V_MTE1", "M_FIX",    "FIX_M",     "MTE3_MTE2", "MTE2_MTE3",
        "S_V",       "V_S",       "S_MTE2", "MTE2_S",   "S_MTE3",    "MTE3_S",    "MTE2_FIX",
        "FIX_MTE2",  "FIX_S",     "M_S",    "FIX_MTE3", "MTE1_FIX",  "FIX_MTE1",  "FIX_FIX"};
    return event >= 0 && event < kEvents ? kNames[event] : "?";
}

// The format is part of the interface: Python turns it into TwinFault and tests look words up in
// it.
void NoteFault(CheckedCore &core, const Complaint &c)
{
    Machine &m = *core.machine;
    if (m.faulted) {
        return;  // the first fault is the cause, the rest are consequences
    }
    m.faulted = true;
    m.fault = Format("twin fault: %s: op %s, core %s, ", c.rule, m.launch->kernel->op,
                     CoreName(core).c_str());
    if (c.pipe != Pipe::kCount) {
        m.fault += Format("pipe %s, ", kPipeName[static_cast<int>(c.pipe)]);
    }
    m.fault += Place(c.where) + ": " + c.what + "; " + c.repair;
}

void RaiseFault(CheckedCore &core, const Complaint &complaint)
{
    NoteFault(core, complaint);
    throw Unwind{};
}

void CheckedFault(const char *rule, const char *repair, Where where, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    RaiseFault(MyChecked(), Complaint{rule, Pipe::kCount, where, text, repair});
}

// Names the cheapest fence that would do. It knows the two accesses and not the loop around them,
// so it says what to add and where, not how to keep set and wait paired.
std::string OrderRepair(const CheckedCore &fromCore, Pipe from, const CheckedCore &toCore, Pipe to)
{
    const char *x = kPipeName[static_cast<int>(from)], *y = kPipeName[static_cast<int>(to)];
    if (&fromCore == &toCore) {
        if (from == to) {
            return Format("add PipeBarrier<PIPE_%s>() between them", x);
        }
        int event = static_cast<int>(EventBetween(from, to));
        if (event < kEvents) {
            return Format("add SetFlag/WaitFlag<HardEvent::%s> between them", EventName(event));
        }
        return Format(
            "there is no event from %s to %s: go over a third pipe, or PipeBarrier<PIPE_ALL>", x,
            y);
    }
    const char *cache =
        from == Pipe::S ? " (after DataCacheCleanAndInvalid of the scalar write)" : "";
    if (fromCore.group == toCore.group) {
        return Format(
            "add CrossCoreSetFlag<%d, PIPE_%s> after it%s and CrossCoreWaitFlag before this",
            fromCore.type == toCore.type ? 1 : 2, from == Pipe::S ? "MTE3" : x, cache);
    }
    return Format("add SyncAll between them%s, or give each core its own bytes", cache);
}

// Fault injection for the fence tests: a fence that is there and does nothing is a fence somebody
// forgot.
bool Skipped(const Machine &m, Where where)
{
    for (const auto &line : m.options->skip) {
        if (where.line == line.second && line.first == BaseName(where.file)) {
            return true;
        }
    }
    return false;
}

// S, MTE2 and MTE3 exist on both core types; the stores they may touch are checked with the
// operands.
void RequirePipe(CheckedCore &core, Pipe pipe, const char *what, Where where)
{
    bool cube = core.type == CoreType::AIC;
    bool exists = pipe == Pipe::V                                              ? !cube
                  : pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX ? cube
                                                                               : true;
    if (!exists) {
        RaiseFault(core,
                   Complaint{"core-type", pipe, where,
                             Format("%s needs pipe %s, which an %s does not have", what,
                                    kPipeName[static_cast<int>(pipe)], core.TypeName()),
                             cube ? "put it under ASCEND_IS_AIV" : "put it under ASCEND_IS_AIC"});
    }
}

}  // namespace twin
