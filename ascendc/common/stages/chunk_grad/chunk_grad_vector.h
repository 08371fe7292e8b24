// SPDX-License-Identifier: Apache-2.0
// Vector body of chunk_grad: operands of round n, gradients of round n - 1, the mask of dL of round
// n; at the end the sums over all chunks. Maths, work split and flags: chunk_grad.h.
#ifndef FLA_CHUNK_GRAD_CHUNK_GRAD_VECTOR_H
#define FLA_CHUNK_GRAD_CHUNK_GRAD_VECTOR_H

#include "bands_grad.h"
#include "gate_grad.h"
#include "operands.h"

namespace fla
{

class ChunkGradVector
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const ChunkGradArgs &args)
    {
        Open(pipe, args);
        const uint32_t rounds = rounds_.Count();
        for (uint32_t round = 0; round <= rounds; ++round) {
            if (round < rounds) {
                Operands(round);
            }
            if (round > 0) {
                AscendC::CrossCoreWaitFlag(GradFlagOf(kGradDone, round - 1));
                Gradients(round - 1);
            }
            if (round < rounds) {
                AscendC::CrossCoreWaitFlag(GradFlagOf(kGradLow, round));
                Low(round);
                AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(GradFlagOf(kGradStrict, round));
            }
        }
        c_.Close();
        if (args.t.gate != kGateNone) {
            AscendC::SyncAll<false>();
            sums_.Run(c_);
            c_.Close();
        }
    }

  private:
    /// Constants and the first loads.
    __aicore__ inline void Open(AscendC::TPipe &pipe, const ChunkGradArgs &args)
    {
        lane_ = AscendC::GetSubBlockIdx();
        rounds_.Init(args, AscendC::GetBlockIdx() / kVectorCores, args.t.headsPerGroup);
        c_.Open(pipe, args);
        AscendC::Duplicate(c_.bound, args.t.lowerBound, kChunk);
        StrictStage::Open(c_);
        if (rounds_.Has(0, lane_)) {
            FetchGate(0);
        }
    }

    __aicore__ inline GradTask Place(uint32_t round) const
    {
        const ChunkWalk &walk = rounds_.Walk();
        GradTask task;
        task.at = rounds_.Task(round, lane_);
        task.keyRow = walk.KeyRow(task.at.batch, task.at.keyHead, task.at.token);
        task.valueRow = walk.ValueRow(task.at.batch, task.at.head, task.at.token);
        return task;
    }

    __aicore__ inline void Operands(uint32_t round)
    {
        if (rounds_.Has(round, lane_)) {
            c_.Turn(Place(round), round);
            operands_.Run(c_);
            // Copies of this round's factors come first, then what follows them in their tiles.
            AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(kBackFactors + round % 2);
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(kBackSuffix);
            if (rounds_.Has(round + 1, lane_)) {
                FetchGate(round + 1);
            }
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE3>(GradFlagOf(kGradOperands, round));
    }

    __aicore__ inline void Gradients(uint32_t round)
    {
        if (!rounds_.Has(round, lane_)) {
            return;
        }
        const uint32_t heads = c_.args.t.headsPerGroup;
        c_.Turn(Place(round), round);
        if (c_.task.at.head % heads > 0) {  // the sums of the head before have arrived
            AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(kBackSums);
        }
        bands_.Run(c_);
        if ((c_.task.at.head + 1) % heads > 0) {
            AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(kBackSums);
        }
        gate_.Run(c_);
    }

    /// dL comes from the cube and goes back strict.
    __aicore__ inline void Low(uint32_t round)
    {
        if (!rounds_.Has(round, lane_)) {
            return;
        }
        c_.Turn(Place(round), round);
        c_.Settle(kSentScores);
        GradCore::Return(kGotScores);
        AscendC::DataCopy(c_.scores, c_.Slot(GradSlot::low), kScoreElems);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotScores);
        StrictStage::Run(c_, GradSlot::strictK, GradSlot::levelStrictK);
    }

    /// raw_g of a round, its bias and beta.
    __aicore__ inline void FetchGate(uint32_t round)
    {
        const GradTask task = Place(round);
        const uint32_t count = task.at.rows * kDim;
        GradCore::Return(kGotGate);
        if (c_.args.t.gateIsBf16) {
            AscendC::DataCopy(c_.suffix.ReinterpretCast<bfloat16_t>(),
                              GmAt<bfloat16_t>(c_.args.rawG)[task.valueRow * kDim], count);
        } else {
            AscendC::DataCopy(c_.suffix, GmAt<float>(c_.args.rawG)[task.valueRow * kDim], count);
        }
        if (c_.args.t.hasBias) {
            const uint64_t first = static_cast<uint64_t>(task.at.head) * kDim;
            AscendC::DataCopy(c_.Bias(round), GmAt<float>(c_.args.dtBias)[first], kDim);
        }
        if (c_.args.t.betaIsBf16) {
            FetchBeta<bfloat16_t>(task);
        } else {
            FetchBeta<float>(task);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotGate);
    }

    template <typename T>
    __aicore__ inline void FetchBeta(const GradTask &task)
    {
        const uint32_t bytes = task.at.rows * sizeof(T);
        AscendC::DataCopyPad(
            View<T>(c_.ub, GradUb::betaIn, kChunk), GmAt<T>(c_.args.beta)[task.valueRow],
            AscendC::DataCopyExtParams{1, bytes, 0, 0, 0}, AscendC::DataCopyPadExtParams<T>());
    }

    GradCore c_;
    PairRounds rounds_;
    OperandStage operands_;
    BandsGrad bands_;
    GateGrad gate_;
    GateSums sums_;
    uint32_t lane_ = 0;
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_CHUNK_GRAD_VECTOR_H
