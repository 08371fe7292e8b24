// SPDX-License-Identifier: Apache-2.0
// Cases that need more than one core: cross-core flags, the cube side, kernel types, all-core sync.
// Lines marked `fence: <tag>` are the fences that test_fences.py takes away, alone and together.
#include "kernel_operator.h"

namespace probe
{

using namespace AscendC;

struct Tiling {
    uint32_t which;
    uint32_t count;
    uint32_t steps;
    uint32_t rest[5];
};

constexpr uint32_t kRows = 32;  // of the square tiles, fp32 and bf16
constexpr uint32_t kTile = kRows * kRows;

/// y[s] = (bf16(x + 1) @ bf16(x + 1)) * 2 for every step s. AIV 0 makes the operand, the AIC
/// multiplies, AIV 1 scales the product. On-chip buffers are single, GM slots double with credits:
/// each fence carries an order of its own.
class Pipeline
{
  public:
    Pipeline(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, const Tiling &t) : t_(t)
    {
        x_.SetGlobalBuffer((__gm__ float *)x, 4096);
        y_.SetGlobalBuffer((__gm__ float *)y, 4096);
        operand_.SetGlobalBuffer((__gm__ bfloat16_t *)workspace, 2 * kTile);
        product_.SetGlobalBuffer((__gm__ float *)(workspace + 4096), 2 * kTile);
    }

    // In mode 2 both AIVs set every flag towards the AIC and both receive every flag from it. Each
    // AIV gives the flags that concern only its sibling in advance, or takes them at the end, so
    // that they order nothing here.
    void Vector(TPipe &pipe)
    {
        TBuf<TPosition::VECCALC> buffer;
        pipe.InitBuffer(buffer, 32 * 1024);
        if (GetSubBlockIdx() == 0) {
            for (uint32_t s = 2; s < t_.steps; ++s) {
                CrossCoreSetFlag<2, PIPE_MTE2>(3);  // fence: product free
            }
            Produce(buffer.GetWithOffset<float>(kTile, 0),
                    buffer.GetWithOffset<bfloat16_t>(kTile, 8192));
            for (uint32_t s = 0; s < t_.steps; ++s) {
                CrossCoreWaitFlag(2);  // fence: product ready
            }
        } else {
            for (uint32_t s = 0; s < t_.steps; ++s) {
                CrossCoreSetFlag<2, PIPE_MTE3>(0);  // fence: operand ready
            }
            Consume(buffer.GetWithOffset<float>(kTile, 0));
            for (uint32_t s = 2; s < t_.steps; ++s) {
                CrossCoreWaitFlag(1);  // fence: operand free
            }
        }
    }

    void Cube(TPipe &pipe)
    {
        TBuf<TPosition::A1> l1;
        TBuf<TPosition::A2> l0a;
        TBuf<TPosition::B2> l0b;
        TBuf<TPosition::CO1> l0c;
        pipe.InitBuffer(l1, 2048);
        pipe.InitBuffer(l0a, 2048);
        pipe.InitBuffer(l0b, 2048);
        pipe.InitBuffer(l0c, 4096);
        LocalTensor<bfloat16_t> nz = l1.Get<bfloat16_t>(), a = l0a.Get<bfloat16_t>(),
                                b = l0b.Get<bfloat16_t>();
        LocalTensor<float> c = l0c.Get<float>();
        SetFlag<HardEvent::MTE1_MTE2>(0);  // fence: l1 free
        SetFlag<HardEvent::M_MTE1>(3);     // fence: l0 free
        SetFlag<HardEvent::FIX_M>(0);      // fence: l0c free
        for (uint32_t s = 0; s < t_.steps; ++s) {
            CrossCoreWaitFlag(0);               // fence: operand ready
            WaitFlag<HardEvent::MTE1_MTE2>(0);  // fence: l1 free
            DataCopy(nz, operand_[s % 2 * kTile],
                     Nd2NzParams(1, kRows, kRows, 0, kRows, kRows, 1, 0));
            if (s + 2 < t_.steps) {
                CrossCoreSetFlag<2, PIPE_MTE2>(1);  // fence: operand free
            }
            SetFlag<HardEvent::MTE2_MTE1>(0);   // fence: nz
            WaitFlag<HardEvent::MTE2_MTE1>(0);  // fence: nz
            WaitFlag<HardEvent::M_MTE1>(3);     // fence: l0 free
            for (uint32_t m = 0; m < 2; ++m) {
                LoadData(a[m * 512], nz, LoadData2DParams(m, 2, 2, 0, 0, false, 0));
                LoadData(b[m * 512], nz, LoadData2DParams(m, 2, 2, 0, 0, true, 0));
            }
            SetFlag<HardEvent::MTE1_MTE2>(0);  // fence: l1 free
            SetFlag<HardEvent::MTE1_M>(0);     // fence: l0 ready
            WaitFlag<HardEvent::MTE1_M>(0);    // fence: l0 ready
            WaitFlag<HardEvent::FIX_M>(0);     // fence: l0c free
            MmadParams p;
            p.m = p.n = p.k = kRows;
            Mmad(c, a, b, p);
            SetFlag<HardEvent::M_MTE1>(3);  // fence: l0 free
            SetFlag<HardEvent::M_FIX>(0);   // fence: accumulated
            WaitFlag<HardEvent::M_FIX>(0);  // fence: accumulated
            if (s >= 2) {
                CrossCoreWaitFlag(3);  // fence: product free
            }
            FixpipeParamsV220 f;
            f.nSize = f.mSize = f.srcStride = f.dstStride = kRows;
            f.quantPre = QuantMode_t::NoQuant;
            Fixpipe<float, float, CFG_ROW_MAJOR>(product_[s % 2 * kTile], c, f);
            SetFlag<HardEvent::FIX_M>(0);      // fence: l0c free
            CrossCoreSetFlag<2, PIPE_FIX>(2);  // fence: product ready
        }
        WaitFlag<HardEvent::MTE1_MTE2>(0);  // fence: l1 free
        WaitFlag<HardEvent::M_MTE1>(3);     // fence: l0 free
        WaitFlag<HardEvent::FIX_M>(0);      // fence: l0c free
    }

  private:
    void Produce(const LocalTensor<float> &in, const LocalTensor<bfloat16_t> &half)
    {
        SetFlag<HardEvent::V_MTE2>(0);  // fence: in free
        SetFlag<HardEvent::MTE3_V>(0);  // fence: half free
        for (uint32_t s = 0; s < t_.steps; ++s) {
            WaitFlag<HardEvent::V_MTE2>(0);  // fence: in free
            DataCopy(in, x_, kTile);
            SetFlag<HardEvent::MTE2_V>(0);   // fence: loaded
            WaitFlag<HardEvent::MTE2_V>(0);  // fence: loaded
            Adds(in, in, 1.0f, kTile);
            PipeBarrier<PIPE_V>();           // fence: added
            WaitFlag<HardEvent::MTE3_V>(0);  // fence: half free
            Cast(half, in, RoundMode::CAST_RINT, kTile);
            SetFlag<HardEvent::V_MTE2>(0);   // fence: in free
            SetFlag<HardEvent::V_MTE3>(0);   // fence: cast
            WaitFlag<HardEvent::V_MTE3>(0);  // fence: cast
            if (s >= 2) {
                CrossCoreWaitFlag(1);  // fence: operand free
            }
            DataCopy(operand_[s % 2 * kTile], half, kTile);
            SetFlag<HardEvent::MTE3_V>(0);      // fence: half free
            CrossCoreSetFlag<2, PIPE_MTE3>(0);  // fence: operand ready
        }
        WaitFlag<HardEvent::V_MTE2>(0);  // fence: in free
        WaitFlag<HardEvent::MTE3_V>(0);  // fence: half free
    }

    void Consume(const LocalTensor<float> &out)
    {
        SetFlag<HardEvent::MTE3_MTE2>(1);  // fence: out free
        for (uint32_t s = 0; s < t_.steps; ++s) {
            CrossCoreWaitFlag(2);               // fence: product ready
            WaitFlag<HardEvent::MTE3_MTE2>(1);  // fence: out free
            DataCopy(out, product_[s % 2 * kTile], kTile);
            if (s + 2 < t_.steps) {
                CrossCoreSetFlag<2, PIPE_MTE2>(3);  // fence: product free
            }
            SetFlag<HardEvent::MTE2_V>(1);   // fence: fetched
            WaitFlag<HardEvent::MTE2_V>(1);  // fence: fetched
            Muls(out, out, 2.0f, kTile);
            SetFlag<HardEvent::V_MTE3>(1);   // fence: scaled
            WaitFlag<HardEvent::V_MTE3>(1);  // fence: scaled
            DataCopy(y_[s * kTile], out, kTile);
            SetFlag<HardEvent::MTE3_MTE2>(1);  // fence: out free
        }
        WaitFlag<HardEvent::MTE3_MTE2>(1);  // fence: out free
    }

    Tiling t_;
    GlobalTensor<float> x_, y_, product_;
    GlobalTensor<bfloat16_t> operand_;
};

/// Single rules. count = 0 keeps the rule, anything else breaks it.
class Cases
{
  public:
    Cases(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, const Tiling &t) : t_(t)
    {
        x_.SetGlobalBuffer((__gm__ float *)x, 4096);
        y_.SetGlobalBuffer((__gm__ float *)y, 4096);
        w_.SetGlobalBuffer((__gm__ bfloat16_t *)workspace, 1 << 18);
    }

    void Vector(TPipe &pipe)
    {
        uint32_t sub = static_cast<uint32_t>(GetSubBlockIdx());
        bool broken = t_.count != 0;
        switch (t_.which) {
            case 10:  // two cores write neighbouring elements (or the same one)
                Neighbours(pipe, broken ? 0 : sub);
                break;
            case 11:  // one AIV hands data to the other
                Handover(pipe, sub);
                break;
            case 12:
                CrossCoreSetFlag<2, PIPE_MTE3>(broken ? 11 : 10);  // flag id
                break;
            case 13:  // 15 sets may wait, 16 not
                for (uint32_t i = 0; i < 15 + t_.count; ++i) {
                    CrossCoreSetFlag<2, PIPE_MTE3>(2);  // counter
                }
                CrossCoreSetFlag<2, PIPE_MTE3>(7);
                break;
            case 14:
                if (sub == 0 || !broken) {
                    CrossCoreSetFlag<2, PIPE_MTE3>(2);  // one AIV only
                }
                break;
            case 15:
                CrossCoreSetFlag<2, PIPE_MTE3>(2);
                break;
            case 16:
                CrossCoreSetFlag<1, PIPE_MTE3>(4);
                CrossCoreWaitFlag(4);
                break;
            case 18:
                CrossCoreSetFlag<1, PIPE_V>(5);
                if (!broken) {
                    CrossCoreWaitFlag(5);
                }
                CrossCoreSetFlag<0, PIPE_V>(5);  // other mode
                CrossCoreWaitFlag(5);
                break;
            case 19:
                CrossCoreSetFlag<0, PIPE_MTE3>(6);  // all vector cores
                CrossCoreWaitFlag(6);
                break;
            case 20:
                if (broken) {
                    SyncAll<true>();  // kind of sync
                } else {
                    SyncAll<false>();  // all cores
                }
                break;
            case 22:
                if (broken) {
                    LocalTensor<float> none(nullptr, TPosition::CO1, 0, 4096);
                    PipeBarrier<PIPE_M>();  // pipe of the cube
                }
                break;
            default:
                break;
        }
    }

    void Cube(TPipe &pipe)
    {
        bool broken = t_.count != 0;
        switch (t_.which) {
            case 12:
                CrossCoreWaitFlag(10);
                break;
            case 13:
                CrossCoreWaitFlag(7);  // takes nothing before all are set
                for (uint32_t i = 0; i < 15; ++i) {
                    CrossCoreWaitFlag(2);
                }
                break;
            case 14:
                CrossCoreWaitFlag(2);  // never arrives
                break;
            case 15:
                if (!broken) {
                    CrossCoreWaitFlag(2);
                }
                break;
            case 16:
                if (broken) {
                    CrossCoreSetFlag<1, PIPE_FIX>(4);  // mode 1 on AIC
                }
                break;
            case 17:                                         // M_MTE1 0 to 2 belong to TPipe
                SetFlag<HardEvent::M_MTE1>(broken ? 0 : 3);  // id of TPipe
                WaitFlag<HardEvent::M_MTE1>(broken ? 0 : 3);
                break;
            case 20:
                SyncAll<false>();
                break;
            case 21:
                Accumulate(pipe, broken);
                break;
            case 23:
                CubeQueues(pipe, broken);
                break;
            default:
                break;
        }
    }

  private:
    void Neighbours(TPipe &pipe, uint32_t element)
    {
        TBuf<TPosition::VECCALC> buffer;
        pipe.InitBuffer(buffer, 1024);
        LocalTensor<bfloat16_t> t = buffer.Get<bfloat16_t>();
        Duplicate(t, ToBfloat16(1.0f), 16);
        SetFlag<HardEvent::V_MTE3>(0);
        WaitFlag<HardEvent::V_MTE3>(0);
        DataCopyPad(w_[element], t, {1, 2, 0, 0, 0});  // neighbours
    }

    void Handover(TPipe &pipe, uint32_t sub)
    {
        TBuf<TPosition::VECCALC> buffer;
        pipe.InitBuffer(buffer, 1024);
        LocalTensor<bfloat16_t> t = buffer.Get<bfloat16_t>();
        bool flags = t_.count == 0;
        if (sub == 0) {
            Duplicate(t, ToBfloat16(1.0f), 64);
            SetFlag<HardEvent::V_MTE3>(0);
            WaitFlag<HardEvent::V_MTE3>(0);
            DataCopy(w_, t, 64);  // handed over
        }
        if (flags) {
            CrossCoreSetFlag<1, PIPE_MTE3>(3);
            CrossCoreWaitFlag(3);
        } else if (t_.count == 2) {  // the pipe of the flag has not done the work
            CrossCoreSetFlag<1, PIPE_V>(3);
            CrossCoreWaitFlag(3);
        }
        if (sub == 1) {
            DataCopy(t, w_, 64);  // received
        }
    }

    /// Queues on the cube side: A1 -> A2, B2 -> CO1, four rounds over two buffers each.
    void CubeQueues(TPipe &pipe, bool broken)
    {
        TQue<TPosition::A1, 1> l1;
        TQue<TPosition::A2, 1> l0a;
        TQue<TPosition::B2, 1> l0b;
        TQue<TPosition::CO1, 1> l0c;
        pipe.InitBuffer(l1, 2, 512);
        pipe.InitBuffer(l0a, 2, 512);
        pipe.InitBuffer(l0b, 2, 512);
        pipe.InitBuffer(l0c, 2, 1024);
        GlobalTensor<bfloat16_t> x;
        x.SetGlobalBuffer((__gm__ bfloat16_t *)x_.GetPhyAddr(0), 8192);
        for (uint32_t s = 0; s < 4; ++s) {
            LocalTensor<bfloat16_t> nz = l1.AllocTensor<bfloat16_t>();
            DataCopy(nz, x, Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
            if (!broken) {
                l1.EnQue(nz);
                nz = l1.DeQue<bfloat16_t>();
            }
            LocalTensor<bfloat16_t> a = l0a.AllocTensor<bfloat16_t>();
            LocalTensor<bfloat16_t> b = l0b.AllocTensor<bfloat16_t>();
            LoadData(a, nz, LoadData2DParams(0, 1, 1, 0, 0, false, 0));  // not enqueued
            LoadData(b, nz, LoadData2DParams(0, 1, 1, 0, 0, true, 0));
            l1.FreeTensor(nz);
            l0a.EnQue(a);
            l0b.EnQue(b);
            a = l0a.DeQue<bfloat16_t>();
            b = l0b.DeQue<bfloat16_t>();
            LocalTensor<float> c = l0c.AllocTensor<float>();
            MmadParams p;
            p.m = p.n = p.k = 16;
            Mmad(c, a, b, p);
            l0a.FreeTensor(a);
            l0b.FreeTensor(b);
            l0c.EnQue(c);
            c = l0c.DeQue<float>();
            FixpipeParamsV220 f;
            f.nSize = f.mSize = f.srcStride = f.dstStride = 16;
            f.quantPre = QuantMode_t::NoQuant;
            Fixpipe<float, float, CFG_ROW_MAJOR>(y_[s * 256], c, f);
            l0c.FreeTensor(c);
        }
    }

    /// Two products into one small L0C block: PIPE_M is needed between them; a large block orders
    /// itself.
    void Accumulate(TPipe &pipe, bool broken)
    {
        TBuf<TPosition::A2> l0a;
        TBuf<TPosition::B2> l0b;
        TBuf<TPosition::CO1> l0c;
        pipe.InitBuffer(l0a, 16384);
        pipe.InitBuffer(l0b, 16384);
        pipe.InitBuffer(l0c, 65536);
        LocalTensor<bfloat16_t> a = l0a.Get<bfloat16_t>(), b = l0b.Get<bfloat16_t>();
        LocalTensor<float> c = l0c.Get<float>();
        InitConstValue(a, InitConstValueParams<bfloat16_t>(1, 16, 0, ToBfloat16(1.0f)));
        InitConstValue(b, InitConstValueParams<bfloat16_t>(1, 16, 0, ToBfloat16(1.0f)));
        SetFlag<HardEvent::MTE1_M>(0);
        WaitFlag<HardEvent::MTE1_M>(0);
        MmadParams p;
        p.m = p.n = t_.steps;
        p.k = 16;
        Mmad(c, a, b, p);
        p.cmatrixInitVal = false;
        if (!broken) {
            PipeBarrier<PIPE_M>();
        }
        Mmad(c, a, b, p);  // accumulates
    }

    Tiling t_;
    GlobalTensor<float> x_, y_;
    GlobalTensor<bfloat16_t> w_;
};

}  // namespace probe

extern "C" __global__ __aicore__ void groups(GM_ADDR x, GM_ADDR y, GM_ADDR workspace,
                                             GM_ADDR tiling)
{
    GET_TILING_DATA_WITH_STRUCT(probe::Tiling, t, tiling);
    if (t.which ==
        30) {  // on the device this line decides before the kernel starts; here a case may choose
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
        if (t.count != 0) {
            AscendC::SyncAll();  // no flags in this kernel type
        }
        return;
    }
    if (t.which == 31) {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
        AscendC::SyncAll();  // pure vector sync
        return;
    }
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    AscendC::TPipe pipe;
    if (t.which == 0) {
        probe::Pipeline op(x, y, workspace, t);
        if ASCEND_IS_AIC {
            op.Cube(pipe);
        }
        if ASCEND_IS_AIV {
            op.Vector(pipe);
        }
        return;
    }
    probe::Cases op(x, y, workspace, t);
    if ASCEND_IS_AIC {
        op.Cube(pipe);
    }
    if ASCEND_IS_AIV {
        op.Vector(pipe);
    }
}
