// SPDX-License-Identifier: Apache-2.0
// Lets Python start a probe: a C function around twin::Run.
#include <cstdio>

#include "machine/launch.h"
#include "machine/report.h"

#define PROBE_EXPORT extern "C" __attribute__((visibility("default")))

PROBE_EXPORT int ProbeLaunch(const void *entry, void **args, int ranges, void **base,
                             const uint64_t *bytes, const int *kind, const char **name,
                             uint32_t blockDim, char *text, int size)
{
    twin::Launch launch{static_cast<const twin::KernelEntry *>(entry), args, {}, blockDim};
    for (int i = 0; i < ranges; ++i) {
        launch.gm.push_back(
            {base[i], bytes[i], static_cast<twin::GmRange::Kind>(kind[i]), name[i]});
    }
    twin::Result result = twin::Run(launch);
    std::snprintf(text, static_cast<size_t>(size), "%s", result.message.c_str());
    return result.status;
}

/// Counters of the last checked launch, in the order harness.COUNTERS names them.
PROBE_EXPORT void ProbeCounters(uint64_t *out)
{
    const twin::Counters &c = twin::LastCounters();
    *out++ = c.macs;
    *out++ = c.lanes;
    *out++ = c.flagsSet;
    *out++ = c.crossFlagsSet;
    *out++ = c.cycles;
    *out++ = c.peakBytes[static_cast<int>(twin::Space::UB)];
    *out++ = c.routeBytes[static_cast<int>(twin::Route::kGmToUb)];
    *out++ = c.routeBytes[static_cast<int>(twin::Route::kUbToGm)];
}
