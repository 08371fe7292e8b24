// SPDX-License-Identifier: Apache-2.0
// OS threads that stay between launches.
#ifndef FLA_TWIN_MACHINE_POOL_H
#define FLA_TWIN_MACHINE_POOL_H

#include <cstdint>
#include <functional>

namespace twin
{

/// Runs work() on `threads` threads, the caller's among them, and returns when all are done. With
/// one thread nothing but the caller is involved. Threads that find nothing left to do may never come:
/// work may be called less often than `threads`. work must not throw.
void RunOnThreads(uint32_t threads, const std::function<void()> &work);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_POOL_H
