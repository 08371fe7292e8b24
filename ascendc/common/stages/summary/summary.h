/* SPDX-License-Identifier: Apache-2.0
 *
 * summary - what windows of tokens do to a state, or to the gradient of one, as an affine map
 *
 *   forward   H_out = M @ H_in + E        E = 0, M = I, then from the first chunk to the last
 *     E = diag(2^G_last) E + kg^T @ (u - w @ E)
 *     M = diag(2^G_last) M + kg^T @ (0 - w @ M)
 *   backward  dH_start = M @ dH_end + E   E = 0, M = I, then from the last chunk to the first
 *     E = diag(2^G_last) E + scale * qg^T @ dO - w^T @ (dv_local + kg @ E)
 *     M = diag(2^G_last) M                     - w^T @ (0        + kg @ M)
 *
 * M obeys the recurrence of E, without values and from another start. So [E | M] is a state of V + K
 * columns, columns never meet, and a block of them runs through the stages that exist: state and
 * state_grad, whose files hold all of the work. `summary` in their tiling turns on what differs:
 *
 * Items   (block, window, head) instead of (sequence, head); blocks slowest, so that the heavier E
 *         are spread evenly over the groups, and so are the M. With fewer items than the lanes of a
 *         chip, E and M of a head run on two groups at once.
 * Shapes  hm [N, HV, K, V + K], dhm [HV, K, V + K] fp32: a block's tile has gaps between its rows.
 *         kg and qg may have fewer heads than w.
 * Relay   nothing is kept per chunk: the state (bf16) and the values on their way from the vector
 *         cores to the cube core use one slot per lane in the workspace. A lane is a conversation,
 *         so a slot is written again only after an answer that follows its last use.
 * UB, L1, L0, Flags   those of the stage
 * Limits  chunk 64, K = V = 128, B = 1; windows anywhere inside of T; gk in powers of 2
 */
#ifndef FLA_SUMMARY_H
#define FLA_SUMMARY_H

#include "kernel_operator.h"

#include "local_memory.h"
#include "summary_tiling_data.h"

namespace fla
{

constexpr uint32_t kSummaryRow = kSummaryBlocks * kDim;  // columns of [E | M]

/// Where the slots lie: behind the workspace of the stage, `groupBytes` of each group.
__aicore__ inline GM_ADDR SummaryStates(GM_ADDR workspace, uint32_t groupBytes)
{
    return workspace + static_cast<uint64_t>(AscendC::GetBlockNum()) * groupBytes;
}
__aicore__ inline GM_ADDR SummaryValues(GM_ADDR workspace, uint32_t groupBytes)
{
    return SummaryStates(workspace, groupBytes + kSummaryStateBytes);
}

/// First element of this vector core's rows of a block of summary `tile`, and the copy out of them:
/// whole rows of the block, gaps between them in GM.
__aicore__ inline uint64_t SummaryAt(uint64_t tile, uint32_t half, bool isMap)
{
    return tile * kDim * kSummaryRow + half * (kDim / kVectorCores) * kSummaryRow +
           (isMap ? kDim : 0);
}
__aicore__ inline AscendC::DataCopyParams SummaryRows()
{
    constexpr uint16_t kBlocks = kDim / kBlockF32;
    return {kDim / kVectorCores, kBlocks, 0, (kSummaryBlocks - 1) * kBlocks};
}

/// This vector core's rows of the identity, on zeros. Row 8 j + e has its one in lane e of a block
/// that lies a row of rows and a block behind that of row 8 (j - 1) + e: one fill per e.
__aicore__ inline void AddDiagonal(const AscendC::LocalTensor<float> &rows, uint32_t half)
{
    constexpr uint32_t kStep = kDim + 1;  // in blocks, from one such block to the next
    for (uint32_t lane = 0; lane < kBlockF32; ++lane) {
        uint64_t mask[] = {0x0101010101010101ULL << lane, 0};
        AscendC::Duplicate(rows[lane * kDim + half * kDim / kVectorCores], 1.0f, mask, 1, kStep,
                           kBlockF32);
    }
    AscendC::PipeBarrier<PIPE_V>();
}

}  // namespace fla
#endif  // FLA_SUMMARY_H
