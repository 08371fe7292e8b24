// SPDX-License-Identifier: Apache-2.0
// Host memory behind the stores of one group of cores.
#ifndef FLA_TWIN_MACHINE_ARENA_H
#define FLA_TWIN_MACHINE_ARENA_H

#include "core.h"

namespace twin
{

/// L1, L0A, L0B, L0C, BT and FB of an AIC and the UB of two AIVs, in one mapping.
class CoreArena
{
  public:
    CoreArena();
    ~CoreArena();
    CoreArena(const CoreArena &) = delete;
    CoreArena &operator=(const CoreArena &) = delete;

    /// Points the core at its stores; stores it does not own become null.
    void Attach(Core &core) const;

  private:
    uint8_t *base_;
};

/// File name without its folders, for messages.
const char *BaseName(const char *path);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_ARENA_H
