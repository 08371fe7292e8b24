/* SPDX-License-Identifier: Apache-2.0
 *
 * gate_grad - from dG to the gradients of raw_g and of the gate's parameters
 *
 *   dgamma_t = sum of dG_s over the rows s >= t of the chunk
 *   none      dg = dgamma
 *   softplus  dg = -exp(a_log) sigmoid(x) dgamma            da_log = sum of gamma dgamma
 *   bounded   dg = lower_bound exp(a_log) s(y) dgamma       da_log = sum of lower_bound y s(y) dgamma
 *             y = exp(a_log) x, s(y) = e / (1 + e)^2, e = exp(-|y|)
 *   ddt_bias = sum of dg                                    x = raw_g + dt_bias
 *
 * Edges   A step with E(gamma) = 0 is a reset: nothing crosses it, so dgamma is 0 there and noise
 *         must not pass (-inf times it would be NaN). y is cut at 200 and gamma at -200, where the
 *         slopes are 0 in fp32, and a rate at 1e30, so no factor is infinite; s(y) keeps its digits
 *         on both sides. da_log uses y s(y), never x dg, which may overflow before it is small.
 *
 * UB      half a chunk at a time: x in the first half of the ring, gamma or 1 + e in the second,
 *         work tiles; a narrow raw_g arrives in the factor tile. dG, then dg, in the prefix tile
 * Flags   in: kGotRing; out: kSentWhole (dg, dbeta, the record)
 */
#ifndef FLA_CHUNK_GRAD_GATE_GRAD_H
#define FLA_CHUNK_GRAD_GATE_GRAD_H

#include "grad_core.h"
#include "prepare/decay.h"

namespace fla
{

class GateGrad
{
  public:
    __aicore__ inline void Run(GradCore &c) const
    {
        Fetch(c, 0);
        for (uint32_t size = 1; size < kChunk; size *= 2) {
            EachPair(c.prefix, 0, c.prefix, size, size);
            AscendC::PipeBarrier<PIPE_V>();
        }
        if (c.args.t.gate != kGateNone) {
            Rates(c);
        }
        c.SettleTemps();
        const uint32_t halves = c.task.at.rows > kHalfRows ? 2 : 1;
        for (uint32_t half = 0; half < halves; ++half) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotRing);
            const uint32_t count = RowsIn(c.task.at.rows, half * kHalfRows, kHalfRows) * kDim;
            Input(c, count);
            Slopes(c, half, count);
            if (half + 1 < halves) {
                Fetch(c, 1);
            }
        }
        Store(c);
    }

  private:
    static constexpr float kFar = 200.0f;
    static constexpr float kReset = -104.0f;  // exp of less is 0 in fp32
    static constexpr float kSteepest = 1.0e30f;

    __aicore__ static inline Float X(GradCore &c)
    {
        return View<float>(c.ub, GradUb::ring, kHalfElems);
    }
    __aicore__ static inline Float Spare(GradCore &c)
    {
        return View<float>(c.ub, GradUb::ring + kGradTile / 2, kHalfElems);
    }
    __aicore__ static inline Half NarrowInput(GradCore &c)
    {
        return View<bfloat16_t>(c.ub, GradUb::factor, kHalfElems);
    }

    /// Half of raw_g.
    __aicore__ static inline void Fetch(GradCore &c, uint32_t half)
    {
        const uint32_t count = RowsIn(c.task.at.rows, half * kHalfRows, kHalfRows) * kDim;
        const uint64_t first = (c.task.valueRow + half * kHalfRows) * kDim;
        GradCore::Return(kGotRing);
        if (c.args.t.gateIsBf16) {
            AscendC::DataCopy(NarrowInput(c), GmAt<bfloat16_t>(c.args.rawG)[first], count);
        } else {
            AscendC::DataCopy(X(c), GmAt<float>(c.args.rawG)[first], count);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotRing);
    }

    /// -exp(a_log), and the same, bounded, for slopes.
    __aicore__ static inline void Rates(GradCore &c)
    {
        DecayStage<GradCore>::Rate(c, c.ALog());
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Maxs(c.steep, c.rate, -kSteepest, kLanesF32);
    }

    /// x in fp32, with the bias.
    __aicore__ static inline void Input(GradCore &c, uint32_t count)
    {
        if (c.args.t.gateIsBf16) {
            Widen(X(c), NarrowInput(c), count);
            AscendC::PipeBarrier<PIPE_V>();
        }
        if (c.args.t.hasBias) {
            AddRow(X(c), X(c), c.bias, count / kDim);
            AscendC::PipeBarrier<PIPE_V>();
        }
    }

    __aicore__ static inline void Slopes(GradCore &c, uint32_t half, uint32_t count)
    {
        const Float d = c.prefix[half * kHalfElems];
        if (c.args.t.gate == kGateNone) {
            ClearResets(c, d, X(c), count);
            return;
        }
        if (c.args.t.gate == kGateBounded) {
            Bounded(c, d, count);
        } else {
            Softplus(c, d, count);
        }
        if (count < kHalfElems) {
            AscendC::Duplicate(c.work[0][count], 0.0f, kHalfElems - count);
        }
        AscendC::PipeBarrier<PIPE_V>();
        Record(c, d, half);
    }

    /// d = 0 where nothing crosses the step.
    __aicore__ static inline void ClearResets(GradCore &c, const Float &d, const Float &gamma,
                                              uint32_t count)
    {
        const auto alive = c.chain.ReinterpretCast<uint8_t>();
        AscendC::CompareScalar(alive, gamma, kReset, AscendC::CMPMODE::GE, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Select(d, alive, d, 0.0f, AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    }

    /// dg over d; terms of da_log in work tile 0.
    __aicore__ static inline void Bounded(GradCore &c, const Float &d, uint32_t count)
    {
        const Float &y = c.work[0];  // -y, as the rate is -exp(a_log)
        const Float &e = c.work[1];
        const Float square = Spare(c);
        MulLanes(y, X(c), c.rate, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mins(y, y, kFar, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Maxs(y, y, -kFar, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Abs(e, y, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(e, e, -1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Exp(e, e, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Adds(square, e, 1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(square, square, square, count);
        AscendC::Mul(d, d, e, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Div(d, d, square, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Muls(d, d, -c.args.t.lowerBound, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(y, y, d, count);
        MulLanes(d, d, c.steep, count);
    }

    __aicore__ static inline void Softplus(GradCore &c, const Float &d, uint32_t count)
    {
        const Float gamma = Spare(c);
        const Float &low = c.work[1];
        DecayStage<GradCore>::Softplus(c, gamma, X(c), gamma, count);
        AscendC::PipeBarrier<PIPE_V>();
        ClearResets(c, d, gamma, count);
        AscendC::Maxs(gamma, gamma, -kFar, count);
        AscendC::Muls(low, X(c), -1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Mul(c.work[0], gamma, d, count);
        AscendC::Exp(low, low, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Adds(low, low, 1.0f, count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Div(d, d, low, count);
        AscendC::PipeBarrier<PIPE_V>();
        MulLanes(d, d, c.steep, count);
    }

    /// Sums over the rows of half a chunk: dg, and the terms of da_log (work tile 0).
    __aicore__ static inline void Record(GradCore &c, const Float &d, uint32_t half)
    {
        const Float &sum = c.work[1];
        constexpr uint32_t rest = kHalfElems / 2;
        AscendC::Add(sum, d, d[rest], rest);
        AscendC::PipeBarrier<PIPE_V>();
        FoldRows(sum, kHalfRows / 2, kDim);
        FoldRows(c.work[0], kHalfRows, kDim);
        const Float &record = c.record;
        if (half == 0) {
            AscendC::Adds(record, sum, 0.0f, kDim);
            AscendC::Adds(record[kDim], c.work[0], 0.0f, kDim);
        } else {
            AscendC::Add(record, record, sum, kDim);
            AscendC::Add(record[kDim], record[kDim], c.work[0], kDim);
        }
    }

    /// dg, dbeta and the record leave.
    __aicore__ static inline void Store(GradCore &c)
    {
        const ChunkTask &at = c.task.at;
        const Half narrow = View<bfloat16_t>(c.ub, GradUb::betaOut, kChunk);
        if (c.args.t.betaIsBf16) {
            Narrow(narrow, c.dBeta, at.rows);
        }
        GradCore::Send(kSentWhole);
        AscendC::DataCopy(GmAt<float>(c.args.dG)[c.task.valueRow * kDim], c.prefix, at.rows * kDim);
        if (c.args.t.betaIsBf16) {
            const uint32_t bytes = at.rows * sizeof(bfloat16_t);
            AscendC::DataCopyPad(GmAt<bfloat16_t>(c.args.dBeta)[c.task.valueRow], narrow,
                                 AscendC::DataCopyExtParams{1, bytes, 0, 0, 0});
        } else {
            const uint32_t bytes = at.rows * sizeof(float);
            AscendC::DataCopyPad(GmAt<float>(c.args.dBeta)[c.task.valueRow], c.dBeta,
                                 AscendC::DataCopyExtParams{1, bytes, 0, 0, 0});
        }
        if (c.args.t.gate != kGateNone) {
            const uint64_t chunks = ChunkGradChunks(c.args.t);
            const uint64_t index = at.head * chunks + at.globalChunk;
            AscendC::DataCopy(GmAt<float>(c.args.workspace + index * kChunkGradRecordBytes),
                              c.record, 2 * kDim);
        }
        c.Sent(kSentWhole);
    }
};

/// The last phase: sums of the records of a head, in the order of its chunks.
class GateSums
{
  public:
    /// Heads in turn over all vector cores; the same sum whoever makes it.
    __aicore__ inline void Run(GradCore &c) const
    {
        const uint32_t cores = AscendC::GetBlockNum() * kVectorCores;
        for (uint32_t head = c.core; head < c.args.t.valueHeads; head += cores) {
            Head(c, head);
        }
    }

  private:
    static constexpr uint32_t kRecord = 2 * kDim;
    static constexpr uint32_t kBatch = kChunkElems / kRecord;  // records at a time: 32

    __aicore__ static inline void Head(GradCore &c, uint32_t head)
    {
        const uint64_t chunks = ChunkGradChunks(c.args.t);
        const auto records = GmAt<float>(c.args.workspace + head * chunks * kChunkGradRecordBytes);
        c.Settle(kSentWhole);
        AscendC::Duplicate(c.record, 0.0f, kRecord);
        for (uint64_t first = 0; first < chunks; first += kBatch) {
            const uint32_t count =
                static_cast<uint32_t>(chunks - first < kBatch ? chunks - first : kBatch);
            GradCore::Return(kGotGate);
            AscendC::DataCopy(c.prefix, records[first * kRecord], count * kRecord);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kGotGate);
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kGotGate);
            if (count < kBatch) {
                AscendC::Duplicate(c.prefix[count * kRecord], 0.0f, (kBatch - count) * kRecord);
                AscendC::PipeBarrier<PIPE_V>();
            }
            FoldRows(c.prefix, kBatch, kRecord);
            AscendC::Add(c.record, c.record, c.prefix, kRecord);
            AscendC::PipeBarrier<PIPE_V>();
        }
        const Float aLog = c.record[kDim];
        AscendC::Add(aLog, aLog, aLog[kLanesF32], kLanesF32);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::WholeReduceSum(c.last, aLog, kLanesF32, 1, 1, 1, kLaneBlocks);
        GradCore::Send(kSentWhole);
        if (c.args.t.sumsBias) {
            AscendC::DataCopy(GmAt<float>(c.args.dDtBias)[static_cast<uint64_t>(head) * kDim],
                              c.record, kDim);
        }
        AscendC::DataCopyPad(GmAt<float>(c.args.dALog)[head], c.last,
                             AscendC::DataCopyExtParams{1, sizeof(float), 0, 0, 0});
        c.Sent(kSentWhole);
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_GATE_GRAD_H
