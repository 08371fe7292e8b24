// SPDX-License-Identifier: Apache-2.0
// Tiling of the prepare stage: a pure function of the call and the chip.
#ifndef FLA_COMMON_HOST_STAGES_PREPARE_PLAN_H
#define FLA_COMMON_HOST_STAGES_PREPARE_PLAN_H

#include "prepare/prepare_tiling_data.h"
#include "stages/stage_plan.h"

namespace fla
{

/// What operators name or fix differently. The rest is read from the call: the ports q, beta,
/// a_log, dt_bias, the attributes of the gate, scale and use_exp2.
struct PrepareUse {
    const char *gateInput = "g";  // its port
    uint32_t outputs = 0;         // bits of PrepareOutput
    bool tokenMajor = false;
    bool l2norm = false;
    uint32_t betaSigmoids = 0;
    float epsilon = 1.0F;  // only l2norm reads it
};

StagePlan<PrepareTiling> PlanPrepare(const OpCall &call, const ChipSpec &chip,
                                     const PrepareUse &use);

/// PlanPrepare for an operator with the forward's attributes: layout, epsilon,
/// use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval.
StagePlan<PrepareTiling> PlanForwardPrepare(const OpCall &call, const ChipSpec &chip,
                                            uint32_t outputs);

/// Those outputs of the stage that a call asks for, by the names that contracts give them.
uint32_t GivenPrepareOutputs(const OpCall &call);

}  // namespace fla
#endif  // FLA_COMMON_HOST_STAGES_PREPARE_PLAN_H
