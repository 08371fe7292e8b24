// SPDX-License-Identifier: Apache-2.0
// What a checked launch counted: bytes per route, multiplications, lanes, flags, peak memory, and a
// time line in simulated cycles that Perfetto and chrome://tracing can show.
#ifndef FLA_TWIN_MACHINE_REPORT_H
#define FLA_TWIN_MACHINE_REPORT_H

#include <cstdint>
#include <string>
#include <vector>

#include "instruction.h"

namespace twin
{

struct Counters {
    uint64_t routeBytes[static_cast<int>(Route::kCount)] = {};
    uint64_t macs = 0;
    uint64_t lanes = 0;
    uint64_t instructions[kPipes] = {};
    uint64_t busyCycles[kPipes] = {};  // over all cores
    uint64_t flagsSet = 0, crossFlagsSet = 0;
    uint64_t peakBytes[kLocalSpaces] = {};
    uint64_t cycles = 0;  // of the slowest core
};

/// Counters of the calling thread's last checked launch.
TWIN_EXPORT const Counters &LastCounters();

class Report
{
  public:
    Counters counters;

    /// Keeps one bar of the time line. name and where.file must outlive the launch (they are
    /// literals).
    void Bar(uint32_t core, Pipe pipe, const char *name, Where where, uint64_t start,
             uint64_t cycles)
    {
        if (bars_.size() < kMostBars) {
            bars_.push_back(Entry{name, where, start, cycles, core, pipe});
        }
    }
    /// Appends this launch to the trace file (one file for the process; launches follow one
    /// another). coreNames by core number. False when the file cannot be written.
    bool Write(const std::string &file, const char *op, uint32_t megahertz,
               const std::vector<std::string> &coreNames) const;
    void Publish() const;

  private:
    struct Entry {
        const char *name;
        Where where;
        uint64_t start, cycles;
        uint32_t core;
        Pipe pipe;
    };
    static constexpr size_t kMostBars = 2000000;  // Perfetto stays usable below that
    std::vector<Entry> bars_;
};

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_REPORT_H
