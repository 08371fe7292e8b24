// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace twin
{

namespace
{

// Stores start on cache lines, and not all at the same offset of a 4 KB page: equal offsets would
// make a load wait for an unrelated store (4K aliasing) in every instruction that streams two
// stores.
constexpr size_t kStagger = 320;
constexpr size_t RoundUp(size_t n)
{
    return (n + 63) / 64 * 64 + kStagger;
}

constexpr size_t ArenaBytes()
{
    size_t bytes = 0;
    for (int s = 0; s < kLocalSpaces; ++s) {
        bytes += RoundUp(HostBytes(static_cast<Space>(s)));
    }
    return bytes + RoundUp(HostBytes(Space::UB));  // the second AIV
}

// A huge page has to be a whole aligned one, or the kernel takes none.
constexpr size_t kHuge = size_t(2) << 20;
constexpr size_t kMapped = (ArenaBytes() + kHuge - 1) / kHuge * kHuge;

}  // namespace

CoreArena::CoreArena()
{
    void *p =
        mmap(nullptr, kMapped + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        throw std::bad_alloc();
    }
    const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(p) % kHuge) % kHuge;
    base_ = static_cast<uint8_t *>(p) + skip;
    if (skip > 0) {
        munmap(p, skip);
    }
    munmap(base_ + kMapped, kHuge - skip);
#ifdef MADV_HUGEPAGE
    madvise(base_, kMapped, MADV_HUGEPAGE);  // fewer TLB misses; refusing is harmless
#endif
}

CoreArena::~CoreArena()
{
    munmap(base_, kMapped);
}

void CoreArena::Attach(Core &core) const
{
    uint8_t *at = base_ + (core.sub == 1 ? RoundUp(HostBytes(Space::UB)) : 0);
    uint8_t *cube = base_ + 2 * RoundUp(HostBytes(Space::UB));
    for (int s = 0; s < kLocalSpaces; ++s) {
        core.store[s] = nullptr;
    }
    if (core.type == CoreType::AIV) {
        core.store[static_cast<int>(Space::UB)] = at;
        return;
    }
    for (int s = static_cast<int>(Space::L1); s < kLocalSpaces; ++s) {
        core.store[s] = cube;
        cube += RoundUp(HostBytes(static_cast<Space>(s)));
    }
}

const char *BaseName(const char *path)
{
    if (path == nullptr) {
        return "?";
    }
    const char *slash = std::strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

}  // namespace twin
