// SPDX-License-Identifier: Apache-2.0
// One case per rule an instruction has of its own (ranges, strides, overlaps, layouts). The tiling
// value `v` keeps the rule or breaks it; numbers and values are in tests/twin_instr/test_rules.py.
// Every step is fenced by PIPE_ALL, so that only the rule in question can be broken.
#include "kernel_operator.h"

namespace probe
{

using namespace AscendC;

struct Tiling {
    uint32_t which;
    uint32_t v;
    uint32_t rest[6];
};

class Instructions
{
  public:
    Instructions(GM_ADDR x, GM_ADDR y, const Tiling &t) : t_(t)
    {
        x_.SetGlobalBuffer((__gm__ float *)x, 4096);
        y_.SetGlobalBuffer((__gm__ float *)y, 4096);
    }

    void Vector(TPipe &pipe)
    {
        if (GetBlockIdx() != 0 || t_.which >= 100) {
            return;
        }
        pipe.InitBuffer(buffer_, 128 * 1024);
        LocalTensor<float> all = buffer_.Get<float>();
        Duplicate(all, 1.0f, 32 * 1024);
        PipeBarrier<PIPE_ALL>();
        a_ = all[0], b_ = all[8192], c_ = all[16384];
        if (t_.which < 40) {
            Repeats();
        } else {
            Others();
        }
    }

    void Cube(TPipe &pipe)
    {
        if (t_.which < 100) {
            return;
        }
        pipe.InitBuffer(l1_, 64 * 1024);
        pipe.InitBuffer(l0a_, 32 * 1024);
        pipe.InitBuffer(l0b_, 32 * 1024);
        pipe.InitBuffer(l0c_, 64 * 1024);
        pipe.InitBuffer(table_, 1024);
        left_ = l0a_.Get<float>(), right_ = l0b_.Get<float>(), sum_ = l0c_.Get<float>();
        tile_ = l1_.Get<float>();
        if (t_.which < 120) {
            Loads();
        } else {
            Products();
        }
    }

  private:
    void Repeats()
    {
        const uint32_t v = t_.v;
        switch (t_.which) {
            case 1:
                Adds(b_, a_, 1.0f, 8, v, {1, 1, 1, 1});  // repeat
                break;
            case 2:
                Adds(b_, a_, 1.0f, v, 2, {1, 1, 8, 8});  // mask
                break;
            case 3:
                Add(b_, a_, c_, 64, 2, {1, 1, 1, 8, 8, v});  // stride
                break;
            case 4:
                Adds(b_, a_, 1.0f, 64, 2, {v, 1, 8, 8});  // dst block
                break;
            case 5:
                Adds(a_[v], a_, 1.0f, 64);  // count overlap
                break;
            case 6:
                Add(a_[v], b_, a_, 64, 2, {1, 1, 1, 8, 8, 8});  // repeat overlap
                break;
            case 7:  // rows summed into one register row: Add may, Div may not
                if (v == 0) {
                    Add(a_, b_, a_, 64, 4, {1, 1, 1, 0, 8, 0});
                } else {
                    Div(a_, b_, a_, 64, 4, {1, 1, 1, 0, 8, 0});  // accumulate
                }
                break;
            case 8:
                Brcb(b_, a_, v, {1, 8});  // brcb repeat
                break;
            case 9:
                Brcb(a_[v], a_, 2, {1, 8});  // brcb overlap
                break;
            case 10:  // masked lanes keep what they had: here nothing
                Duplicate(a_, 1.0f, 64);
                PipeBarrier<PIPE_V>();
                WholeReduceSum(b_, a_, v, 2, 1, 1, 8);  // whole mask
                break;
            case 11:
                Copy(b_, a_, 64, 2, {1, 1, v, 8});  // copy stride
                break;
            default:
                break;
        }
    }

    void Others()
    {
        const uint32_t v = t_.v;
        LocalTensor<uint8_t> bits = c_.ReinterpretCast<uint8_t>();
        switch (t_.which) {
            case 40:
                Cast(b_.ReinterpretCast<bfloat16_t>(), a_, static_cast<RoundMode>(v), 64);  // mode
                break;
            case 41:
                Compare(bits, a_, b_, CMPMODE::LT, v);  // compare count
                break;
            case 42: {
                LocalTensor<int32_t> i = a_.ReinterpretCast<int32_t>();
                Compare(bits, i, i, static_cast<CMPMODE>(v), 64);  // compare mode
                break;
            }
            case 43:
                Select(b_, bits, a_, a_[64], static_cast<SELMODE>(v), 64);  // select mode
                break;
            case 44:
                DataCopy(a_, x_, v);  // copy count
                break;
            case 45:
                DataCopy(a_, x_, DataCopyParams(v, 0, 0, 0));  // block count
                break;
            case 46:
                DataCopyPad(a_, x_, {1, 4, 0, 0, 0}, {true, 0, v, 0.0f});  // pad
                break;
            case 47:
                DataCopyPad(a_, x_, {1, v, 0, 0, 0}, {false, 0, 0, 0.0f});  // pad bytes
                break;
            case 48:
                Duplicate(c_.ReinterpretCast<uint32_t>(), v, 64);
                PipeBarrier<PIPE_V>();
                Gather(b_, a_, c_.ReinterpretCast<uint32_t>(), 0, 64);  // gather
                break;
            case 49: {
                LocalTensor<half> to[16], from[16];
                for (uint32_t i = 0; i < 16; ++i) {
                    to[i] = b_.ReinterpretCast<half>()[i * 16];
                    from[i] = a_.ReinterpretCast<half>()[i * 16];
                }
                TransDataTo5HD(to, from, {false, false, 1, v, 0});  // transpose stride
                break;
            }
            case 50: {
                uint64_t kept = 0;
                GatherMask(b_, a_, uint8_t(v), false, 0, {1, 2, 8, 0}, kept);  // pattern
                Duplicate(c_, 1.0f, static_cast<int32_t>(kept) - 63);  // 64 lanes of 128 are kept
                break;
            }
            default:
                break;
        }
    }

    /// A [16, 16] tile of x, or its first rows, in L1.
    void Tile(uint32_t rows)
    {
        DataCopy(tile_, x_, Nd2NzParams{1, rows, 16, 0, 16, 16, 1, 0});
        PipeBarrier<PIPE_ALL>();
    }
    LoadData3DParamsV2<float> Square()
    {
        LoadData3DParamsV2<float> p;
        p.l1H = 1, p.l1W = 16, p.channelSize = 16, p.mExtension = 16, p.kExtension = 16;
        return p;
    }

    void Loads()
    {
        const uint32_t v = t_.v;
        LoadData3DParamsV2<float> p = Square();
        switch (t_.which) {
            case 100:
                DataCopy(tile_, x_, Nd2NzParams{1, 1, 16, 0, v, 16, 1, 0});  // row stride
                break;
            case 101:
                Tile(16);
                LoadData(left_, tile_, LoadData2DParams(0, v, 0, 0, 0, false, 0));  // 2d repeat
                break;
            case 102:
                Tile(16);
                LoadData(left_, tile_, LoadData2DParams(0, 1, 0, 0, 0, v != 0, 0));  // 2d float
                break;
            case 103:
                Tile(16);
                p.mExtension = v;
                LoadData(left_, tile_, p);  // 3d rows
                break;
            case 104:
                Tile(16);
                p.kExtension = v;
                LoadData(left_, tile_, p);  // 3d columns
                break;
            case 105:
                Tile(16);
                p.strideW = v;
                LoadData(left_, tile_, p);  // 3d filter
                break;
            case 106:
                Tile(16);
                LoadData(v == 0 ? left_ : sum_, tile_, p);  // load path
                break;
            case 107: {
                InitConstValueParams<float> fill(1, 1, 0, 0.0f);
                InitConstValue(v == 0 ? left_ : sum_, fill);  // fill
                break;
            }
            case 108: {
                Tile(16);
                LocalTensor<float> to = v == 0 ? table_.Get<float>() : tile_;
                DataCopy(to, tile_, DataCopyParams(1, 1, 0, 0));  // local path
                break;
            }
            default:
                break;
        }
    }

    void Products()
    {
        const uint32_t v = t_.v, which = t_.which;
        Tile(which == 120 || which == 121 ? v : 16);
        LoadData(left_, tile_, Square());
        PipeBarrier<PIPE_ALL>();
        Tile(16);
        LoadData(right_, tile_, Square());
        PipeBarrier<PIPE_ALL>();
        const uint32_t m = which == 121 ? v : which == 124 ? 15 : 16;
        if (which == 122) {
            Mmad(sum_, left_, right_, MmadParams{v, 16, 16, 0, false, true});  // mmad range
            return;
        }
        if (which == 123) {
            Mmad(sum_[v], left_, right_, MmadParams{16, 16, 16, 0, false, true});  // mmad place
            return;
        }
        Mmad(sum_, left_, right_, MmadParams{m, 16, 16, 0, false, true});  // mmad rows
        PipeBarrier<PIPE_ALL>();
        FixpipeParamsV220 p(16, m, 16, 16, false);
        p.mSize = which == 124 ? v : m;
        p.nSize = which == 125 ? v : 16;
        p.dstStride = which == 126 ? v : 16;
        p.quantPre = which == 127 && v != 0 ? QuantMode_t::F322BF16 : QuantMode_t::NoQuant;
        Fixpipe(y_, sum_, p);  // fixpipe
    }

    Tiling t_;
    GlobalTensor<float> x_, y_;
    TBuf<TPosition::VECCALC> buffer_;
    TBuf<TPosition::A1> l1_;
    TBuf<TPosition::A2> l0a_;
    TBuf<TPosition::B2> l0b_;
    TBuf<TPosition::CO1> l0c_;
    TBuf<TPosition::C2> table_;
    LocalTensor<float> a_, b_, c_, tile_, left_, right_, sum_;
};

}  // namespace probe

extern "C" __global__ __aicore__ void instructions(GM_ADDR x, GM_ADDR y, GM_ADDR workspace,
                                                   GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    REGISTER_TILING_DEFAULT(probe::Tiling);
    GET_TILING_DATA_WITH_STRUCT(probe::Tiling, t, tiling);
    AscendC::TPipe pipe;
    probe::Instructions op(x, y, t);
    if ASCEND_IS_AIV {
        op.Vector(pipe);
    }
    if ASCEND_IS_AIC {
        op.Cube(pipe);
    }
}
