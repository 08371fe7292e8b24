/* SPDX-License-Identifier: Apache-2.0
 *
 * values - products of a chunk with its state and its inverse, bf16 operands
 *
 *   Rv = A^T dU                      to GM, and in bf16 to L1 where dU was
 *   W  = A (beta k E(G))             in bf16 to L1 where its right side was
 *   state = v_new D^T                to GM; two planes of v_new add up
 *   -V = A (-beta v) + W S           in bf16 to L1 where -beta v was
 *   dL = Rv (-V)^T                   to GM; the vector cores cut out the triangle
 *   Rv S^T                           to GM, -Rk
 *   square                           the 16 x 16 diagonal blocks of S D^T, side by side: [16, 128]
 *
 * Shapes  A [64, 64]; dU, v_new, keys, values [64, 128]; S [K, V] or [V, K]; D [K, V]
 * L1      per lane 152K (GradL1); what needs no vector core is fetched a round ahead
 * Flags   kL1Inputs per lane, kL1Operands; FIX_MTE1 per product that stays
 */
#ifndef FLA_CHUNK_GRAD_VALUES_CUBE_H
#define FLA_CHUNK_GRAD_VALUES_CUBE_H

#include "grad_cube.h"

namespace fla
{

class ValuesCube
{
  public:
    __aicore__ inline void Open(GradCube &c) const
    {
        for (uint32_t lane = 0; lane < kVectorCores; ++lane) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Inputs + lane);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Operands);
        Fetch(c, 0);
    }

    __aicore__ inline void Close() const
    {
        for (uint32_t lane = 0; lane < kVectorCores; ++lane) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Inputs + lane);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Operands);
    }

    /// Products up to dL of both vector cores.
    __aicore__ inline void Run(GradCube &c, uint32_t round) const
    {
        const uint32_t lanes = c.rounds.Lanes(round);
        FetchOperands(c, round, lanes);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Inputs + lane);
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Operands);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            Residuals(c, lane, round);
            Keys(c, lane);
            Values(c, lane);
            Low(c, lane, round);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Operands);
    }

    /// What only the gradients need; then the inputs of the next round.
    __aicore__ inline void Finish(GradCube &c, uint32_t round) const
    {
        const uint32_t lanes = c.rounds.Lanes(round);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            KeyResiduals(c, lane, round);
            State(c, lane, round);
            Square(c, lane, round);
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Inputs + lane);
        }
        Fetch(c, round + 1);
    }

  private:
    /// Inputs of both lanes of a round, if there is one.
    __aicore__ static inline void Fetch(GradCube &c, uint32_t round)
    {
        for (uint32_t lane = 0; lane < kVectorCores; ++lane) {
            if (c.rounds.Has(round, lane)) {
                FetchLane(c, lane, c.rounds.Task(round, lane));
            }
        }
    }

    __aicore__ static inline void FetchLane(GradCube &c, uint32_t lane, const ChunkTask &task)
    {
        const ChunkWalk &walk = c.rounds.Walk();
        const uint64_t row = walk.ValueRow(task.batch, task.head, task.token);
        const uint64_t state = walk.StateTile(task.globalChunk, task.head) * kStateElems;
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Inputs + lane);
        LoadChunk(c.Lane(lane, GradL1::dU), GmAt<bfloat16_t>(c.args.dvScan)[row * kDim], task.rows,
                  kDim);
        const uint64_t plane = PlaneRows(c) * kDim;
        for (uint32_t i = 0; i < c.args.t.planes; ++i) {
            LoadChunk(c.Lane(lane, GradL1::vNew + i * GradL1::tile),
                      GmAt<bfloat16_t>(c.args.vNew)[i * plane + row * kDim], task.rows, kDim);
        }
        LoadNz(c.Lane(lane, GradL1::state, kStateElems), GmAt<bfloat16_t>(c.args.h)[state], kDim,
               kDim, kDim);
        LoadNz(c.Lane(lane, GradL1::dState, kStateElems), GmAt<bfloat16_t>(c.args.dh)[state], kDim,
               kDim, kDim);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Inputs + lane);
    }

    /// Rows of one plane of v_new: [B, HV, T].
    __aicore__ static inline uint64_t PlaneRows(const GradCube &c)
    {
        const ChunkGradTiling &t = c.args.t;
        const uint64_t batch = t.packed ? 1 : t.sequences;
        return batch * t.valueHeads * t.tokens;
    }

    __aicore__ static inline void FetchOperands(GradCube &c, uint32_t round, uint32_t lanes)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Operands);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            LoadMatrices(c.Lane(lane, GradL1::values, 2 * kChunkElems),
                         c.Slot<bfloat16_t>(lane, round, GradSlot::values), 2, kChunk, kDim, kDim,
                         kChunkElems, kChunkElems);
            LoadNz(c.Lane(lane, GradL1::akk, kScoreElems),
                   c.Slot<bfloat16_t>(lane, round, GradSlot::inverse), kChunk, kChunk, kChunk);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Operands);
    }

    /// A product that stays, [64, 128] in bf16. FIX.
    __aicore__ static inline void Stay(const Narrow16 &to, const Wide &tile, int32_t id)
    {
        StoreNz(to, tile, kChunk, kDim);
        AscendC::SetFlag<AscendC::HardEvent::FIX_MTE1>(id);
    }
    __aicore__ static inline void Stayed(int32_t id)
    {
        AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE1>(id);
    }

    __aicore__ static inline void LoadState(GradCube &c, uint32_t lane, bool turned)
    {
        const Narrow16 state = c.Lane(lane, GradL1::state, kStateElems);
        if (turned) {
            LoadRightTransposed(c.B<bfloat16_t>(0), state, kDim, kDim);
        } else {
            LoadRight(c.B<bfloat16_t>(0), state, kDim, kDim);
        }
    }

    /// Rv = A^T dU.
    __aicore__ static inline void Residuals(GradCube &c, uint32_t lane, uint32_t round)
    {
        c.TakeL0();
        LoadLeftTransposed(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::akk, kScoreElems), kChunk,
                           kChunk);
        LoadRight(c.B<bfloat16_t>(0), c.Lane(lane, GradL1::dU), kChunk, kDim);
        const Wide tile = c.MultiplyTurn<bfloat16_t>(kChunk, kDim, kChunk);
        StoreRows(c.Slot(lane, round, GradSlot::rv), tile, kChunk, kChunk, kDim, kDim);
        Stay(c.Lane(lane, GradL1::dU), tile, kStayRv);
        c.LeaveTile();
    }

    /// W = A (beta k E(G)).
    __aicore__ static inline void Keys(GradCube &c, uint32_t lane)
    {
        c.TakeL0();
        LoadLeft(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::akk, kScoreElems), kChunk, kChunk);
        LoadRight(c.B<bfloat16_t>(0), c.Lane(lane, GradL1::keys), kChunk, kDim);
        const Wide tile = c.MultiplyTurn<bfloat16_t>(kChunk, kDim, kChunk);
        Stay(c.Lane(lane, GradL1::keys), tile, kStayKeys);
        c.LeaveTile();
    }

    /// -V = A (-beta v) + W S.
    __aicore__ static inline void Values(GradCube &c, uint32_t lane)
    {
        c.TakeL0();
        LoadLeft(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::akk, kScoreElems), kChunk, kChunk);
        LoadRight(c.B<bfloat16_t>(0), c.Lane(lane, GradL1::values), kChunk, kDim);
        c.L0Loaded();
        const Wide tile = c.TakeTile();
        Product(tile, c.A<bfloat16_t>(0), c.B<bfloat16_t>(0), kChunk, kDim, kChunk);
        c.LeaveL0();
        c.TakeL0();
        Stayed(kStayKeys);
        LoadLeft(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::keys), kChunk, kDim);
        LoadState(c, lane, c.args.t.stateVFirst);
        c.L0Loaded();
        AddProduct(tile, c.A<bfloat16_t>(0), c.B<bfloat16_t>(0), kChunk, kDim, kDim);
        c.LeaveL0();
        c.TileReady();
        Stay(c.Lane(lane, GradL1::values), tile, kStayValues);
        c.LeaveTile();
    }

    /// dL = Rv (-V)^T.
    __aicore__ static inline void Low(GradCube &c, uint32_t lane, uint32_t round)
    {
        c.TakeL0();
        Stayed(kStayRv);
        LoadLeft(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::dU), kChunk, kDim);
        Stayed(kStayValues);
        LoadRightTransposed(c.B<bfloat16_t>(0), c.Lane(lane, GradL1::values), kDim, kChunk);
        const Wide tile = c.MultiplyTurn<bfloat16_t>(kChunk, kChunk, kDim);
        StoreRows(c.Slot(lane, round, GradSlot::low), tile, kChunk, kChunk, kChunk, kChunk);
        c.LeaveTile();
    }

    /// Rv S^T.
    __aicore__ static inline void KeyResiduals(GradCube &c, uint32_t lane, uint32_t round)
    {
        c.TakeL0();
        LoadLeft(c.A<bfloat16_t>(0), c.Lane(lane, GradL1::dU), kChunk, kDim);
        LoadState(c, lane, !c.args.t.stateVFirst);
        const Wide tile = c.MultiplyTurn<bfloat16_t>(kChunk, kDim, kDim);
        StoreRows(c.Slot(lane, round, GradSlot::rk), tile, kChunk, kChunk, kDim, kDim);
        c.LeaveTile();
    }

    /// v_new D^T.
    __aicore__ static inline void State(GradCube &c, uint32_t lane, uint32_t round)
    {
        constexpr uint32_t fractals = kChunkElems / kFractalElems;
        const uint32_t planes = c.args.t.planes;
        c.TakeL0();
        for (uint32_t i = 0; i < planes; ++i) {
            LoadLeft(c.A<bfloat16_t>(i * fractals), c.Lane(lane, GradL1::vNew + i * GradL1::tile),
                     kChunk, kDim);
        }
        LoadRightTransposed(c.B<bfloat16_t>(0), c.Lane(lane, GradL1::dState, kStateElems), kDim,
                            kDim);
        c.L0Loaded();
        const Wide tile = c.TakeTile();
        Product(tile, c.A<bfloat16_t>(0), c.B<bfloat16_t>(0), kChunk, kDim, kDim);
        if (planes > 1) {
            AddProduct(tile, c.A<bfloat16_t>(fractals), c.B<bfloat16_t>(0), kChunk, kDim, kDim);
        }
        c.LeaveL0();
        c.TileReady();
        StoreRows(c.Slot(lane, round, GradSlot::state), tile, kChunk, kChunk, kDim, kDim);
        c.LeaveTile();
    }

    /// Diagonal blocks of S D^T.
    __aicore__ static inline void Square(GradCube &c, uint32_t lane, uint32_t round)
    {
        constexpr uint32_t blocks = kDim / kFractal;
        const Narrow16 state = c.Lane(lane, GradL1::state, kStateElems);
        const Narrow16 dState = c.Lane(lane, GradL1::dState, kStateElems);
        c.TakeL0();
        for (uint32_t i = 0; i < blocks; ++i) {
            if (c.args.t.stateVFirst) {
                LoadFractals(c.A<bfloat16_t>(i * blocks), state, i * blocks, blocks, 1, 1, true);
            } else {
                LoadFractals(c.A<bfloat16_t>(i * blocks), state, i, blocks, blocks);
            }
            LoadFractals(c.B<bfloat16_t>(i * blocks), dState, i, blocks, blocks);
        }
        c.L0Loaded();
        const Wide tile = c.TakeTile();
        for (uint32_t i = 0; i < blocks; ++i) {
            Product(tile[i * kBlockElems], c.A<bfloat16_t>(i * blocks), c.B<bfloat16_t>(i * blocks),
                    kFractal, kFractal, kDim);
        }
        c.LeaveL0();
        c.TileReady();
        // Blocks lie side by side in L0C as the strips of one [16, 128] tile do.
        StoreRows(c.Slot(lane, round, GradSlot::square), tile, kFractal, kFractal, kDim, kDim);
        c.LeaveTile();
    }
};

}  // namespace fla
#endif  // FLA_CHUNK_GRAD_VALUES_CUBE_H
