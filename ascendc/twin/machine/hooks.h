// SPDX-License-Identifier: Apache-2.0
// What the API asks of the machine for synchronisation. Fast* is the fast machine (only what
// crosses cores exists there), Checked* the checked one. Everything that does not need to be inline
// is here as a plain function.
#ifndef FLA_TWIN_MACHINE_HOOKS_H
#define FLA_TWIN_MACHINE_HOOKS_H

#include "core.h"

namespace twin
{

/// Flag ids SyncAll uses inside: AIC only, AIV only, both.
constexpr int kFlagIds = 16;
constexpr int kSyncAic = 11, kSyncAiv = 12, kSyncAll = 13;

TWIN_EXPORT void FastCrossSet(int mode, int flag);
TWIN_EXPORT void FastCrossWait(int flag, Where where);
TWIN_EXPORT void FastSyncAll(bool vectorOnly, Where where);

TWIN_EXPORT void CheckedCrossSet(int mode, Pipe pipe, int flag, Where where);
TWIN_EXPORT void CheckedCrossWait(int flag, Where where);
TWIN_EXPORT void CheckedSyncAll(bool vectorOnly, Where where);

/// Who uses an event flag: the kernel by itself, a queue that says "full", a queue that says "free
/// again".
enum class FlagUser : uint8_t { kKernel, kQueueFull, kQueueFree };

/// event is a HardEvent.
TWIN_EXPORT void CheckedSetFlag(int event, int id, FlagUser user, Where where);
TWIN_EXPORT void CheckedWaitFlag(int event, int id, FlagUser user, Where where);
/// Pipe::kCount means PIPE_ALL.
TWIN_EXPORT void CheckedBarrier(Pipe pipe, Where where);
/// Takes an event id from the pipe's pool / gives it back. Fetch only looks.
TWIN_EXPORT int CheckedAllocEvent(int event, FlagUser user, Where where);
TWIN_EXPORT int CheckedFetchEvent(int event, Where where);
TWIN_EXPORT void CheckedReleaseEvent(int event, int id, FlagUser user, Where where);

/// TPipe life cycle and its linear allocator, which returns the byte offset of the new buffers.
/// depth is -1 for a TBuf.
TWIN_EXPORT void CheckedPipeCreate(void *tpipe, Where where);
TWIN_EXPORT void CheckedPipeDestroy(void *tpipe, bool explicitly, Where where);
TWIN_EXPORT void CheckedPipeReset(Where where);
struct BufferRequest {
    Space space;
    int position;  // TPosition, for the limit per position
    uint32_t buffers;
    uint32_t bytes;  // of each, already rounded to 32
    bool queue;
};
TWIN_EXPORT void CheckedInitBuffer(const BufferRequest &request, uint64_t used, Where where);
[[noreturn]] TWIN_EXPORT void FastCapacityFault(const BufferRequest &request, uint64_t used,
                                                Where where);

/// A rule of the API layer that is no instruction (queue states, depth). Formats only when broken.
[[noreturn]] TWIN_EXPORT void CheckedFault(const char *rule, const char *repair, Where where,
                                           const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/// Scalar access to GM goes through the core's data cache, which nothing keeps coherent
/// (scalar_cache.cpp).
TWIN_EXPORT void ScalarRead(const void *gm, void *value, uint32_t bytes, Where where);
TWIN_EXPORT void ScalarWrite(void *gm, const void *value, uint32_t bytes, Where where);
/// GET_TILING_DATA: copies the struct; on AIV the device does it through UB address 0, which is
/// lost.
TWIN_EXPORT void CheckedReadTiling(void *to, const void *gm, uint32_t bytes, Where where);
/// DataCacheCleanAndInvalid of the line at gm, or of all lines.
TWIN_EXPORT void CheckedCleanCache(const void *gm, bool all, Where where);

}  // namespace twin
#endif  // FLA_TWIN_MACHINE_HOOKS_H
