/* SPDX-License-Identifier: Apache-2.0
 *
 * gate - the decay of a chunk: its steps and sums (decay.h), gk, and all factors
 *
 *   gk = G = P + Ga, times 1 / ln 2 with use_exp2. Exponents stay in natural units, so gk of
 *   either base comes with the same factors.
 *
 * UB      g arrives in the suffix tile (bf16 in its first half) and is free after the first pass
 * Flags   in: kInGate (g); out: kOutWork (gk, half a chunk per work tile)
 */
#ifndef FLA_PREPARE_GATE_H
#define FLA_PREPARE_GATE_H

#include "decay.h"
#include "levels.h"

namespace fla
{

class GateStage
{
  public:
    /// Prefix and suffix tiles hold P and S afterwards; writes the level operands on the way.
    __aicore__ inline void Sums(VectorCore &c)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kInGate);
        float aLog = 0.0f;
        if (c.args.t.gate != kGateNone) {
            aLog = GmAt<float>(c.args.aLog).GetValue(c.task.at.head);
        }
        Decay::Make(c, aLog);
        Decay::Scan(c, LevelStage());
    }

    /// Chain, gk, and all factors: prefix, suffix and chain hold E(P), E(S), E(chain) afterwards.
    __aicore__ inline void Factors(VectorCore &c)
    {
        Decay::JoinBands(c);
        for (uint32_t half = 0; half < kHalves; ++half) {
            StoreGk(c, half);
        }
        AscendC::Exp(c.prefix, c.prefix, kChunkElems);
        AscendC::Exp(c.suffix, c.suffix, kChunkElems);
        AscendC::Exp(c.chain, c.chain, Chain::rows * kDim);
    }

  private:
    using Decay = DecayStage<VectorCore>;
    static constexpr float kInvLn2 = 1.44269504088896340736f;

    __aicore__ static inline void StoreGk(VectorCore &c, uint32_t half)
    {
        const Float &gk = c.work[half];
        for (uint32_t i = 0; i < kBands / kHalves; ++i) {
            const uint32_t band = half * (kBands / kHalves) + i;
            AddRow(gk[i * kBandElems], c.prefix[band * kBandElems],
                   c.chain[(Chain::start + band) * kDim], kBand);
        }
        AscendC::PipeBarrier<PIPE_V>();
        if (c.args.t.gateIsBase2) {
            AscendC::Muls(gk, gk, kInvLn2, kHalfElems);
        }
        const int32_t id = kOutWork + half;
        AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(id);
        AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(id);
        const uint32_t valid = RowsIn(c.task.at.rows, half * kHalfRows, kHalfRows);
        if (valid > 0) {
            const uint64_t row = c.task.valueOut + half * kHalfRows;
            AscendC::DataCopy(GmAt<float>(c.args.gk)[row * kDim], gk, valid * kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(id);
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_GATE_H
