// SPDX-License-Identifier: Apache-2.0
// Flags between pipes and between cores, barriers, and where a core stands in the launch.
//
// Inside a core the fast build has no order to keep (it executes in program order), so SetFlag,
// WaitFlag and PipeBarrier vanish there; what crosses cores is real in both builds.
#ifndef FLA_TWIN_API_SYNC_H
#define FLA_TWIN_API_SYNC_H

#include "../machine/hooks.h"
#include "tensor.h"

namespace AscendC
{
inline namespace TWIN_NS
{

template <HardEvent event>
inline void SetFlag(int32_t eventID, TWIN_HERE)
{
    if constexpr (twin::kChecked) {
        twin::CheckedSetFlag(static_cast<int>(event), eventID, twin::FlagUser::kKernel, where);
    }
}

template <HardEvent event>
inline void WaitFlag(int32_t eventID, TWIN_HERE)
{
    if constexpr (twin::kChecked) {
        twin::CheckedWaitFlag(static_cast<int>(event), eventID, twin::FlagUser::kKernel, where);
    }
}

template <pipe_t pipe>
inline void PipeBarrier(TWIN_HERE)
{
    static_assert(pipe != PIPE_S, "PIPE_S needs no barrier and has none");
    if constexpr (twin::kChecked) {
        twin::CheckedBarrier(twin::PipeOf(pipe), where);
    }
}

/// Mode 0: all cores of the own type. 1: the two AIVs of a group. 2: AIC and its AIVs. Fires when
/// everything issued before on `pipe` is done.
template <uint8_t modeId, pipe_t pipe>
inline void CrossCoreSetFlag(uint16_t flagId, TWIN_HERE)
{
    static_assert(modeId <= 2, "modes 0, 1 and 2 exist on this chip");
    static_assert(pipe != PIPE_S && pipe != PIPE_ALL,
                  "a cross-core flag is set by V, M, MTE1, MTE2, MTE3 or FIX");
    if constexpr (twin::kChecked) {
        twin::CheckedCrossSet(modeId, twin::PipeOf(pipe), flagId, where);
    } else {
        twin::FastCrossSet(modeId, flagId);
    }
}

/// Stops the whole core, whatever the template arguments say.
template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
inline void CrossCoreWaitFlag(uint16_t flagId, TWIN_HERE)
{
    if constexpr (twin::kChecked) {
        twin::CheckedCrossWait(flagId, where);
    } else {
        twin::FastCrossWait(flagId, where);
    }
}

/// Hard barrier of all vector cores (true) or of all cores of a MIX kernel (false).
template <bool isAIVOnly = true>
inline void SyncAll(TWIN_HERE)
{
    if constexpr (twin::kChecked) {
        twin::CheckedSyncAll(isAIVOnly, where);
    } else {
        twin::FastSyncAll(isAIVOnly, where);
    }
}

/// Writes the core's cached line(s) back and forgets them, so that scalar and DMA accesses see each
/// other.
template <typename T, CacheLine entireType, DcciDst dcciDst = DcciDst::CACHELINE_OUT>
inline void DataCacheCleanAndInvalid(const GlobalTensor<T> &dst, TWIN_HERE)
{
    static_assert(dcciDst == DcciDst::CACHELINE_OUT || dcciDst == DcciDst::CACHELINE_ALL,
                  "CACHELINE_ATOMIC does not exist on this chip, CACHELINE_UB has no GM to clean");
    if constexpr (twin::kChecked) {
        twin::CheckedCleanCache(dst.GetPhyAddr(), entireType == CacheLine::ENTIRE_DATA_CACHE,
                                where);
    }
}

inline int64_t GetBlockNum()
{
    return twin::Me().groups;
}
inline int64_t GetBlockIdx()
{
    return twin::BlockIndex(twin::Me());
}
inline int64_t GetSubBlockIdx()
{
    return twin::Me().sub;
}
inline int64_t GetTaskRation()
{
    return twin::Me().type == twin::CoreType::AIC ? 1 : twin::Me().ratio;
}
inline int64_t GetSubBlockNum()
{
    return GetTaskRation();
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_API_SYNC_H
