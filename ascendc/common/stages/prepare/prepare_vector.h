// SPDX-License-Identifier: Apache-2.0
// Vector body of prepare: fetches a task ahead, makes the operands of task n, then finishes task
// n - 1. Maths, work split and flags: prepare.h.
#ifndef FLA_PREPARE_VECTOR_H
#define FLA_PREPARE_VECTOR_H

#include "bands.h"
#include "gate.h"
#include "hats.h"
#include "solve.h"

namespace fla
{

class PrepareVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const PrepareArgs &args)
    {
        Open(pipe, args);
        const uint32_t rounds = rounds_.Count();
        for (uint32_t round = 0; round <= rounds; ++round) {
            c_.round = round;
            const bool now = rounds_.Has(round, lane_);
            const bool before = round > 0 && rounds_.Has(round - 1, lane_);
            const VectorTask previous = c_.task;
            const uint64_t previousSlot = c_.slot;
            if (now) {
                c_.task = next_;
                c_.slot = SlotAt(args.t, core_, round);
            }
            if (round < rounds) {
                Operands(round, now);
            }
            // The products of the round before arrive under the last operands of this one.
            if (round > 0) {
                AscendC::CrossCoreWaitFlag(FlagOf(kScores, round - 1));
            }
            if (before) {
                DrainWork();
                AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kInScores);
                AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kInScores);
                solve_.Fetch(c_, previousSlot);
                solve_.Run(c_, previous, previousSlot);
                workBusy_ = true;
            }
            if (round > 0) {
                AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(kInverse, round - 1));
            }
        }
        Close(rounds);
    }

  private:
    /// Constants, the unit blocks for the cube, the first loads.
    __aicore__ inline void Open(AscendC::TPipe &pipe, const PrepareArgs &args)
    {
        core_ = AscendC::GetBlockIdx();
        lane_ = AscendC::GetSubBlockIdx();
        rounds_.Init(args, core_ / kVectorCores, 1);
        c_.Open(pipe, args);
        AscendC::Duplicate(c_.ones, 1.0f, kChunk);
        AscendC::Duplicate(c_.bound, args.t.lowerBound, kChunk);
        solve_.Open(c_);
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kOutWork);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kOutWork);
        AscendC::DataCopy(GmAt<float>(args.workspace + UnitAt(args.t, core_)), c_.unit,
                          kBand * kChunk);
        if (rounds_.Has(0, lane_)) {
            next_ = Place(rounds_.Task(0, lane_));
            FetchGate();
            FetchKeys();
            FetchSmall();
        }
    }

    /// Takes back what is still out: credits of the last rounds, tiles on their way.
    __aicore__ inline void Close(uint32_t rounds)
    {
        for (uint32_t round = rounds < 2 ? 0 : rounds - 2; round < rounds; ++round) {
            AscendC::CrossCoreWaitFlag(FlagOf(kFree, round));
        }
        DrainWork();
        c_.Close();
    }

    /// Work tile A holds X, and the chain -L, until they have left.
    __aicore__ inline void DrainWork()
    {
        if (workBusy_) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kOutWork);
            workBusy_ = false;
        }
    }

    /// Everything the cube needs for the scores of this round, the keys of its w, and the loads of
    /// the next round as soon as a tile is free.
    __aicore__ inline void Operands(uint32_t round, bool now)
    {
        const bool more = rounds_.Has(round + 1, lane_);
        if (now) {
            if (more) {
                next_ = Place(rounds_.Task(round + 1, lane_));
            }
            DrainWork();
            hats_.Run(c_);
            gate_.Sums(c_);
            if (more) {
                Turn(kInSmall);
                FetchSmall();
            }
        }
        if (round >= kPrepareSlots) {
            AscendC::CrossCoreWaitFlag(FlagOf(kFree, round - kPrepareSlots));
        }
        if (now) {
            hats_.Rest(c_);
            gate_.Factors(c_);
            bands_.Keys(c_);
            if (more) {
                Turn(kInGate);
                FetchGate();
            }
            bands_.Queries(c_);
            if (more) {
                NextKeys();
            }
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(FlagOf(kOperands, round));
    }

    /// The vector pipe is done with an input tile; loads may fill it.
    __aicore__ static inline void Turn(int32_t id)
    {
        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(id);
    }

    /// q and k of the next round; hats may still be leaving from their tiles.
    __aicore__ inline void NextKeys()
    {
        Turn(kInKeys);
        if (c_.hatsLeave) {
            AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(kInKeys);
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(kInKeys);
        }
        FetchKeys();
    }

    /// Where the rows of a task lie.
    __aicore__ inline VectorTask Place(const ChunkTask &at) const
    {
        const PrepareTiling &t = c_.args.t;
        const ChunkWalk &walk = rounds_.Walk();
        VectorTask task;
        task.at = at;
        task.keyOut = walk.KeyRow(at.batch, at.keyHead, at.token);
        task.valueOut = walk.ValueRow(at.batch, at.head, at.token);
        task.keyIn = task.keyOut;
        task.valueIn = task.valueOut;
        task.keyStep = task.valueStep = 1;
        if (t.tokenMajor) {
            task.keyStep = t.valueHeads / t.headsPerGroup;
            task.valueStep = t.valueHeads;
            task.keyIn =
                (static_cast<uint64_t>(at.batch) * t.tokens + at.token) * task.keyStep + at.keyHead;
            task.valueIn = walk.TokenRow(at.batch, at.head, at.token);
        }
        return task;
    }

    /// `rows` rows of `width` elements, `step` rows apart in GM, dense in UB. MTE2.
    template <typename T>
    __aicore__ inline void FetchRows(const AscendC::LocalTensor<T> &to, GM_ADDR base,
                                     uint64_t first, uint32_t step, uint32_t rows)
    {
        constexpr uint32_t bytes = kDim * sizeof(T);
        AscendC::DataCopyExtParams copy{1, rows * bytes, 0, 0, 0};
        if (step > 1) {
            copy.blockCount = rows;
            copy.blockLen = bytes;
            copy.srcStride = (step - 1) * bytes;
        }
        AscendC::DataCopyPad(to, GmAt<T>(base)[first * kDim], copy,
                             AscendC::DataCopyPadExtParams<T>());
    }

    __aicore__ inline void FetchGate()
    {
        const VectorTask &task = next_;
        if (c_.args.t.gateIsBf16) {
            FetchRows(c_.suffix.ReinterpretCast<bfloat16_t>(), c_.args.g, task.valueIn,
                      task.valueStep, task.at.rows);
        } else {
            FetchRows(c_.suffix, c_.args.g, task.valueIn, task.valueStep, task.at.rows);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kInGate);
    }

    __aicore__ inline void FetchKeys()
    {
        const VectorTask &task = next_;
        FetchRows(c_.q, c_.args.q, task.keyIn, task.keyStep, task.at.rows);
        FetchRows(c_.k, c_.args.k, task.keyIn, task.keyStep, task.at.rows);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kInKeys);
    }

    /// beta of the chunk and the bias of its head.
    __aicore__ inline void FetchSmall()
    {
        if (c_.args.t.betaIsBf16) {
            FetchBeta<bfloat16_t>();
        } else {
            FetchBeta<float>();
        }
        if (c_.args.t.hasBias) {
            const uint64_t first = static_cast<uint64_t>(next_.at.head) * kDim;
            AscendC::DataCopy(c_.bias, GmAt<float>(c_.args.dtBias)[first], kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kInSmall);
    }

    /// Token-major: one value per 32-byte line. Either way the rest of a line is filled with zeros.
    template <typename T>
    __aicore__ inline void FetchBeta()
    {
        constexpr uint32_t perLine = kBlockBytes / sizeof(T);
        const uint32_t rows = next_.at.rows;
        const bool dense = !c_.args.t.tokenMajor;
        const uint32_t count = dense ? rows : 1;
        AscendC::DataCopyExtParams copy{1, static_cast<uint32_t>(count * sizeof(T)), 0, 0, 0};
        if (!dense) {
            copy.blockCount = rows;
            copy.srcStride = (next_.valueStep - 1) * sizeof(T);
        }
        AscendC::DataCopyPadExtParams<T> pad;
        pad.isPad = true;
        pad.rightPadding = (perLine - count % perLine) % perLine;
        AscendC::DataCopyPad(View<T>(c_.ub, PrepareUb::betaIn, kChunk * perLine),
                             GmAt<T>(c_.args.beta)[next_.valueIn], copy, pad);
    }

    VectorCore c_;
    PairRounds rounds_;
    HatStage hats_;
    GateStage gate_;
    BandStage bands_;
    SolveStage solve_;
    VectorTask next_;
    uint32_t core_ = 0;
    uint32_t lane_ = 0;
    bool workBusy_ = false;
};

}  // namespace fla
#endif  // FLA_PREPARE_VECTOR_H
