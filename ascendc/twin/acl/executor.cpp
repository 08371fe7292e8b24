// SPDX-License-Identifier: Apache-2.0
// Executors between the two phases, and the error text of a thread.
#include <mutex>
#include <unordered_set>

#include "acl/objects.h"
#include "aclnn/aclnn_base.h"

namespace
{

thread_local std::string pendingText;    // set by Fail, not yet read
thread_local std::string handedOutText;  // keeps the pointer of the last read alive

/// Executors that exist. Phase 2 consumes its executor, so a second call with it must be told, not
/// crash.
class LiveExecutors
{
  public:
    void Add(aclOpExecutor *executor)
    {
        std::lock_guard<std::mutex> hold(lock_);
        live_.insert(executor);
    }
    /// True when the executor was alive; `remove` takes it out, so that of two threads that run one
    /// executor only the first gets it.
    bool Claim(aclOpExecutor *executor, bool remove)
    {
        std::lock_guard<std::mutex> hold(lock_);
        auto found = live_.find(executor);
        if (found == live_.end()) {
            return false;
        }
        if (remove) {
            live_.erase(found);
        }
        return true;
    }
    bool Repeatable(aclOpExecutor *executor)
    {
        std::lock_guard<std::mutex> hold(lock_);
        return live_.count(executor) != 0 && executor->repeatable;
    }

  private:
    std::mutex lock_;
    std::unordered_set<aclOpExecutor *> live_;
};

LiveExecutors &Live()
{
    static LiveExecutors *live = new LiveExecutors;  // never destroyed: threads may outlive main
    return *live;
}

}  // namespace

int twin::Fail(int status, const std::string &text)
{
    pendingText = text;
    return status;
}

aclOpExecutor *twin::Publish(aclOpExecutor *executor)
{
    Live().Add(executor);
    return executor;
}

aclnnStatus twin::RunPublished(aclOpExecutor *executor, void *workspace, uint64_t workspaceSize,
                               aclrtStream stream)
{
    if (executor == nullptr) {
        return Fail(161001, "phase 2 was given a null executor; phase 1 makes it");
    }
    // Taken out of the registry before it runs: whoever comes second is refused, not served a ruin.
    const bool keep = Live().Repeatable(executor);
    if (!Live().Claim(executor, !keep)) {
        return Fail(161002, "phase 2 was given an executor that ran before or was destroyed");
    }
    const aclnnStatus status = executor->Run(workspace, workspaceSize, stream);
    if (!keep) {
        delete executor;
    }
    return status;
}

extern "C" aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    if (executor == nullptr || !Live().Claim(executor, false)) {
        return twin::Fail(161001, "aclSetAclOpExecutorRepeatable was given no living executor");
    }
    executor->repeatable = true;
    return 0;
}

extern "C" aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    if (executor == nullptr || !Live().Claim(executor, true)) {
        return twin::Fail(161001, "aclDestroyAclOpExecutor was given no living executor");
    }
    delete executor;
    return 0;
}

extern "C" const char *aclGetRecentErrMsg(void)
{
    if (pendingText.empty()) {
        return nullptr;
    }
    // The caller reads the text after we return, so it needs an owner until the next question.
    handedOutText = std::move(pendingText);
    pendingText.clear();
    return handedOutText.c_str();
}

extern "C" const char fla_build_id[33];  // of this build; another object defines it

/// The build of this library, so that libcust_opapi.so can tell that it was given its own.
extern "C" ACL_FUNC_VISIBILITY const char *fla_twin_build_id(void)
{
    return fla_build_id;
}

extern "C" aclnnStatus aclnnInit(const char *)
{
    return 0;
}

extern "C" aclnnStatus aclnnFinalize(void)
{
    return 0;
}
