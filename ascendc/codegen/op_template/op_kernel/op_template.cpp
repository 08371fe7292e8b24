// SPDX-License-Identifier: Apache-2.0
/*
 * op_template - y = scale * x
 *
 * Shapes  x, y [R W] fp32, taken as one row of R * W elements cut into tiles
 * Vector  tile by tile: copy in, Muls, copy out; queues of depth 2 run the copies under the compute
 * UB      x 2 x 32K | y 2 x 32K = 128K of 184K
 * Flags   those of the queues; nothing crosses between cores
 */
#include "kernel_operator.h"

#include "op_template_tiling_data.h"

using namespace AscendC;

namespace
{

constexpr uint32_t kTile = kOpTemplateTileElements;
constexpr uint32_t kBuffers = 2;

__aicore__ inline void Scale(GM_ADDR x, GM_ADDR y, const OpTemplateTilingData &t)
{
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float *)x, t.elements);
    to.SetGlobalBuffer((__gm__ float *)y, t.elements);
    TPipe pipe;
    TQue<TPosition::VECIN, kBuffers> in;
    TQue<TPosition::VECOUT, kBuffers> out;
    pipe.InitBuffer(in, kBuffers, kTile * sizeof(float));
    pipe.InitBuffer(out, kBuffers, kTile * sizeof(float));

    const uint32_t cores = GetBlockNum() * GetSubBlockNum();
    for (uint32_t tile = GetBlockIdx(); tile < t.tiles; tile += cores) {
        const uint64_t first = uint64_t(tile) * kTile;
        const uint32_t count = first + kTile <= t.elements ? kTile : uint32_t(t.elements - first);
        const DataCopyExtParams row{1, uint32_t(count * sizeof(float)), 0, 0, 0};

        LocalTensor<float> source = in.AllocTensor<float>();
        DataCopyPad(source, from[first], row, DataCopyPadExtParams<float>{false, 0, 0, 0.0f});
        in.EnQue(source);
        source = in.DeQue<float>();
        LocalTensor<float> result = out.AllocTensor<float>();
        Muls(result, source, t.scale, count);
        in.FreeTensor(source);
        out.EnQue(result);
        result = out.DeQue<float>();
        DataCopyPad(to[first], result, row);
        out.FreeTensor(result);
    }
}

}  // namespace

extern "C" __global__ __aicore__ void op_template(GM_ADDR x, GM_ADDR y, GM_ADDR workspace,
                                                  GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(OpTemplateTilingData);
    GET_TILING_DATA_WITH_STRUCT(OpTemplateTilingData, t, tiling);
    (void)workspace;  // everything fits on the chip
    if ASCEND_IS_AIV {
        Scale(x, y, t);
    }
}
