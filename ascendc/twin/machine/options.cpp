// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace twin
{

namespace
{

// From the platform files of CANN 8.1. The file Ascend910B (no digit) is another, older chip and is
// left out on purpose.
constexpr ChipTable kChips[] = {
    {"Ascend910B1", 24, 1850},    {"Ascend910B2", 24, 1800},    {"Ascend910B2C", 24, 1800},
    {"Ascend910B3", 20, 1800},    {"Ascend910B4", 20, 1500},    {"Ascend910B4-1", 20, 1500},
    {"Ascend910_9391", 24, 1850}, {"Ascend910_9392", 24, 1850}, {"Ascend910_9381", 24, 1800},
    {"Ascend910_9382", 24, 1800}, {"Ascend910_9372", 20, 1800}, {"Ascend910_9362", 20, 1500},
};

// An empty variable counts as unset: shells make those by accident.
const char *Env(const char *name)
{
    const char *v = std::getenv(name);
    return v != nullptr && *v != '\0' ? v : nullptr;
}

/// One complaint is enough; the first wins.
void Complain(Options &o, const char *name, const char *value, const char *legal)
{
    if (o.error.empty()) {
        o.error = std::string(name) + "=" + value + " is not understood; use " + legal;
    }
}

uint64_t Number(Options &o, const char *name, uint64_t fallback, uint64_t low, uint64_t high,
                const char *legal)
{
    const char *v = Env(name);
    if (v == nullptr) {
        return fallback;
    }
    char *end = nullptr;
    errno = 0;  // strtoull tells an overflow by it alone
    uint64_t n = std::strtoull(v, &end, 10);
    if (errno != 0 || *end != '\0' || *v == '-' || n < low || n > high) {
        Complain(o, name, v, legal);
        return fallback;
    }
    return n;
}

/// Choice between two words; `second` is what makes the result true.
bool Choice(Options &o, const char *name, const char *first, const char *second, bool fallback)
{
    const char *v = Env(name);
    if (v == nullptr) {
        return fallback;
    }
    if (std::strcmp(v, first) != 0 && std::strcmp(v, second) != 0) {
        Complain(o, name, v, (std::string(first) + " or " + second).c_str());
        return fallback;
    }
    return std::strcmp(v, second) == 0;
}

// File names are compared without folders: a build may compile by any path.
void ReadSkip(Options &o)
{
    const char *v = Env("FLA_NPU_TWIN_SKIP");
    std::string rest = v != nullptr ? v : "";
    while (!rest.empty()) {
        std::string one = rest.substr(0, rest.find(','));
        rest.erase(0, one.size() + 1);
        size_t colon = one.rfind(':');
        int line = colon != std::string::npos ? std::atoi(one.c_str() + colon + 1) : 0;
        if (line <= 0 || colon == 0) {
            Complain(o, "FLA_NPU_TWIN_SKIP", v, "<file>:<line>[,<file>:<line>...]");
            return;
        }
        o.skip.emplace_back(one.substr(0, colon), line);
    }
}

}  // namespace

// Names as the platform files spell them; the short soc names stand for several chips and are not
// accepted.
const ChipTable *FindChip(const char *name)
{
    for (const ChipTable &c : kChips) {
        if (std::strcmp(c.name, name) == 0) {
            return &c;
        }
    }
    return nullptr;
}

// A dozen getenv calls per launch are a microsecond; a cached setting that a test cannot change
// costs an afternoon.
Options Options::Read()
{
    Options o;
    uint32_t cpus = std::thread::hardware_concurrency();
    o.checked = Choice(o, "FLA_NPU_TWIN", "fast", "checked", false);
    o.lateCopies = !Choice(o, "FLA_NPU_TWIN_COPIES", "late", "eager", false);
    o.threads = static_cast<uint32_t>(Number(o, "FLA_NPU_TWIN_THREADS", cpus != 0 ? cpus : 1, 1,
                                             1024, "a thread count from 1 to 1024"));
    o.cores = static_cast<uint32_t>(
        Number(o, "FLA_NPU_TWIN_CORES", 0, 1, 1024, "a cube core count from 1 to 1024"));
    o.seed = Number(o, "FLA_NPU_TWIN_SEED", 0, 0, ~0ULL, "a number");
    const char *soc = Env("FLA_NPU_TWIN_SOC");
    o.chip = FindChip(soc != nullptr ? soc : kDefaultChip);
    if (o.chip == nullptr) {
        Complain(o, "FLA_NPU_TWIN_SOC", soc, "a name such as Ascend910B3 or Ascend910_9392");
        o.chip = FindChip(kDefaultChip);
    }
    if (const char *trace = Env("FLA_NPU_TWIN_TRACE")) {
        o.trace = trace;
    }
    ReadSkip(o);
    if (const char *isa = Env("FLA_NPU_TWIN_ISA")) {
        o.isa = isa;
    }
    return o;
}

}  // namespace twin
