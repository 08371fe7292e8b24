/* SPDX-License-Identifier: Apache-2.0
 *
 * merge - Akk from the inverses of its diagonal blocks, and the products with it
 *
 *   X_ab = block (a, b) of Akk, 16 x 16; X_aa = D_a from the vector core; N = -L
 *   16 -> 32   T = N_10 D_0,  X_10 = D_1 T;   the same for blocks 3, 2
 *   32 -> 64   T = [N_20 N_21; N_30 N_31] [D_0 0; X_10 D_1]
 *              [X_20 X_21; X_30 X_31] = [D_2 0; X_32 D_3] T
 *   wy         [w | u] = bf16(Akk) [rhsW | rhsU], n = 256; rows of block a need k = 16 (a + 1)
 *
 * True fp32 up to wy. What a product leaves comes back as a right operand through GM (L0C can't go
 * to L1 as fp32), so it is made transposed, T^T = D^T N^T: then left and right operands are stored
 * as fractals need them but for D^T, which is turned while loading. The trips of both vector cores
 * alternate. Akk gathers in L0C, where the upper blocks are zero from the start: D_a arrives there
 * as D_a times the unit block.
 *
 * L1      per lane: D 4K | N 6K | T 2K | X 2K | T 4K | Akk bf16 8K | rhs 32K
 * L0C     Akk 16K per lane; T and wy in product tiles
 * Flags   per lane L1 finish (loads and trips, in turn), FIX_MTE2 (trips), FIX_MTE1 (Akk). Akk in
 *         L0C needs none against its next task: that comes after a load that waits for FIX_MTE1.
 */
#ifndef FLA_PREPARE_MERGE_CUBE_H
#define FLA_PREPARE_MERGE_CUBE_H

#include "cube_core.h"

namespace fla
{

class MergeCube
{
  public:
    __aicore__ inline void Open(CubeCore &c)
    {
        for (int32_t lane = 0; lane < static_cast<int32_t>(kVectorCores); ++lane) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        }
        constexpr uint32_t fractals = kChunk / kFractal;
        c.TakeL0();
        AscendC::InitConstValue(c.A<float>(0),
                                AscendC::InitConstValueParams<float>(1, fractals, 0, 0.0f));
        AscendC::InitConstValue(c.B<float>(0),
                                AscendC::InitConstValueParams<float>(1, fractals, 0, 0.0f));
        c.L0Loaded();
        for (uint32_t lane = 0; lane < kVectorCores; ++lane) {
            Product(c.Akk(lane), c.A<float>(0), c.B<float>(0), kChunk, kChunk, kFractal / 2);
        }
        c.LeaveL0();
    }

    __aicore__ inline void Close() const
    {
        for (int32_t lane = 0; lane < static_cast<int32_t>(kVectorCores); ++lane) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        }
    }

    /// Finishes the tasks of a round: akk, w, u.
    __aicore__ inline void Run(CubeCore &c, uint32_t round)
    {
        const uint32_t lanes = c.rounds.Has(round, 1) ? 2 : 1;
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            Load(c, lane, round);
        }
        AscendC::CrossCoreSetFlag<kGroupMode, PIPE_MTE2>(FlagOf(kFree, round));
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            PairProducts(c, lane, round);
        }
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            MergePairs(c, lane, round);
        }
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            HalfProduct(c, lane, round);
        }
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            const ChunkTask task = c.rounds.Task(round, lane);
            MergeHalves(c, lane, task);
        }
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            Wy(c, lane, c.rounds.Task(round, lane));
        }
    }

  private:
    // Products on their way back to L1, in PrepareSlot::trips: floats.
    static constexpr uint32_t kTripPairs = 0;
    static constexpr uint32_t kTripMerged = 2 * kBlockElems;
    static constexpr uint32_t kTripHalf = 4 * kBlockElems;
    static constexpr uint32_t kSquare = 2;  // fractals of a 16 x 16 block in fp32

    __aicore__ static inline Wide Inverse(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::inverse, 4 * kBlockElems);
    }
    /// N of a band: Nz [16, 16 band].
    __aicore__ static inline Wide Below(CubeCore &c, uint32_t lane, uint32_t band)
    {
        return c.L1<float>(lane, PrepareL1::below + BelowElement(band) * sizeof(float),
                           band * kBlockElems);
    }
    __aicore__ static inline Wide PairTrip(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::trip1, 2 * kBlockElems);
    }
    __aicore__ static inline Wide Merged(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::merged, 2 * kBlockElems);
    }
    __aicore__ static inline Wide HalfTrip(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::trip2, 4 * kBlockElems);
    }

    /// D, N and the right side of wy. The unit block comes with the first task.
    __aicore__ inline void Load(CubeCore &c, uint32_t lane, uint32_t round)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        if (lane == 0 && round == 0) {
            const auto unit =
                c.Gm<float>(c.args.workspace + UnitAt(c.args.t, c.group * kVectorCores));
            LoadBlocks(c.L1<float>(PrepareL1::unit, kBlockElems), unit, 1);
        }
        LoadBlocks(Inverse(c, lane), c.Slot<float>(lane, round, PrepareSlot::inverse), kBands);
        const auto below = c.Slot<float>(lane, round, PrepareSlot::below);
        for (uint32_t band = 1; band < kBands; ++band) {
            LoadMatrices(Below(c, lane, band), below[BelowElement(band)], 1, kBand, band * kBand,
                         band * kBand, 0, 0);
        }
        LoadMatrices(c.L1<bfloat16_t>(lane, PrepareL1::rhs, 2 * kChunkElems),
                     c.Slot<bfloat16_t>(lane, round, PrepareSlot::rhsW), 2, kChunk, kDim, kDim,
                     kChunkElems, kChunkElems);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
    }

    /// Blocks 16 x 16 out of [16][2 column halves][4 blocks][8] (solve.h): one matrix per half.
    __aicore__ static inline void LoadBlocks(const Wide &l1, const AscendC::GlobalTensor<float> &gm,
                                             uint32_t blocks)
    {
        for (uint32_t half = 0; half < 2; ++half) {
            LoadMatrices(l1[half * kFractalF32], gm[half * (kChunk / 2)], blocks, kBand, kBlockF32,
                         kChunk, kBlockF32, kBlockElems);
        }
    }

    /// Sends [rows, cols] of L0C to GM and on to L1 once both are there; the caller loads.
    __aicore__ static inline void TripSent(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::FIX_MTE2>(lane);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE2>(lane);
    }
    __aicore__ static inline void TripLoaded(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
    }

    /// D into Akk, and T^T = D_a^T N_da^T of the two pairs (a, d) = (0, 1), (2, 3).
    __aicore__ inline void PairProducts(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        constexpr uint32_t turned = kBands * kSquare;  // D_0^T, D_2^T behind D
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadFractals(c.A<float>(0), Inverse(c, lane), 0, turned, 1);
        LoadSquares(c.A<float>(turned), Inverse(c, lane), 0, 2, 2, kSquare);
        LoadFractals(c.B<float>(0), c.L1<float>(PrepareL1::unit, kBlockElems), 0, kSquare, 1);
        LoadFractals(c.B<float>(kSquare), Below(c, lane, 1), 0, kSquare, 1);
        LoadFractals(c.B<float>(2 * kSquare), Below(c, lane, 3), 2 * kSquare, kSquare, 1);
        c.L0Loaded();
        for (uint32_t band = 0; band < kBands; ++band) {
            Product(c.AkkBlock(lane, band, band), c.A<float>(band * kSquare), c.B<float>(0), kBand,
                    kBand, kBand);
        }
        const Wide tile = c.TakeTile();
        for (uint32_t pair = 0; pair < 2; ++pair) {
            Product(tile[pair * kBlockElems], c.A<float>(turned + pair * kSquare),
                    c.B<float>((pair + 1) * kSquare), kBand, kBand, kBand);
        }
        c.LeaveL0();
        c.TileReady();
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripPairs];
        for (uint32_t pair = 0; pair < 2; ++pair) {
            StoreRows(trip[pair * kBlockElems], tile[pair * kBlockElems], kBand, kBand, kBand,
                      kBand);
        }
        c.LeaveTile();
        TripSent(lane);
        LoadMatrices(PairTrip(c, lane), trip, 2, kBand, kBand, kBand, kBlockElems, kBlockElems);
        TripLoaded(lane);
    }

    /// X_10 = D_1 T and X_32 = D_3 T, into Akk and back to L1.
    __aicore__ inline void MergePairs(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        for (uint32_t pair = 0; pair < 2; ++pair) {
            LoadFractals(c.A<float>(pair * kSquare), Inverse(c, lane), (2 * pair + 1) * kSquare,
                         kSquare, 1);
        }
        LoadFractals(c.B<float>(0), PairTrip(c, lane), 0, 2 * kSquare, 1);
        c.L0Loaded();
        for (uint32_t pair = 0; pair < 2; ++pair) {
            Product(c.AkkBlock(lane, 2 * pair + 1, 2 * pair), c.A<float>(pair * kSquare),
                    c.B<float>(pair * kSquare), kBand, kBand, kBand);
        }
        c.LeaveL0();
        AkkReady(lane);
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripMerged];
        for (uint32_t pair = 0; pair < 2; ++pair) {
            StoreRows(trip[pair * kBlockElems], c.AkkBlock(lane, 2 * pair + 1, 2 * pair), kBand,
                      kBand, kBand, kBand);
        }
        TripSent(lane);
        LoadMatrices(Merged(c, lane), trip, 2, kBand, kBand, kBand, kBlockElems, kBlockElems);
        TripLoaded(lane);
    }

    /// T^T = [D_0^T X_10^T; 0 D_1^T] [N_20 N_21; N_30 N_31]^T, one block row at a time.
    __aicore__ inline void HalfProduct(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        constexpr uint32_t wide = 2 * kBand;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadSquares(c.A<float>(0), Inverse(c, lane), 0, 2, 1, 2 * kSquare);  // D_0^T, gap, D_1^T
        LoadSquares(c.A<float>(kSquare), Merged(c, lane), 0, 1, 1, kSquare);
        LoadFractals(c.B<float>(0), Below(c, lane, 2), 0, 2 * kSquare, 1, 2);
        LoadFractals(c.B<float>(1), Below(c, lane, 3), 0, 2 * kSquare, 1, 2);
        c.L0Loaded();
        const Wide tile = c.TakeTile();
        Product(tile, c.A<float>(0), c.B<float>(0), kBand, wide, wide);
        Product(tile[2 * kBlockElems], c.A<float>(2 * kSquare), c.B<float>(2 * kSquare), kBand,
                wide, kBand);
        c.LeaveL0();
        c.TileReady();
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripHalf];
        for (uint32_t row = 0; row < 2; ++row) {
            StoreRows(trip[row * 2 * kBlockElems], tile[row * 2 * kBlockElems], kBand, kBand, wide,
                      wide);
        }
        c.LeaveTile();
        TripSent(lane);
        LoadMatrices(HalfTrip(c, lane), trip, 1, wide, wide, wide, 0, 0);
        TripLoaded(lane);
    }

    /// [D_2 0; X_32 D_3] T completes Akk; it leaves for GM and, in bf16, for L1.
    __aicore__ inline void MergeHalves(CubeCore &c, uint32_t lane, const ChunkTask &task) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadFractals(c.A<float>(0), Inverse(c, lane), 2 * kSquare, kSquare, 1);
        LoadFractals(c.A<float>(kSquare), Merged(c, lane), kSquare, kSquare, 1);
        LoadFractals(c.A<float>(2 * kSquare), Inverse(c, lane), 3 * kSquare, kSquare, 1);
        for (uint32_t column = 0; column < 2; ++column) {
            LoadFractals(c.B<float>(column * 2 * kSquare), HalfTrip(c, lane), column, 2 * kSquare,
                         2);
        }
        c.L0Loaded();
        for (uint32_t column = 0; column < 2; ++column) {
            const Wide t = c.B<float>(column * 2 * kSquare);
            Product(c.AkkBlock(lane, 2, column), c.A<float>(0), t, kBand, kBand, kBand);
            Product(c.AkkBlock(lane, 3, column), c.A<float>(kSquare), t, kBand, kBand, 2 * kBand);
        }
        c.LeaveL0();
        AkkReady(lane);
        if ((c.args.t.outputs & kOutAkk) != 0) {
            const uint64_t row = c.rounds.Walk().ValueRow(task.batch, task.head, task.token);
            StoreRows(c.Gm<bfloat16_t>(c.args.akk)[row * kChunk], c.Akk(lane), task.rows, kChunk,
                      kChunk, kChunk);
        }
        AscendC::FixpipeParamsV220 params;
        params.nSize = kChunk;
        params.mSize = kChunk;
        params.srcStride = kChunk;
        params.dstStride = kChunk;
        params.quantPre = QuantMode_t::F322BF16;
        AscendC::Fixpipe<bfloat16_t, float, AscendC::CFG_NZ>(
            c.L1<bfloat16_t>(lane, PrepareL1::akk, kScoreElems), c.Akk(lane), params);
        AscendC::SetFlag<AscendC::HardEvent::FIX_MTE1>(lane);
    }

    __aicore__ static inline void AkkReady(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(kAkkDone + lane);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(kAkkDone + lane);
    }

    __aicore__ inline void Wy(CubeCore &c, uint32_t lane, const ChunkTask &task) const
    {
        constexpr uint32_t width = 2 * kDim;
        constexpr uint32_t strips = width / kFractal;
        const Narrow16 akk = c.L1<bfloat16_t>(lane, PrepareL1::akk, kScoreElems);
        const Narrow16 rhs = c.L1<bfloat16_t>(lane, PrepareL1::rhs, 2 * kChunkElems);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE1>(lane);
        c.TakeL0();
        for (uint32_t band = 0; band < kBands; ++band) {
            LoadFractals(c.A<bfloat16_t>(band * (band + 1) / 2), akk, band, band + 1, kBands);
            LoadFractals(c.B<bfloat16_t>(band * strips), rhs, band, strips, kBands, 1, true);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        c.L0Loaded();
        const uint64_t first = c.rounds.Walk().ValueRow(task.batch, task.head, task.token);
        for (uint32_t band = 0; band * kBand < task.rows; ++band) {
            const Wide tile = c.TakeTile();
            Product(tile, c.A<bfloat16_t>(band * (band + 1) / 2), c.B<bfloat16_t>(0), kBand, width,
                    (band + 1) * kBand);
            c.TileReady();
            const uint32_t rows = RowsIn(task.rows, band * kBand, kBand);
            const uint64_t at = (first + band * kBand) * kDim;
            StoreRows(c.Gm<bfloat16_t>(c.args.w)[at], tile, rows, kBand, kDim, kDim);
            const Wide u = tile[kBand * kDim];
            if ((c.args.t.outputs & kOutU) != 0) {
                StoreRows(c.Gm<bfloat16_t>(c.args.u)[at], u, rows, kBand, kDim, kDim);
            }
            if ((c.args.t.outputs & kOutWideU) != 0) {
                StoreRows(c.Gm<float>(c.args.uWide)[at], u, rows, kBand, kDim, kDim);
            }
            c.LeaveTile();
        }
        c.LeaveL0();
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_MERGE_CUBE_H
