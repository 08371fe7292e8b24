/* SPDX-License-Identifier: Apache-2.0
 *
 * merge - Akk from the inverses of its diagonal blocks, and the products with it
 *
 *   X_ab = block (a, b) of Akk, 16 x 16; X_aa = D_a from the vector core; N = -L
 *   16 -> 32   T = N_10 D_0,  X_10 = D_1 T;   the same for blocks 3, 2
 *   32 -> 64   T = [N_20 N_21; N_30 N_31] [D_0 0; X_10 D_1]
 *              [X_20 X_21; X_30 X_31] = [D_2 0; X_32 D_3] T
 *   wy         w = bf16(Akk) bf16(beta k E(G)),  u = bf16(Akk diag(beta)) v + diag(rest) v; rows of
 *              block a need k = 16 (a + 1); rest = what bf16(beta) leaves of beta
 *
 * A column of Akk only ever comes from the last factor of a product, so Akk diag(beta) is made
 * beside Akk from D_a' = D_a diag(beta_a), which the vector core sends too: T' = N_10 D_0' and so
 * on. Left factors stay as they are. The diagonal of Akk is 1, that of Akk diag(beta) is beta, which
 * a single bf16 would round: it has a second one.
 *
 * True fp32 up to wy. What a product leaves comes back as a right operand through GM (L0C can't go
 * to L1 as fp32), so it is made transposed, T^T = D^T N^T: then left and right operands are stored
 * as fractals need them but for D^T, which is turned while loading. [T^T; T'^T] is one product. The
 * trips of both vector cores alternate. Akk gathers in L0C, where the upper blocks are zero from
 * the start: D_a arrives there as D_a times the unit block.
 *
 * L1      per lane: D, D' 8K | N 6K | T of pairs 4K | X 3K | T of halves 8K | both Akk bf16 16K |
 *         rest 2K | beta k E(G) 16K | v 16K
 * L0C     Akk and Akk diag(beta), 16K each per lane; T and wy in product tiles
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
            for (uint32_t form = 0; form < kAkkForms; ++form) {
                Product(c.Akk(lane, form), c.A<float>(0), c.B<float>(0), kChunk, kChunk,
                        kFractal / 2);
            }
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
        const uint32_t lanes = c.rounds.Lanes(round);
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
    static constexpr uint32_t kTripMerged = 4 * kBlockElems;
    static constexpr uint32_t kTripHalf = 7 * kBlockElems;
    static constexpr uint64_t kWidestStep = 65535;  // elements; rows of Nd2Nz in one instruction

    /// D_0 D_0' D_1 D_1' ...
    __aicore__ static inline Wide Inverse(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::inverse, kAkkForms * kBands * kBlockElems);
    }
    /// First fractal of D of a band, or of D'.
    __aicore__ static inline uint32_t InverseAt(uint32_t band, uint32_t form)
    {
        return (kAkkForms * band + form) * kSquare;
    }
    /// N of a band: Nz [16, 16 band].
    __aicore__ static inline Wide Below(CubeCore &c, uint32_t lane, uint32_t band)
    {
        return c.L1<float>(lane, PrepareL1::below + BelowElement(band) * sizeof(float),
                           band * kBlockElems);
    }
    /// T_10 T_10' T_32 T_32'
    __aicore__ static inline Wide PairTrip(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::trip1, 2 * kAkkForms * kBlockElems);
    }
    /// X_10 X_10' X_32
    __aicore__ static inline Wide Merged(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::merged, 3 * kBlockElems);
    }
    /// T^T, then T'^T, of the halves: Nz [32, 32] each.
    __aicore__ static inline Wide HalfTrip(CubeCore &c, uint32_t lane)
    {
        return c.L1<float>(lane, PrepareL1::trip2, kAkkForms * 4 * kBlockElems);
    }

    /// Diagonal blocks of beta - bf16(beta).
    __aicore__ static inline Narrow16 Rest(CubeCore &c, uint32_t lane)
    {
        return c.L1<bfloat16_t>(lane, PrepareL1::rest, kBand * kChunk);
    }
    __aicore__ static inline Narrow16 Rounded(CubeCore &c, uint32_t lane, uint32_t form)
    {
        return c.L1<bfloat16_t>(lane, PrepareL1::akk + form * kScoreElems * sizeof(bfloat16_t),
                                kScoreElems);
    }

    /// D, N and the right sides of wy. The unit block comes with the first task.
    __aicore__ inline void Load(CubeCore &c, uint32_t lane, uint32_t round)
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        if (lane == 0 && round == 0) {
            const auto unit =
                GmAt<float>(c.args.workspace + UnitAt(c.args.t, c.group * kVectorCores));
            LoadBlocks(c.L1<float>(PrepareL1::unit, kBlockElems), unit, 1, 0);
        }
        const auto inverse = c.Slot<float>(lane, round, PrepareSlot::inverse);
        for (uint32_t form = 0; form < kAkkForms; ++form) {
            LoadBlocks(Inverse(c, lane)[form * kBlockElems], inverse[form * kBand * kChunk], kBands,
                       kAkkForms * kBlockElems);
        }
        const auto below = c.Slot<float>(lane, round, PrepareSlot::below);
        for (uint32_t band = 1; band < kBands; ++band) {
            LoadMatrices(Below(c, lane, band), below[BelowElement(band)], 1, kBand, band * kBand,
                         band * kBand, 0, 0);
        }
        LoadMatrices(c.L1<bfloat16_t>(lane, PrepareL1::keys, kChunkElems),
                     c.Slot<bfloat16_t>(lane, round, PrepareSlot::keys), 1, kChunk, kDim, kDim, 0,
                     0);
        LoadMatrices(Rest(c, lane), c.Slot<bfloat16_t>(lane, round, PrepareSlot::rest), 1, kBand,
                     kChunk, kChunk, 0, 0);
        LoadValues(c, lane, round);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
    }

    /// v of the chunk from the input itself, zero beyond the valid rows.
    __aicore__ static inline void LoadValues(CubeCore &c, uint32_t lane, uint32_t round)
    {
        const PrepareTiling &t = c.args.t;
        const ChunkTask task = c.rounds.Task(round, lane);
        const ChunkWalk &walk = c.rounds.Walk();
        const auto v = GmAt<bfloat16_t>(c.args.v);
        const Narrow16 to = c.L1<bfloat16_t>(lane, PrepareL1::values, kChunkElems);
        if (task.rows < kChunk) {
            ZeroL1(to, kChunkElems);
            AscendC::PipeBarrier<PIPE_MTE2>();
        }
        uint64_t first = walk.ValueRow(task.batch, task.head, task.token) * kDim;
        uint64_t step = kDim;
        if (t.tokenMajor) {
            first = walk.TokenRow(task.batch, task.head, task.token) * kDim;
            step = static_cast<uint64_t>(t.valueHeads) * kDim;
        }
        if (step <= kWidestStep) {
            LoadNzRows(to, v[first], task.rows, kDim, step, kChunk);
            return;
        }
        for (uint32_t row = 0; row < task.rows; ++row) {
            LoadNz(to[row * kFractal], v[first + row * step], 1, kDim, kChunk);
        }
    }

    /// Blocks 16 x 16 out of [16][2 column halves][4 blocks][8] (solve.h), `step` elements apart in
    /// L1: one matrix per half.
    __aicore__ static inline void LoadBlocks(const Wide &l1, const AscendC::GlobalTensor<float> &gm,
                                             uint32_t blocks, uint32_t step)
    {
        for (uint32_t half = 0; half < 2; ++half) {
            LoadMatrices(l1[half * kFractalF32], gm[half * (kChunk / 2)], blocks, kBand, kBlockF32,
                         kChunk, kBlockF32, step);
        }
    }

    /// A product on its way back to L1 through GM: its stores are issued, loads may follow.
    __aicore__ static inline void TripSent(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::FIX_MTE2>(lane);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE2>(lane);
    }
    /// Its loads are issued.
    __aicore__ static inline void TripLoaded(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
    }

    /// D and D' into Akk, and [T^T; T'^T] = [D_a^T; D_a'^T] N_da^T of the two pairs (a, d) = (0, 1),
    /// (2, 3).
    __aicore__ inline void PairProducts(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        constexpr uint32_t blocks = kAkkForms * kBands;
        constexpr uint32_t turned = blocks * kSquare;  // D_0^T D_0'^T D_2^T D_2'^T behind D
        constexpr uint32_t turnedPair = kAkkForms * kSquare;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadFractals(c.A<float>(0), Inverse(c, lane), 0, turned, 1);
        for (uint32_t pair = 0; pair < 2; ++pair) {
            LoadSquares(c.A<float>(turned + pair * turnedPair), Inverse(c, lane),
                        pair * 2 * kAkkForms, kAkkForms, 1, kSquare);
        }
        LoadFractals(c.B<float>(0), c.L1<float>(PrepareL1::unit, kBlockElems), 0, kSquare, 1);
        LoadFractals(c.B<float>(kSquare), Below(c, lane, 1), 0, kSquare, 1);
        LoadFractals(c.B<float>(2 * kSquare), Below(c, lane, 3), 2 * kSquare, kSquare, 1);
        c.L0Loaded();
        for (uint32_t i = 0; i < blocks; ++i) {
            const uint32_t band = i / kAkkForms;
            Product(c.AkkBlock(lane, i % kAkkForms, band, band), c.A<float>(i * kSquare),
                    c.B<float>(0), kBand, kBand, kBand);
        }
        const Wide tile = c.TakeTile();
        for (uint32_t pair = 0; pair < 2; ++pair) {
            Product(tile[pair * kAkkForms * kBlockElems], c.A<float>(turned + pair * turnedPair),
                    c.B<float>((pair + 1) * kSquare), kAkkForms * kBand, kBand, kBand);
        }
        c.LeaveL0();
        c.TileReady();
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripPairs];
        for (uint32_t pair = 0; pair < 2; ++pair) {
            const uint32_t at = pair * kAkkForms * kBlockElems;
            StoreRows(trip[at], tile[at], kAkkForms * kBand, kAkkForms * kBand, kBand, kBand);
        }
        c.LeaveTile();
        TripSent(lane);
        LoadMatrices(PairTrip(c, lane), trip, 2 * kAkkForms, kBand, kBand, kBand, kBlockElems,
                     kBlockElems);
        TripLoaded(lane);
    }

    /// X_10 = D_1 T and X_32 = D_3 T, X' = D T' likewise, into Akk; what is a factor again back to
    /// L1.
    __aicore__ inline void MergePairs(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        for (uint32_t pair = 0; pair < 2; ++pair) {
            LoadFractals(c.A<float>(pair * kSquare), Inverse(c, lane),
                         InverseAt(2 * pair + 1, kPlain), kSquare, 1);
        }
        LoadFractals(c.B<float>(0), PairTrip(c, lane), 0, 2 * kAkkForms * kSquare, 1);
        c.L0Loaded();
        for (uint32_t i = 0; i < 2 * kAkkForms; ++i) {
            const uint32_t pair = i / kAkkForms;
            Product(c.AkkBlock(lane, i % kAkkForms, 2 * pair + 1, 2 * pair),
                    c.A<float>(pair * kSquare), c.B<float>(i * kSquare), kBand, kBand, kBand);
        }
        c.LeaveL0();
        AkkReady(lane);
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripMerged];
        const Wide factors[] = {c.AkkBlock(lane, kPlain, 1, 0), c.AkkBlock(lane, kScaled, 1, 0),
                                c.AkkBlock(lane, kPlain, 3, 2)};
        for (uint32_t i = 0; i < 3; ++i) {
            StoreRows(trip[i * kBlockElems], factors[i], kBand, kBand, kBand, kBand);
        }
        TripSent(lane);
        LoadMatrices(Merged(c, lane), trip, 3, kBand, kBand, kBand, kBlockElems, kBlockElems);
        TripLoaded(lane);
    }

    /// T^T = [D_0^T X_10^T; 0 D_1^T] [N_20 N_21; N_30 N_31]^T, one block row at a time with that of
    /// T'^T below it.
    __aicore__ inline void HalfProduct(CubeCore &c, uint32_t lane, uint32_t round) const
    {
        constexpr uint32_t wide = 2 * kBand;
        constexpr uint32_t tall = kAkkForms * kBand;
        constexpr uint32_t second = kAkkForms * 2 * kSquare;  // D_1^T, D_1'^T
        constexpr uint32_t rowElems = kAkkForms * 2 * kBlockElems;
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadSquares(c.A<float>(0), Inverse(c, lane), 0, kAkkForms, 1, 2 * kSquare);
        LoadSquares(c.A<float>(kSquare), Merged(c, lane), 0, kAkkForms, 1, 2 * kSquare);
        LoadSquares(c.A<float>(second), Inverse(c, lane), kAkkForms, kAkkForms, 1, kSquare);
        LoadFractals(c.B<float>(0), Below(c, lane, 2), 0, 2 * kSquare, 1, 2);
        LoadFractals(c.B<float>(1), Below(c, lane, 3), 0, 2 * kSquare, 1, 2);
        c.L0Loaded();
        const Wide tile = c.TakeTile();
        Product(tile, c.A<float>(0), c.B<float>(0), tall, wide, wide);
        Product(tile[rowElems], c.A<float>(second), c.B<float>(2 * kSquare), tall, wide, kBand);
        c.LeaveL0();
        c.TileReady();
        const auto trip = c.Slot<float>(lane, round, PrepareSlot::trips)[kTripHalf];
        for (uint32_t row = 0; row < 2; ++row) {
            StoreRows(trip[row * rowElems], tile[row * rowElems], tall, tall, wide, wide);
        }
        c.LeaveTile();
        TripSent(lane);
        for (uint32_t form = 0; form < kAkkForms; ++form) {
            LoadHalf(HalfTrip(c, lane)[form * 4 * kBlockElems], trip[form * 2 * kBlockElems],
                     rowElems);
        }
        TripLoaded(lane);
    }

    /// Two block rows [16, 32], `step` apart in GM, -> one Nz [32, 32]. MTE2.
    __aicore__ static inline void LoadHalf(const Wide &l1, const AscendC::GlobalTensor<float> &gm,
                                           uint32_t step)
    {
        AscendC::Nd2NzParams params;
        params.ndNum = 2;
        params.nValue = kBand;
        params.dValue = 2 * kBand;
        params.srcNdMatrixStride = step;
        params.srcDValue = 2 * kBand;
        params.dstNzC0Stride = 2 * kBand;
        params.dstNzNStride = 1;
        params.dstNzMatrixStride = kBand * kBlockF32;
        AscendC::DataCopy(l1, gm, params);
    }

    /// [D_2 0; X_32 D_3] T completes Akk, with T' Akk diag(beta). Both leave for L1, Akk for GM.
    __aicore__ inline void MergeHalves(CubeCore &c, uint32_t lane, const ChunkTask &task) const
    {
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kL1Finish + lane);
        c.TakeL0();
        LoadFractals(c.A<float>(0), Inverse(c, lane), InverseAt(2, kPlain), kSquare, 1);
        LoadFractals(c.A<float>(kSquare), Merged(c, lane), 2 * kSquare, kSquare, 1);
        LoadFractals(c.A<float>(2 * kSquare), Inverse(c, lane), InverseAt(3, kPlain), kSquare, 1);
        for (uint32_t column = 0; column < 2; ++column) {  // T, then T'
            LoadFractals(c.B<float>(column * kAkkForms * 2 * kSquare), HalfTrip(c, lane), column,
                         kAkkForms * 2 * kSquare, 2);
        }
        c.L0Loaded();
        for (uint32_t i = 0; i < 2 * kAkkForms; ++i) {
            const uint32_t column = i / kAkkForms;
            const uint32_t form = i % kAkkForms;
            const Wide t = c.B<float>(i * 2 * kSquare);
            Product(c.AkkBlock(lane, form, 2, column), c.A<float>(0), t, kBand, kBand, kBand);
            Product(c.AkkBlock(lane, form, 3, column), c.A<float>(kSquare), t, kBand, kBand,
                    2 * kBand);
        }
        c.LeaveL0();
        AkkReady(lane);
        if ((c.args.t.outputs & kOutAkk) != 0) {
            const uint64_t row = c.rounds.Walk().ValueRow(task.batch, task.head, task.token);
            StoreRows(GmAt<bfloat16_t>(c.args.akk)[row * kChunk], c.Akk(lane, kPlain), task.rows,
                      kChunk, kChunk, kChunk);
        }
        for (uint32_t form = 0; form < kAkkForms; ++form) {
            StoreNz(Rounded(c, lane, form), c.Akk(lane, form), kChunk, kChunk);
        }
        AscendC::SetFlag<AscendC::HardEvent::FIX_MTE1>(lane);
    }

    __aicore__ static inline void AkkReady(uint32_t lane)
    {
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(kAkkDone + lane);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(kAkkDone + lane);
    }

    __aicore__ inline void Wy(CubeCore &c, uint32_t lane, const ChunkTask &task) const
    {
        constexpr uint32_t strips = kDim / kFractal;
        constexpr uint32_t scaled = kBands * (kBands + 1) / 2;  // fractals of Akk in L0A
        constexpr uint32_t rest = kAkkForms * scaled;
        constexpr uint32_t values = kBands * strips;  // behind the keys in L0B
        AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE1>(lane);
        c.TakeL0();
        LoadOperands(c, lane, scaled, rest, values);
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kL1Finish + lane);
        c.L0Loaded();
        const uint64_t first = c.rounds.Walk().ValueRow(task.batch, task.head, task.token);
        for (uint32_t band = 0; band * kBand < task.rows; ++band) {
            const uint32_t akk = band * (band + 1) / 2;
            const uint32_t depth = (band + 1) * kBand;
            const Wide tile = c.TakeTile();
            const Wide u = tile[kBand * kDim];
            Product(u, c.A<bfloat16_t>(scaled + akk), c.B<bfloat16_t>(values), kBand, kDim, depth);
            Product(tile, c.A<bfloat16_t>(akk), c.B<bfloat16_t>(0), kBand, kDim, depth);
            AscendC::PipeBarrier<PIPE_M>();
            Multiply(u, c.A<bfloat16_t>(rest + band), c.B<bfloat16_t>(values + band * strips),
                     kBand, kDim, kBand, true);
            c.TileReady();
            const uint32_t rows = RowsIn(task.rows, band * kBand, kBand);
            const uint64_t at = (first + band * kBand) * kDim;
            StoreRows(GmAt<bfloat16_t>(c.args.w)[at], tile, rows, kBand, kDim, kDim);
            if ((c.args.t.outputs & kOutU) != 0) {
                StoreRows(GmAt<bfloat16_t>(c.args.u)[at], u, rows, kBand, kDim, kDim);
            }
            if ((c.args.t.outputs & kOutWideU) != 0) {
                StoreRows(GmAt<float>(c.args.uWide)[at], u, rows, kBand, kDim, kDim);
            }
            c.LeaveTile();
        }
        c.LeaveL0();
    }

    /// Akk, Akk diag(beta) and the rest of its diagonal; the keys, then v. MTE1.
    __aicore__ static inline void LoadOperands(CubeCore &c, uint32_t lane, uint32_t scaled,
                                               uint32_t rest, uint32_t values)
    {
        constexpr uint32_t strips = kDim / kFractal;
        const Narrow16 keys = c.L1<bfloat16_t>(lane, PrepareL1::keys, kChunkElems);
        const Narrow16 v = c.L1<bfloat16_t>(lane, PrepareL1::values, kChunkElems);
        for (uint32_t band = 0; band < kBands; ++band) {
            const uint32_t akk = band * (band + 1) / 2;
            LoadFractals(c.A<bfloat16_t>(akk), Rounded(c, lane, kPlain), band, band + 1, kBands);
            LoadFractals(c.A<bfloat16_t>(scaled + akk), Rounded(c, lane, kScaled), band, band + 1,
                         kBands);
            LoadFractals(c.B<bfloat16_t>(band * strips), keys, band, strips, kBands, 1, true);
            LoadFractals(c.B<bfloat16_t>(values + band * strips), v, band, strips, kBands, 1, true);
        }
        LoadFractals(c.A<bfloat16_t>(rest), Rest(c, lane), 0, kBands, 1);
    }
};

}  // namespace fla
#endif  // FLA_PREPARE_MERGE_CUBE_H
