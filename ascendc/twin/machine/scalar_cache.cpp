// SPDX-License-Identifier: Apache-2.0
/*
 * Scalar access to GM goes through the core's data cache: 64-byte lines, write-back, coherent with
 * nothing. The twin keeps real lines. What it refuses: reading a line that others have changed
 * since it was loaded, leaving a write in the cache while a DMA or the end of the kernel needs it,
 * and two cores writing one line. Inputs cannot change during a kernel, so reads of them skip the
 * cache.
 */
#include "checked_core.h"

namespace twin
{

namespace
{

constexpr uint64_t kLine = 64;

/// The access as an ordinary instruction of pipe S: bounds, poison and order.
struct ScalarPlace {
    uint64_t address;
    uint32_t bytes;
    twin::Region Region() const
    {
        return twin::Region{Space::GM, static_cast<uint8_t>(bytes), address, bytes};
    }
};

uint64_t Mask(uint64_t low, uint64_t bytes)
{
    return ((bytes == 64 ? 0 : 1ULL << bytes) - 1) << low;
}

// A line is a copy of memory with the author of each piece, so that a later hit can tell whether
// memory moved on.
CacheLineState &Load(CheckedCore &core, GmStore &g, uint64_t line, Where where)
{
    auto found = core.cache.find(line);
    if (found != core.cache.end()) {
        return found->second;
    }
    CacheLineState &s = core.cache[line];
    s.where = where;
    uint64_t base = reinterpret_cast<uint64_t>(g.base);
    for (uint64_t i = 0; i < kLine; i += 2) {
        uint64_t at = line + i;
        if (at >= base && at + 2 <= base + g.bytes) {  // a line may reach beyond its range
            std::memcpy(s.bytes + i, reinterpret_cast<const void *>(at), 2);
            s.seen[i / 2] = g.shadow.LastWrite(at - base);
        }
    }
    return s;
}

// The device would return the old value without a word. Equal values are stale as well: next time
// they differ.
void RefuseStale(CheckedCore &core, const GmStore &g, const CacheLineState &s, uint64_t at,
                 uint32_t bytes, Where where)
{
    uint64_t base = reinterpret_cast<uint64_t>(g.base);
    for (uint64_t b = at; b < at + bytes; b += 2) {
        Epoch last = g.shadow.LastWrite(b - base);
        bool own = AgentOf(last) == core.index * 8;  // pipe S is number 0
        if (!own && last != s.seen[(b % kLine) / 2]) {
            const Site &writer = core.machine->sites[SiteOf(last)];
            RaiseFault(
                core,
                Complaint{"cache-stale", Pipe::S, where,
                          Format("GetValue hits a cache line loaded at %s, before %s wrote it (%s)",
                                 Place(s.where).c_str(), writer.name, Place(writer.where).c_str()),
                          "call DataCacheCleanAndInvalid on it before the read"});
        }
    }
}

// Only dirty bytes go back, though the device writes the whole line: the twin refuses shared lines
// before that matters.
void CleanLine(CheckedCore &core, uint64_t line, CacheLineState &s)
{
    for (uint64_t i = 0; i < kLine; ++i) {
        if ((s.dirty >> i) & 1) {
            *reinterpret_cast<uint8_t *>(line + i) = s.bytes[i];
        }
    }
    core.machine->dirtyLines -= s.dirty != 0;
    s.dirty = 0;
}

}  // namespace

void ScalarRead(const void *gm, void *value, uint32_t bytes, Where where)
{
    CheckedCore &core = MyChecked();
    uint64_t at = reinterpret_cast<uint64_t>(gm);
    ScalarPlace place{at, bytes};
    {
        Instruction i(Pipe::S, "GetValue", where);
        i.Reads(place, 1);
        i.Commit([] {});
    }
    GmStore &g = *core.machine->Find(at);
    if (!g.Writable()) {
        std::memcpy(value, gm, bytes);
        return;
    }
    CacheLineState &s = Load(core, g, at / kLine * kLine, where);
    RefuseStale(core, g, s, at, bytes, where);
    std::memcpy(value, s.bytes + at % kLine, bytes);
}

void ScalarWrite(void *gm, const void *value, uint32_t bytes, Where where)
{
    CheckedCore &core = MyChecked();
    uint64_t at = reinterpret_cast<uint64_t>(gm);
    ScalarPlace place{at, bytes};
    uint64_t line = at / kLine * kLine;
    for (CheckedCore *c : core.machine->cores) {
        auto other = c->cache.find(line);
        if (c != &core && other != c->cache.end() && other->second.dirty != 0) {
            RaiseFault(
                core,
                Complaint{
                    "cache-shared", Pipe::S, where,
                    Format("SetValue into a 64-byte line that %s has written at %s and not cleaned",
                           CoreName(*c).c_str(), Place(other->second.where).c_str()),
                    "give each core its own 64-byte line"});
        }
    }
    {
        Instruction i(Pipe::S, "SetValue", where);
        i.Writes(place, 1);
        i.Commit([] {});
    }
    CacheLineState &s = Load(core, *core.machine->Find(at), line, where);
    core.machine->dirtyLines += s.dirty == 0;
    s.dirty |= Mask(at % kLine, bytes);
    s.where = where;
    std::memcpy(s.bytes + at % kLine, value, bytes);
}

void CheckDirtyLines(CheckedCore &core, uint64_t begin, uint64_t end, Pipe pipe, Where where)
{
    for (CheckedCore *c : core.machine->cores) {
        for (const auto &entry : c->cache) {
            const CacheLineState &s = entry.second;
            if (s.dirty == 0 || entry.first >= end || entry.first + kLine <= begin) {
                continue;
            }
            uint64_t low = std::max(begin, entry.first) - entry.first;
            uint64_t high = std::min(end, entry.first + kLine) - entry.first;
            if ((s.dirty & Mask(low, high - low)) != 0) {
                RaiseFault(
                    core,
                    Complaint{
                        "cache-dirty", pipe, where,
                        Format(
                            "a DMA touches bytes that SetValue of %s (%s) holds in the data cache",
                            CoreName(*c).c_str(), Place(s.where).c_str()),
                        "call DataCacheCleanAndInvalid after SetValue"});
            }
        }
    }
}

void CheckedCleanCache(const void *gm, bool all, Where where)
{
    CheckedCore &core = MyChecked();
    if (Skipped(*core.machine, where)) {
        return;
    }
    uint64_t line = reinterpret_cast<uint64_t>(gm) / kLine * kLine;
    for (auto i = core.cache.begin(); i != core.cache.end();) {
        if (all || i->first == line) {
            CleanLine(core, i->first, i->second);
            i = core.cache.erase(i);
        } else {
            ++i;
        }
    }
}

void CheckedReadTiling(void *to, const void *gm, uint32_t bytes, Where where)
{
    CheckedCore &core = MyChecked();
    struct Bytes {
        uint64_t address;
        uint64_t capacity;
        Space space;
        twin::Region Region() const { return twin::Region{space, 1, address, capacity}; }
    };
    Instruction i(Pipe::S, "GET_TILING_DATA", where);
    i.Reads(Bytes{reinterpret_cast<uint64_t>(gm), bytes, Space::GM}, bytes);
    if (core.type ==
        CoreType::AIV) {  // the device copies it through UB address 0 and ends with PIPE_ALL
        uint32_t lost = (bytes + 31) / 32 * 32;
        i.WritesUndefined(Bytes{0, lost, Space::UB}, Extent{0, lost});
    }
    i.Commit([] {});
    CheckedBarrier(Pipe::kCount, Where{"GET_TILING_DATA", 0});
    std::memcpy(to, gm, bytes);
}

}  // namespace twin
