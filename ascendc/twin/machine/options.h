// SPDX-License-Identifier: Apache-2.0
// The FLA_NPU_TWIN* variables, read at every launch so that a test or a user may change them
// between calls.
#ifndef FLA_TWIN_MACHINE_OPTIONS_H
#define FLA_TWIN_MACHINE_OPTIONS_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "chip.h"

namespace twin
{

struct Options {
    bool checked = false;    // FLA_NPU_TWIN=fast|checked
    uint32_t threads = 1;    // FLA_NPU_TWIN_THREADS, default all CPUs of the process
    uint32_t cores = 0;      // FLA_NPU_TWIN_CORES: simulated AIC count, 0 = default
    uint64_t seed = 0;       // FLA_NPU_TWIN_SEED: order of the cores in the checked machine
    bool lateCopies = true;  // FLA_NPU_TWIN_COPIES=late|eager
    const ChipTable *chip = nullptr;  // FLA_NPU_TWIN_SOC
    std::string isa;                  // FLA_NPU_TWIN_ISA: instruction set, empty = the best
    std::string trace;                // FLA_NPU_TWIN_TRACE: file for the Perfetto trace
    // FLA_NPU_TWIN_SKIP=<basename>:<line>[,...]: fences that do nothing (fault injection, checked
    // machine)
    std::vector<std::pair<std::string, int>> skip;
    std::string error;  // what is wrong with the environment, empty when nothing is

    static Options Read();
    /// AIC count of the machine these options describe.
    uint32_t CubeCores() const
    {
        return cores != 0 ? cores : checked ? chip->cubeCores : FastCores(threads);
    }

  private:
    /// Two groups for each of a few threads: a thread takes the next group when it is done with
    /// one, so a core that somebody else uses as well does less instead of holding up the rest.
    static uint32_t FastCores(uint32_t threads)
    {
        constexpr uint32_t perThread = 2, enough = 16;
        const uint32_t wanted = perThread * threads < enough ? perThread * threads : enough;
        return threads == 1 ? 1 : threads > wanted ? threads : wanted;
    }
};

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_OPTIONS_H
