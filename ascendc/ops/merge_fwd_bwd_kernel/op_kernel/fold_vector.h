// SPDX-License-Identifier: Apache-2.0
// Vector body of the fold stage: the unit tile, zeros when there is no map, and bf16 maps widened
// for the cube. Maths, memory plan and flags: fold.h.
#ifndef MERGE_FWD_BWD_KERNEL_FOLD_VECTOR_H
#define MERGE_FWD_BWD_KERNEL_FOLD_VECTOR_H

#include "fold.h"
#include "vec_tile.h"

namespace fla
{

/// Byte offsets in UB: two turns of half a map. The unit tile or the zeros come first of all.
struct FoldUb {
    static constexpr uint32_t rows = kDim / kVectorCores;
    static constexpr uint32_t elems = rows * (kFoldLanes * kFoldMostColumns + kDim);
    static constexpr uint32_t narrow = 0;
    static constexpr uint32_t wide = narrow + elems * sizeof(bfloat16_t);
    static constexpr uint32_t turn = wide + elems * sizeof(float);
    static constexpr uint32_t end = 2 * turn;
};
static_assert(FoldUb::end <= kUbBytes, "fold: the UB plan is too big");
static_assert(kStateElems / kVectorCores * sizeof(float) <= FoldUb::end, "fold: zeros of a half");

class FoldVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const FoldArgs &args)
    {
        args_ = args;
        half_ = AscendC::GetSubBlockIdx();
        group_ = AscendC::GetBlockIdx() / kVectorCores;
        pipe.InitBuffer(ub_, FoldUb::end);
        if (args.t.count == 0) {
            StoreZeros();
            return;
        }
        walk_.Init(args.t, group_);
        workspace_ = FoldWorkspace(args, group_);
        StoreUnit();
        if (args.t.isBf16) {
            WidenAll();
        }
    }

  private:
    static constexpr int32_t kOut = 0;

    /// Copies out after the vector instructions issued so far.
    __aicore__ inline void AwaitVector(int32_t id) const
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(id);
    }

    /// Half of every result that falls to this group.
    __aicore__ inline void StoreZeros()
    {
        const uint32_t bytes = args_.t.isBf16 ? sizeof(bfloat16_t) : sizeof(float);
        const uint32_t count = kStateElems / kVectorCores * bytes / sizeof(float);
        const auto zeros = View<float>(ub_, 0, count);
        AscendC::Duplicate(zeros, 0.0f, count);
        AwaitVector(kOut);
        const auto h = GmAt<float>(args_.h);
        const uint32_t groups = AscendC::GetBlockNum();
        for (uint32_t head = group_; head < args_.t.heads; head += groups) {
            AscendC::DataCopy(h[(static_cast<uint64_t>(head) * kVectorCores + half_) * count],
                              zeros, count);
        }
    }

    /// One core writes it; the cube waits for both.
    __aicore__ inline void StoreUnit()
    {
        if (half_ == 0) {
            const auto unit = View<float>(ub_, 0, kUnitElems);
            AscendC::Duplicate(unit, 0.0f, kUnitElems);
            AscendC::PipeBarrier<PIPE_V>();
            for (uint32_t row = 0; row < kFoldRows; ++row) {
                uint64_t lane[2] = {1ULL << row, 0};
                AscendC::Duplicate(unit[row * kFoldRows], 1.0f, lane, 1, 1, 8);
            }
            AwaitVector(kOut);
            AscendC::DataCopy(GmAt<float>(workspace_), unit, kUnitElems);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(kUnitReady);
    }

    __aicore__ inline AscendC::LocalTensor<bfloat16_t> NarrowAt(int32_t turn)
    {
        return View<bfloat16_t>(ub_, turn * FoldUb::turn + FoldUb::narrow, FoldUb::elems);
    }
    __aicore__ inline AscendC::LocalTensor<float> WideAt(int32_t turn)
    {
        return View<float>(ub_, turn * FoldUb::turn + FoldUb::wide, FoldUb::elems);
    }

    /// The maps in the order in which the cube takes them: per item that of the first step, the
    /// start, then those of the other steps.
    __aicore__ inline void WidenAll()
    {
        // The unit tile has left the memory that the first map comes into.
        AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(kOut);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(kOut);
        for (int32_t turn = 0; turn < 2; ++turn) {
            AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(turn);
            AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(turn);
        }
        const uint32_t end = walk_.Items() * args_.t.count;
        Fetch(0);
        for (uint32_t i = 0; i < end; ++i) {
            if (i + 1 < end) {
                Fetch(i + 1);
            }
            Send(i % 2);
        }
        for (int32_t turn = 0; turn < 2; ++turn) {
            AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(turn);
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(turn);
        }
        widened_.Drain();
    }

    /// First element of map `i`.
    __aicore__ inline uint64_t MapAt(uint32_t i) const
    {
        const uint32_t item = i / args_.t.count;
        const uint32_t index = i % args_.t.count;
        if (index == 1) {
            return walk_.StartOf(item);
        }
        return walk_.MapOf(item, index == 0 ? 0 : index - 1);
    }

    /// This core's rows of map `i`: the item's columns of E, and M.
    __aicore__ inline void Fetch(uint32_t i)
    {
        constexpr uint32_t blockElems = kBlockBytes / sizeof(bfloat16_t);
        const int32_t turn = i % 2;
        const auto gm = GmAt<bfloat16_t>(args_.agHm)[MapAt(i) + half_ * FoldUb::rows * kMapCols];
        const uint32_t values = kFoldLanes * args_.t.laneColumns;
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(turn);
        AscendC::DataCopyParams params;
        params.blockCount = FoldUb::rows;
        params.blockLen = values / blockElems;
        params.srcStride = (kMapCols - values) / blockElems;
        params.dstStride = kDim / blockElems;
        AscendC::DataCopy(NarrowAt(turn), gm[walk_.Column(i / args_.t.count)], params);
        params.blockLen = kDim / blockElems;
        params.srcStride = kDim / blockElems;
        params.dstStride = values / blockElems;
        AscendC::DataCopy(NarrowAt(turn)[values], gm[kDim], params);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(turn);
    }

    __aicore__ inline void Send(int32_t turn)
    {
        const uint32_t count = FoldUb::rows * walk_.WidenedCols();
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(turn);
        AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(turn);
        Widen(WideAt(turn), NarrowAt(turn), count);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(turn);
        AwaitVector(turn);
        const uint64_t slot = kFoldNarrowBytes + widened_.Acquire() * kFoldWidenedBytes;
        AscendC::DataCopy(GmAt<float>(workspace_ + slot)[half_ * count], WideAt(turn), count);
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(turn);
        widened_.Publish<PIPE_MTE3>();
    }

    FoldArgs args_;
    FoldWalk walk_;
    GM_ADDR workspace_;
    uint32_t half_ = 0;  // which half of the rows is this core's
    uint32_t group_ = 0;
    RingProducer<WidenedFlags> widened_;
    AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
};

}  // namespace fla
#endif  // MERGE_FWD_BWD_KERNEL_FOLD_VECTOR_H
