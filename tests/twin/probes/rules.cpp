// SPDX-License-Identifier: Apache-2.0
// One small case per rule of the vector side, in pairs: the first breaks the rule, the second keeps
// it. Case numbers are in tests/twin/test_rules.py; lines that a test looks up carry a unique
// comment.
#include "kernel_operator.h"

namespace probe
{

using namespace AscendC;

struct Tiling {
    uint32_t which;
    uint32_t count;
    uint32_t rest[6];
};

constexpr uint32_t kTile = 256;  // floats

class Rules
{
  public:
    Rules(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, const Tiling &t) : t_(t)
    {
        x_.SetGlobalBuffer((__gm__ float *)x, 4096);
        y_.SetGlobalBuffer((__gm__ float *)y, 4096);
        w_.SetGlobalBuffer((__gm__ float *)workspace, 1 << 18);
    }

    void Vector(TPipe &pipe)
    {
        pipe.InitBuffer(buffer_, 64 * 1024);
        a_ = buffer_.Get<float>()[0];
        b_ = buffer_.Get<float>()[1024];
        c_ = buffer_.Get<float>()[2048];
        bool first = GetBlockIdx() == 0;
        switch (t_.which / 100) {
            case 1:
                return first ? Memory() : void();
            case 2:
                return first ? Races() : void();
            case 3:
                return first ? Events(pipe) : void();
            case 5:
                return Scalars(first);
            default:
                return;
        }
    }

  private:
    void Ready()
    {
        Duplicate(a_, 1.0f, kTile);
        PipeBarrier<PIPE_V>();
    }

    void Memory()
    {
        switch (t_.which) {
            case 100:  // t_.count floats of a tensor of kTile
                Ready();
                Adds(b_, buffer_.Get<float>(kTile), 1.0f, t_.count);  // bounds
                break;
            case 101:  // starts t_.count floats into the tensor
                Duplicate(a_, 1.0f, kTile);
                PipeBarrier<PIPE_V>();
                Adds(b_, a_[t_.count], 1.0f, 64);  // alignment
                break;
            case 102:
                Duplicate(a_, 1.0f, t_.count);
                PipeBarrier<PIPE_V>();
                Adds(b_, a_, 1.0f, 64);  // undefined
                break;
            case 103:
                DataCopy(a_, x_[t_.count], 64);  // gm end
                break;
            case 104: {
                GlobalTensor<float> to = t_.count != 0 ? x_ : y_;
                Ready();
                SetFlag<HardEvent::V_MTE3>(0);
                WaitFlag<HardEvent::V_MTE3>(0);
                DataCopy(to, a_, 64);  // input write
                break;
            }
            case 105: {
                GlobalTensor<float> absent;
                absent.SetGlobalBuffer(nullptr);
                DataCopy(a_, t_.count != 0 ? absent : x_, 64);
                break;
            }
            case 106:
                DataCopyPad(a_, x_, {1, t_.count * 4, 0, 0, 0}, {false, 0, 0, 0.0f});
                SetFlag<HardEvent::MTE2_V>(0);
                WaitFlag<HardEvent::MTE2_V>(0);
                Adds(b_, a_, 1.0f, 64);  // tail
                break;
            default:
                break;
        }
    }

    /// The sequence is right; count names the fence that is left out (0 none).
    void Races()
    {
        uint32_t out = t_.count;
        switch (t_.which) {
            case 200:
                Duplicate(a_, 1.0f, kTile);  // race source
                if (out != 1) {
                    PipeBarrier<PIPE_V>();
                }
                Adds(b_, a_, 1.0f, kTile);  // race sink
                break;
            case 201:
                DataCopy(a_, x_, kTile);
                if (out != 1) {
                    PipeBarrier<PIPE_MTE2>();
                }
                DataCopy(a_[64], x_, kTile);  // overlapping destination
                break;
            case 202: {  // a round trip V -> MTE3 -> MTE2 -> V tells V that its own work is done
                Duplicate(a_, 1.0f, kTile);
                SetFlag<HardEvent::V_MTE3>(0);
                WaitFlag<HardEvent::V_MTE3>(0);
                DataCopy(w_, a_, kTile);
                SetFlag<HardEvent::MTE3_MTE2>(0);
                WaitFlag<HardEvent::MTE3_MTE2>(0);
                DataCopy(b_, w_, kTile);
                SetFlag<HardEvent::MTE2_V>(0);
                WaitFlag<HardEvent::MTE2_V>(0);
                Add(a_, a_, b_, kTile);
                break;
            }
            case 203: {  // what S has waited for holds for everything it issues later
                Duplicate(a_, 1.0f, kTile);
                SetFlag<HardEvent::V_S>(0);
                WaitFlag<HardEvent::V_S>(0);
                DataCopy(y_, a_, kTile);
                break;
            }
            case 204: {  // but a scalar write needs its own flag
                a_.SetValue(0, 1.0f);
                if (out != 1) {
                    SetFlag<HardEvent::S_V>(0);
                    WaitFlag<HardEvent::S_V>(0);
                }
                Adds(b_, a_, 1.0f, 1);
                break;
            }
            case 205:  // a write after a read
                Duplicate(a_, 1.0f, kTile);
                SetFlag<HardEvent::V_MTE3>(0);
                WaitFlag<HardEvent::V_MTE3>(0);
                DataCopy(y_, a_, kTile);
                if (out != 1) {
                    SetFlag<HardEvent::MTE3_V>(0);
                    WaitFlag<HardEvent::MTE3_V>(0);
                }
                Duplicate(a_, 2.0f, kTile);
                break;
            case 206:  // disjoint blocks need nothing
                Duplicate(a_, 1.0f, 8);
                Duplicate(a_[8], 1.0f, 8);
                break;
            default:
                break;
        }
    }

    void Events(TPipe &pipe)
    {
        switch (t_.which) {
            case 300:
                SetFlag<HardEvent::MTE2_V>(1);
                if (t_.count != 0) {
                    SetFlag<HardEvent::MTE2_V>(1);  // set twice
                }
                WaitFlag<HardEvent::MTE2_V>(1);
                break;
            case 301:
                if (t_.count == 0) {
                    SetFlag<HardEvent::V_MTE3>(1);
                }
                WaitFlag<HardEvent::V_MTE3>(1);  // wait
                break;
            case 302:
                SetFlag<HardEvent::V_S>(2);  // leftover
                if (t_.count == 0) {
                    WaitFlag<HardEvent::V_S>(2);
                }
                break;
            case 303:
                SetFlag<HardEvent::V_S>(static_cast<int32_t>(t_.count));
                WaitFlag<HardEvent::V_S>(static_cast<int32_t>(t_.count));
                break;
            case 304:
                if (t_.count != 0) {
                    SetFlag<HardEvent::M_FIX>(0);  // wrong core
                }
                break;
            case 305: {  // an id from the pool may be any
                TEventID ids[8];
                for (uint32_t i = 0; i < 8 + t_.count; ++i) {
                    ids[i % 8] = pipe.AllocEventID<HardEvent::V_S>();  // pool
                }
                SetFlag<HardEvent::V_S>(ids[7]);
                WaitFlag<HardEvent::V_S>(ids[7]);
                for (TEventID id : ids) {
                    pipe.ReleaseEventID<HardEvent::V_S>(id);
                }
                break;
            }
            case 306:
                if (t_.count != 0) {
                    TPipe second;  // second pipe
                }
                break;
            case 307:
                if (t_.count != 0) {
                    TBuf<TPosition::VECCALC> more;
                    pipe.InitBuffer(more, 121 * 1024);  // too much
                }
                break;
            case 308: {
                TBuf<TPosition::VECCALC> many[64];
                for (uint32_t i = 0; i < 63 + t_.count; ++i) {
                    pipe.InitBuffer(many[i], 32);  // buffers
                }
                break;
            }
            default:
                Queues(pipe);
        }
    }

    void Queues(TPipe &pipe)
    {
        TQue<TPosition::VECIN, 1> in;
        TQue<TPosition::VECOUT, 1> out;
        pipe.InitBuffer(in, t_.which == 320 ? 9 - t_.count : 2, kTile * 4);  // queue buffers
        if (t_.which == 320) {
            return;
        }
        pipe.InitBuffer(out, 2, kTile * 4);
        bool broken = t_.count != 0;
        for (uint32_t i = 0; i < 3; ++i) {
            LocalTensor<float> x = in.AllocTensor<float>();
            if (t_.which == 321 && broken) {
                in.AllocTensor<float>();
                in.AllocTensor<float>();  // third
            }
            DataCopy(x, x_[i * kTile], kTile);
            in.EnQue(x);
            if (t_.which == 322 && broken) {
                in.EnQue(x);  // enque twice
            }
            if (t_.which == 323 && broken) {
                LocalTensor<float> other = in.AllocTensor<float>();
                in.EnQue(other);  // depth
            }
            if (t_.which == 324 && broken) {
                return;  // leaves a tensor in the queue
            }
            x = in.DeQue<float>();
            if (t_.which == 325 && broken) {
                in.DeQue<float>();  // empty
            }
            LocalTensor<float> y = out.AllocTensor<float>();
            Adds(y, x, 1.0f, kTile);
            in.FreeTensor(x);
            if (t_.which == 326 && broken) {
                in.FreeTensor(x);  // free twice
            }
            if (t_.which == 327 && broken) {
                in.FreeTensor(y);  // foreign
            }
            out.EnQue(y);
            y = out.DeQue<float>();
            DataCopy(y_[i * kTile], y, kTile);
            out.FreeTensor(y);
        }
    }

    /// GM through the scalar unit. Both AIVs of the group take part.
    void Scalars(bool first)
    {
        GlobalTensor<float> mine = w_[first ? 0 : t_.which == 502 ? 1 : 16];
        bool broken = t_.count != 0;
        if (t_.which == 500 || t_.which == 502) {  // 502: both in one line
            if (t_.which == 500 || first || broken) {
                mine.SetValue(0, 3.0f);  // scalar write
            }
            if (t_.which == 500 ? !broken || !first : !broken) {
                Clean(mine);
            }
            CrossCoreSetFlag<1, PIPE_MTE3>(3);
            CrossCoreWaitFlag(3);
            if (t_.which == 502 && broken) {
                Clean(mine);
            }
        } else if (t_.which == 501 &&
                   first) {  // stale line: loaded, overwritten by DMA, read again
            Ready();
            SetFlag<HardEvent::V_MTE3>(0);
            WaitFlag<HardEvent::V_MTE3>(0);
            DataCopy(w_, a_, 64);
            SetFlag<HardEvent::MTE3_S>(0);
            WaitFlag<HardEvent::MTE3_S>(0);
            float before = w_.GetValue(0);
            SetFlag<HardEvent::S_MTE3>(0);
            WaitFlag<HardEvent::S_MTE3>(0);
            DataCopy(w_, a_, 64);
            SetFlag<HardEvent::MTE3_S>(0);
            WaitFlag<HardEvent::MTE3_S>(0);
            if (!broken) {
                Clean(w_);
            }
            a_.SetValue(0, before + w_.GetValue(0));  // stale read
        } else if (t_.which == 503 && first) {        // a DMA reads what is still in the cache
            w_.SetValue(0, 3.0f);
            if (!broken) {
                Clean(w_);
            }
            SetFlag<HardEvent::S_MTE2>(0);
            WaitFlag<HardEvent::S_MTE2>(0);
            DataCopyPad(a_, w_, {1, 4, 0, 0, 0}, {false, 0, 0, 0.0f});  // dirty read
            if (broken) {
                Clean(w_);
            }
        }
    }
    void Clean(const GlobalTensor<float> &t)
    {
        DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(t);
    }

    Tiling t_;
    GlobalTensor<float> x_, y_, w_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> a_, b_, c_;
};

}  // namespace probe

extern "C" __global__ __aicore__ void rules(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(probe::Tiling);
    GET_TILING_DATA_WITH_STRUCT(probe::Tiling, t, tiling);
    AscendC::TPipe pipe;
    probe::Rules op(x, y, workspace, t);
    if ASCEND_IS_AIV {
        op.Vector(pipe);
    }
}
