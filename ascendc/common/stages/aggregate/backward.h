/* SPDX-License-Identifier: Apache-2.0
 *
 * backward - all gradients of Chunk KDA in one launch, from what the forward saved or from its inputs
 *
 *   prepare      gk, aqk, akk, w, u, qg, kg     only with recompute, from q, k, v, raw_g, beta
 *   state        h, v_new                       only with recompute
 *   output_grad  d_aqk, dv_local, dq_raw        from d_o
 *   state_grad   dh, dv_scan, dh0               from dht, the last chunk first
 *   chunk_grad   dq, dk, dv, dbeta, dg, da_log, ddt_bias
 *
 * Shapes  head-major; q, k on HK heads, everything else on HV heads
 * Memory  UB, L1 and L0: what each stage plans, one after another. GM workspace: the relays in the
 *         order of BackwardRelay, then the scratch that the stages use in turn. dq_raw lies where u
 *         was, which nobody reads after the state; dv_scan overwrites dv_local, row by row by the
 *         core that has read the row.
 * Flags   those of the stages; between two of them all cores meet (run_stage.h)
 * Same    What recompute makes has the bits that the forward saved: same classes, and q_hat, k_hat
 *         and beta_eff come in as they were. v_new is made in two planes, as a forward can save it.
 */
#ifndef FLA_AGGREGATE_BACKWARD_H
#define FLA_AGGREGATE_BACKWARD_H

#include "aggregate/backward_tiling_data.h"
#include "aggregate/run_stage.h"
#include "chunk_grad/chunk_grad_cube.h"
#include "chunk_grad/chunk_grad_vector.h"
#include "output_grad/output_grad_cube.h"
#include "output_grad/output_grad_vector.h"
#include "prepare/prepare_cube.h"
#include "prepare/prepare_vector.h"
#include "state/state_cube.h"
#include "state/state_vector.h"
#include "state_grad/state_grad_cube.h"
#include "state_grad/state_grad_vector.h"

namespace fla
{

/// GM addresses, and the tiling data. (GM_ADDR is a macro with a `*`: one declaration each.)
struct BackwardArgs {
    GM_ADDR q;
    GM_ADDR k;
    GM_ADDR v;
    GM_ADDR beta;
    GM_ADDR gk;
    GM_ADDR aqk;
    GM_ADDR akk;
    GM_ADDR w;
    GM_ADDR qg;
    GM_ADDR kg;
    GM_ADDR vNew;
    GM_ADDR h;
    GM_ADDR dO;
    GM_ADDR rawG;
    GM_ADDR aLog;
    GM_ADDR dtBias;
    GM_ADDR initialState;
    GM_ADDR dht;
    GM_ADDR cuSeqlens;
    GM_ADDR chunkIndices;
    GM_ADDR qRstd;
    GM_ADDR kRstd;
    GM_ADDR dq;
    GM_ADDR dk;
    GM_ADDR dv;
    GM_ADDR dBeta;
    GM_ADDR dG;
    GM_ADDR dh0;
    GM_ADDR dALog;
    GM_ADDR dDtBias;
    GM_ADDR workspace;
    BackwardTiling t;
};

class BackwardStages
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const BackwardArgs &args)
    {
        a_ = args;
        Place();
        if (a_.t.recompute != 0) {
            Forward(pipe);
        }
        RunStage<OutputGradCube, OutputGradVector>(
            pipe, OutputGradArgs{a_.aqk, a_.vNew, a_.dO, a_.h, a_.cuSeqlens, a_.chunkIndices, dAqk_,
                                 dvRelay_, dqRaw_, scratch_, a_.t.outputGrad});
        NextStage(pipe);
        RunStage<StateGradCube, StateGradVector>(
            pipe, StateGradArgs{a_.qg, a_.kg, a_.w, a_.dO, dvRelay_, a_.gk, a_.dht, a_.cuSeqlens,
                                a_.chunkIndices, dh_, a_.dh0, dvRelay_, scratch_, a_.t.stateGrad});
        NextStage(pipe);
        RunStage<ChunkGradCube, ChunkGradVector>(
            pipe, ChunkGradArgs{
                      a_.q,       a_.k,     a_.v,          a_.rawG,  a_.beta,      a_.aLog,
                      a_.dtBias,  a_.akk,   a_.vNew,       a_.h,     dh_,          dvRelay_,
                      dAqk_,      dqRaw_,   a_.qRstd,      a_.kRstd, a_.cuSeqlens, a_.chunkIndices,
                      a_.dq,      a_.dk,    a_.dv,         a_.dBeta, a_.dG,        a_.dALog,
                      a_.dDtBias, scratch_, a_.t.chunkGrad});
    }

  private:
    /// What the forward makes, once more.
    __aicore__ inline void Forward(AscendC::TPipe &pipe)
    {
        GM_ADDR none = nullptr;  // outputs that the tiling leaves out
        RunStage<PrepareCube, PrepareVector>(pipe,
                                             PrepareArgs{a_.q,        a_.k,         a_.v,
                                                         a_.rawG,     a_.beta,      a_.aLog,
                                                         a_.dtBias,   a_.cuSeqlens, a_.chunkIndices,
                                                         a_.gk,       a_.aqk,       a_.akk,
                                                         a_.w,        none,         wideU_,
                                                         a_.qg,       a_.kg,        none,
                                                         none,        none,         none,
                                                         none,        none,         scratch_,
                                                         a_.t.prepare});
        NextStage(pipe);
        RunStage<StateCube, StateVector>(
            pipe, StateArgs{a_.kg, a_.w, wideU_, a_.gk, a_.initialState, a_.cuSeqlens,
                            a_.chunkIndices, a_.h, a_.vNew, none, scratch_, a_.t.state});
        NextStage(pipe);
    }

    __aicore__ inline GM_ADDR At(BackwardRelay relay, GM_ADDR tensor) const
    {
        return RelayAt(a_.t.relay[relay], tensor, a_.workspace);
    }

    /// A relay that no port of the call stands for.
    __aicore__ inline GM_ADDR Own(BackwardRelay relay) const
    {
        return a_.workspace + a_.t.relay[relay];
    }

    __aicore__ inline void Place()
    {
        a_.gk = At(kBackwardGk, a_.gk);
        a_.aqk = At(kBackwardAqk, a_.aqk);
        a_.akk = At(kBackwardAkk, a_.akk);
        a_.w = At(kBackwardW, a_.w);
        a_.qg = At(kBackwardQg, a_.qg);
        a_.kg = At(kBackwardKg, a_.kg);
        a_.vNew = At(kBackwardVNew, a_.vNew);
        a_.h = At(kBackwardH, a_.h);
        a_.dALog = At(kBackwardDALog, a_.dALog);
        wideU_ = Own(kBackwardWideU);
        dAqk_ = Own(kBackwardDAqk);
        dvRelay_ = Own(kBackwardDv);
        dqRaw_ = Own(kBackwardDqRaw);
        dh_ = Own(kBackwardDh);
        scratch_ = a_.workspace + a_.t.scratch;
    }

    BackwardArgs a_;
    GM_ADDR wideU_ = nullptr;
    GM_ADDR dAqk_ = nullptr;
    GM_ADDR dvRelay_ = nullptr;
    GM_ADDR dqRaw_ = nullptr;
    GM_ADDR dh_ = nullptr;
    GM_ADDR scratch_ = nullptr;
};

}  // namespace fla
#endif  // FLA_AGGREGATE_BACKWARD_H
