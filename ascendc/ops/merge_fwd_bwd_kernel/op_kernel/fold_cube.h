// SPDX-License-Identifier: Apache-2.0
// Cube body of the fold stage: every step of every item. Maths, memory plan and flags: fold.h.
#ifndef MERGE_FWD_BWD_KERNEL_FOLD_CUBE_H
#define MERGE_FWD_BWD_KERNEL_FOLD_CUBE_H

#include "fold.h"
#include "fractal_tile.h"

namespace fla
{

class FoldCube
{
  public:
    __aicore__ inline void Run(AscendC::TPipe &pipe, const FoldArgs &args)
    {
        if (args.t.count == 0) {
            return;
        }
        Open(pipe, args);
        const uint32_t steps = walk_.Steps();
        const uint32_t end = walk_.Items() * steps;
        FetchMap(0);
        Start(0);
        for (uint32_t i = 0; i < end; ++i) {
            if (i % steps != 0) {
                FetchRunning();
            }
            if (i + 1 < end) {
                FetchMap(i + 1);
            }
            for (uint32_t lane = 0; lane < kFoldLanes; ++lane) {
                Step(i, lane);
            }
            if (i + 1 < end && (i + 1) % steps == 0) {
                Start((i + 1) / steps);
            }
        }
        TakeAllBack();
    }

  private:
    using Gm = AscendC::GlobalTensor<float>;
    // Event ids. L1 (MTE2_MTE1, MTE1_MTE2): maps in turn, then R per lane. M_MTE1 ids 0..2 belong to
    // the framework.
    static constexpr int32_t kMapIn = 0;
    static constexpr int32_t kRunningIn = 2;
    static constexpr int32_t kPlaceFree = 3;
    static constexpr uint32_t kDepth = kDim / kBlockF32;  // fractals of 16 rows of M

    /// Where the maps of an item are, for its first column.
    struct Source {
        Gm value, map;
        uint32_t rowStep;
    };

    __aicore__ inline void Open(AscendC::TPipe &pipe, const FoldArgs &args)
    {
        args_ = args;
        columns_ = args.t.laneColumns;
        const uint32_t group = AscendC::GetBlockIdx();
        walk_.Init(args.t, group);
        workspace_ = FoldWorkspace(args, group);
        buffers_.Init(pipe, FoldL1::end, kL0aBytes, kL0bBytes, FoldL0::sums);
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kPlaceFree + i);
            AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kMapIn + i);
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kRunningIn + i);
        }
        AscendC::CrossCoreWaitFlag(kUnitReady);
        const Wide unit = L1(FoldL1::unit, kUnitElems);
        LoadBands(unit, GmAt<float>(workspace_), kFoldRows, kFoldRows, kFoldRows);
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kMapIn);
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kMapIn);
        LoadRows(Rows(FoldL0::unit, kUnitElems), unit, kFoldRows / kBlockF32);
    }

    /// Leaves every flag at zero.
    __aicore__ inline void TakeAllBack()
    {
        for (int32_t i = 0; i < 2; ++i) {
            AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kPlaceFree + i);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kMapIn + i);
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kRunningIn + i);
        }
    }

    __aicore__ inline Wide L1(uint32_t bytes, uint32_t elems)
    {
        return View<float>(buffers_.l1, bytes, elems);
    }
    __aicore__ inline Wide Map(uint32_t turn)
    {
        return L1(FoldL1::map + turn * kStateElems * sizeof(float), kStateElems);
    }
    __aicore__ inline Wide Value(uint32_t turn, uint32_t lane)
    {
        return L1(FoldL1::value + (turn * kFoldLanes + lane) * FoldL1::tile, kFoldTileElems);
    }
    __aicore__ inline Wide Running(uint32_t lane)
    {
        return L1(FoldL1::running + lane * FoldL1::tile, kFoldTileElems);
    }
    /// L0 on the side of the lanes' tiles: right operands, or left ones with V first.
    __aicore__ inline Wide Tiles(uint32_t bytes, uint32_t elems)
    {
        return args_.t.stateVFirst ? View<float>(buffers_.l0a, bytes, elems)
                                   : View<float>(buffers_.l0b, bytes, elems);
    }
    /// L0 on the other side.
    __aicore__ inline Wide Rows(uint32_t bytes, uint32_t elems)
    {
        return args_.t.stateVFirst ? View<float>(buffers_.l0b, bytes, elems)
                                   : View<float>(buffers_.l0a, bytes, elems);
    }
    __aicore__ inline Wide Sum(uint32_t lane, uint32_t block)
    {
        const uint32_t elems = kFoldRows * columns_;
        return View<float>(buffers_.l0c, lane * FoldL1::tile + block * elems * sizeof(float),
                           elems);
    }
    __aicore__ inline Gm RunningGm(uint32_t lane) const
    {
        return GmAt<float>(workspace_ + kFoldUnitBytes + lane * kFoldRunningBytes);
    }

    /// [rows, cols] as bands of 16 rows. MTE2.
    __aicore__ static inline void LoadBands(const Wide &l1, const Gm &gm, uint32_t rows,
                                            uint32_t cols, uint32_t rowStep)
    {
        LoadMatrices(l1, gm, rows / kFractal, kFractal, cols, rowStep, kFractal * rowStep,
                     kFractal * cols);
    }

    /// A map in ag_hm, or with bf16 the next one that the vector cores have widened.
    __aicore__ inline Source TakeMap(uint64_t at, uint32_t item)
    {
        if (args_.t.isBf16) {
            const uint64_t slot = kFoldNarrowBytes + widened_.Take() * kFoldWidenedBytes;
            const Gm gm = GmAt<float>(workspace_ + slot);
            return {gm, gm[kFoldLanes * columns_], walk_.WidenedCols()};
        }
        const Gm gm = GmAt<float>(args_.agHm);
        return {gm[at + walk_.Column(item)], gm[at + kDim], kMapCols};
    }
    __aicore__ inline void LeaveMap()
    {
        if (args_.t.isBf16) {
            widened_.Release<PIPE_MTE2>();
        }
    }

    /// E and M of step `i`.
    __aicore__ inline void FetchMap(uint32_t i)
    {
        const uint32_t item = i / walk_.Steps();
        const int32_t turn = i % 2;
        const Source from = TakeMap(walk_.MapOf(item, i % walk_.Steps()), item);
        AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kMapIn + turn);
        for (uint32_t lane = 0; lane < kFoldLanes; ++lane) {
            LoadBands(Value(turn, lane), from.value[lane * columns_], kDim, columns_, from.rowStep);
        }
        if (walk_.Multiplies()) {
            LoadBands(Map(turn), from.map, kDim, kDim, from.rowStep);
        }
        LeaveMap();
        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kMapIn + turn);
    }

    /// R of the first step of an item: E of its first map.
    __aicore__ inline void Start(uint32_t item)
    {
        if (!walk_.Multiplies()) {
            return;
        }
        const Source from = TakeMap(walk_.StartOf(item), item);
        for (uint32_t lane = 0; lane < kFoldLanes; ++lane) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kRunningIn + lane);
            LoadBands(Running(lane), from.value[lane * columns_], kDim, columns_, from.rowStep);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kRunningIn + lane);
        }
        LeaveMap();
        isStart_ = true;
    }

    /// R of a later step: what the one before has left in GM, [K, columns], or turned.
    __aicore__ inline void FetchRunning()
    {
        const bool turned = args_.t.stateVFirst;
        for (uint32_t lane = 0; lane < kFoldLanes; ++lane) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(kRunningIn + lane);
            AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE2>(lane);
            LoadBands(Running(lane), RunningGm(lane), turned ? columns_ : kDim,
                      turned ? kDim : columns_, turned ? kDim : columns_);
            AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(kRunningIn + lane);
        }
        isStart_ = false;
    }

    /// 32 rows of M or of I, `depth` fractals each 16: left operand, or right one turned. MTE1.
    __aicore__ inline void LoadRows(const Wide &l0, const Wide &l1, uint32_t depth) const
    {
        constexpr uint32_t bands = kFoldRows / kFractal;
        if (!args_.t.stateVFirst) {
            LoadFractals(l0, l1, 0, bands * depth, 1);
            return;
        }
        for (uint32_t band = 0; band < bands; ++band) {
            LoadFractals(l0[band * kFractalF32], l1, band * depth, depth, 1, bands);
        }
    }

    /// `rows` rows of a lane's tile [rows, columns]: right operand, or left one turned. MTE1.
    __aicore__ inline void LoadTile(const Wide &l0, const Wide &l1, uint32_t rows) const
    {
        const uint32_t squares = columns_ / kFractal;
        for (uint32_t band = 0; band < rows / kFractal; ++band) {
            if (args_.t.stateVFirst) {
                LoadSquares(l0[band * kSquare * kFractalF32], l1, band * squares, squares, 1,
                            rows / kBlockF32);
            } else {
                LoadSquares(l0[band * kSquare * squares * kFractalF32], l1, band * squares, squares,
                            1, 1, squares);
            }
        }
    }

    /// E of a lane, by blocks of 32 rows, and R. MTE1.
    __aicore__ inline void LoadLane(uint32_t i, uint32_t lane)
    {
        const Wide tiles = Tiles(lane * FoldL0::lane, 2 * kFoldTileElems);
        const uint32_t block = kFoldRows * columns_;
        for (uint32_t b = 0; b < kFoldBlocks; ++b) {
            LoadTile(tiles[kFoldTileElems + b * block], Value(i % 2, lane)[b * block], kFoldRows);
        }
        if (!walk_.Multiplies()) {
            return;
        }
        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kRunningIn + lane);
        if (args_.t.stateVFirst && !isStart_) {
            LoadFractals(tiles, Running(lane), 0, columns_ / kFractal * kDepth, 1);
        } else {
            LoadTile(tiles, Running(lane), kDim);
        }
        AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kRunningIn + lane);
    }

    /// The next place for rows of M, free.
    __aicore__ inline void TakePlace() const
    {
        AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kPlaceFree + place_);
    }
    __aicore__ inline void LeavePlace()
    {
        AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kPlaceFree + place_);
        place_ ^= 1;
    }

    /// Step `i` for one lane.
    __aicore__ inline void Step(uint32_t i, uint32_t lane)
    {
        if (lane == 0) {
            AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(kMapIn + i % 2);
        }
        TakePlace();
        LoadLane(i, lane);
        for (uint32_t block = 0; block < (walk_.Multiplies() ? kFoldBlocks : 1); ++block) {
            if (block > 0) {
                TakePlace();
            }
            const Wide rows = Rows(place_ * FoldL0::place, kFoldRows * kDim);
            if (walk_.Multiplies()) {
                LoadRows(rows, Map(i % 2)[block * kFoldRows * kDim], kDepth);
            }
            AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(place_);
            AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(place_);
            if (block == 0) {
                AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(lane);
                AddValues(lane);
            }
            if (walk_.Multiplies()) {
                const Wide running = Tiles(lane * FoldL0::lane, kFoldTileElems);
                Fold(Sum(lane, block), rows, running, kDim, true);
            }
            LeavePlace();
        }
        if (lane + 1 == kFoldLanes) {
            AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(kMapIn + i % 2);
        }
        AscendC::SetFlag<AscendC::HardEvent::M_FIX>(lane);
        AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(lane);
        Store(i, lane);
        AscendC::SetFlag<AscendC::HardEvent::FIX_M>(lane);
    }

    /// R = I @ E.
    __aicore__ inline void AddValues(uint32_t lane)
    {
        const Wide unit = Rows(FoldL0::unit, kUnitElems);
        const Wide values = Tiles(lane * FoldL0::lane + FoldL1::tile, kFoldTileElems);
        for (uint32_t block = 0; block < kFoldBlocks; ++block) {
            Fold(Sum(lane, block), unit, values[block * kFoldRows * columns_], kFoldRows, false);
        }
        AscendC::PipeBarrier<PIPE_M>();
    }

    /// rows @ tile, or its transpose. M.
    __aicore__ inline void Fold(const Wide &sum, const Wide &rows, const Wide &tile, uint32_t depth,
                                bool add) const
    {
        const bool turned = args_.t.stateVFirst;
        const Wide left = turned ? tile : rows;
        const Wide right = turned ? rows : tile;
        const uint32_t m = turned ? columns_ : kFoldRows;
        const uint32_t n = turned ? kFoldRows : columns_;
        if (add) {
            AddProduct(sum, left, right, m, n, depth);
        } else {
            Product(sum, left, right, m, n, depth);
        }
    }

    /// R to GM: to the lane's place in the workspace, or as the result.
    __aicore__ inline void Store(uint32_t i, uint32_t lane)
    {
        const uint32_t item = i / walk_.Steps();
        if ((i + 1) % walk_.Steps() != 0) {
            StoreBlocks(RunningGm(lane), lane, args_.t.stateVFirst ? kDim : columns_);
            AscendC::SetFlag<AscendC::HardEvent::FIX_MTE2>(lane);
            return;
        }
        const uint32_t column = walk_.Column(item) + lane * columns_;
        const uint64_t at = static_cast<uint64_t>(walk_.Head(item)) * kStateElems +
                            (args_.t.stateVFirst ? column * kDim : column);
        if (args_.t.isBf16) {
            StoreBlocks(GmAt<bfloat16_t>(args_.h)[at], lane, kDim);
        } else {
            StoreBlocks(GmAt<float>(args_.h)[at], lane, kDim);
        }
    }

    template <typename T>
    __aicore__ inline void StoreBlocks(const AscendC::GlobalTensor<T> &gm, uint32_t lane,
                                       uint32_t stride)
    {
        for (uint32_t block = 0; block < kFoldBlocks; ++block) {
            const uint32_t first = block * kFoldRows;
            if (args_.t.stateVFirst) {
                StoreRows(gm[first], Sum(lane, block), columns_, columns_, kFoldRows, stride);
            } else {
                StoreRows(gm[first * stride], Sum(lane, block), kFoldRows, kFoldRows, columns_,
                          stride);
            }
        }
    }

    FoldArgs args_;
    FoldWalk walk_;
    GM_ADDR workspace_;
    uint32_t columns_ = 0;  // of a lane
    int32_t place_ = 0;     // of rows of M in L0
    bool isStart_ = false;  // R in L1 is a start, [K, columns] whatever the order of the result
    RingConsumer<WidenedFlags> widened_;
    CubeBuffers buffers_;
};

}  // namespace fla
#endif  // MERGE_FWD_BWD_KERNEL_FOLD_CUBE_H
