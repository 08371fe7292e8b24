// SPDX-License-Identifier: Apache-2.0
// acl and aclrt: memory, devices, contexts, streams. Work is done when it is submitted, so every
// stream is in order and synchronising has nothing to wait for.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "acl/acl.h"
#include "acl/objects.h"

namespace
{

constexpr size_t kDeviceAlignment = 512;  // what aclrtMalloc promises
std::atomic<bool> initialised{false};
thread_local int32_t currentDevice = 0;

/// Host memory with the alignment a device pointer has, so that kernels see what they would there.
aclError Allocate(void **pointer, size_t size, const char *who)
{
    if (pointer == nullptr || size == 0) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM, std::string(who) + ": null pointer or size 0");
    }
    const size_t rounded = (size + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    *pointer = std::aligned_alloc(kDeviceAlignment, rounded);
    if (*pointer == nullptr) {
        return twin::Fail(ACL_ERROR_BAD_ALLOC, std::string(who) + ": out of memory");
    }
    return ACL_SUCCESS;
}

/// All four directions are one on the twin. destMax is checked as CANN does: it is the caller's own
/// limit.
aclError Copy(void *dst, size_t destMax, const void *src, size_t count)
{
    if (count > destMax || (count != 0 && (dst == nullptr || src == nullptr))) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy: " + std::to_string(count) +
                                                       " bytes into " + std::to_string(destMax));
    }
    std::memcpy(dst, src, count);
    return ACL_SUCCESS;
}

/// Contexts and streams are names: one byte each, so that two differ and a leak checker sees them.
aclError NewHandle(void **handle, const char *who)
{
    if (handle == nullptr) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM, std::string(who) + ": null pointer");
    }
    *handle = std::malloc(1);
    return *handle != nullptr ? ACL_SUCCESS : twin::Fail(ACL_ERROR_BAD_ALLOC, "out of memory");
}

/// A second device would be a second set of cores and memories; there is one.
aclError CheckDevice(int32_t deviceId)
{
    if (deviceId != 0) {
        return twin::Fail(ACL_ERROR_RT_PARAM_INVALID,
                          "device " + std::to_string(deviceId) + "; the twin has device 0 only");
    }
    return ACL_SUCCESS;
}

}  // namespace

// Start and end. aclnn calls work without them; they only keep the order a program for CANN must
// keep.

extern "C" aclError aclInit(const char *)
{
    if (initialised.exchange(true)) {
        return twin::Fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
    }
    return ACL_SUCCESS;
}

extern "C" aclError aclFinalize(void)
{
    if (!initialised.exchange(false)) {
        return twin::Fail(ACL_ERROR_UNINITIALIZE, "aclFinalize without aclInit");
    }
    return ACL_SUCCESS;
}

// Memory. The policy (huge pages or not) means nothing here.

extern "C" aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy)
{
    return Allocate(devPtr, size, "aclrtMalloc");
}

extern "C" aclError aclrtFree(void *devPtr)
{
    std::free(devPtr);
    return ACL_SUCCESS;
}

extern "C" aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    return Allocate(hostPtr, size, "aclrtMallocHost");
}

extern "C" aclError aclrtFreeHost(void *hostPtr)
{
    std::free(hostPtr);
    return ACL_SUCCESS;
}

// Copies are done when the call returns, the asynchronous one too: a stream is in order, and
// nothing on it can be waiting.

extern "C" aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count,
                                aclrtMemcpyKind)
{
    return Copy(dst, destMax, src, count);
}

extern "C" aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                                     aclrtMemcpyKind, aclrtStream)
{
    return Copy(dst, destMax, src, count);
}

extern "C" aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    if (devPtr == nullptr || count > maxCount) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM,
                          "aclrtMemset: null pointer or count above maxCount");
    }
    std::memset(devPtr, value, count);
    return ACL_SUCCESS;
}

// Devices, contexts, streams.

extern "C" aclError aclrtSetDevice(int32_t deviceId)
{
    const aclError status = CheckDevice(deviceId);
    currentDevice = status == ACL_SUCCESS ? deviceId : currentDevice;
    return status;
}

extern "C" aclError aclrtGetDevice(int32_t *deviceId)
{
    if (deviceId == nullptr) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice: null pointer");
    }
    *deviceId = currentDevice;
    return ACL_SUCCESS;
}

extern "C" aclError aclrtResetDevice(int32_t deviceId)
{
    return CheckDevice(deviceId);
}

extern "C" aclError aclrtGetDeviceCount(uint32_t *count)
{
    if (count == nullptr) {
        return twin::Fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount: null pointer");
    }
    *count = 1;
    return ACL_SUCCESS;
}

// Read afresh: a test may choose another chip for its next launch.
extern "C" const char *aclrtGetSocName(void)
{
    // The chip whose table entry the launches use; the plain name when nothing was chosen.
    const char *chosen = std::getenv("FLA_NPU_TWIN_SOC");
    static thread_local std::string name;
    name = chosen != nullptr && *chosen != '\0' ? chosen : "Ascend910B3";
    return name.c_str();
}

extern "C" aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    const aclError status = CheckDevice(deviceId);
    return status == ACL_SUCCESS ? NewHandle(context, "aclrtCreateContext") : status;
}

extern "C" aclError aclrtDestroyContext(aclrtContext context)
{
    std::free(context);
    return ACL_SUCCESS;
}

extern "C" aclError aclrtCreateStream(aclrtStream *stream)
{
    return NewHandle(stream, "aclrtCreateStream");
}

extern "C" aclError aclrtDestroyStream(aclrtStream stream)
{
    std::free(stream);
    return ACL_SUCCESS;
}

// Nothing is ever in flight.

extern "C" aclError aclrtSynchronizeStream(aclrtStream)
{
    return ACL_SUCCESS;
}

extern "C" aclError aclrtSynchronizeDevice(void)
{
    return ACL_SUCCESS;
}
