/* SPDX-License-Identifier: Apache-2.0
 *
 * fold - the affine maps of several ranks, one after another, onto a state of zeros
 *
 *   R = E[s0];   R = M[s] @ R + E[s]   for the ranks s behind s0;   h = R, or its transpose
 *
 * Shapes  [E | M] of a rank and head [128, 128 + 128] fp32 or bf16; R, h [128 K, 128 V]; fp32 inside
 * Items   Columns of R do not depend on each other. An item is a head and 64 columns (or 32, where
 *         that fills more groups); a group serves its two halves, the lanes, in turn: while R of one
 *         goes over GM (fp32 has no way from L0C to L1), the cube works for the other.
 * Steps   A step of an item adds one map: per 32 rows of R  I @ E, then + M @ R, both on the cube,
 *         so that no vector core stands between two steps. I @ E is exact. With one map alone there
 *         is no product; its E is the result.
 * V first Everything is turned: R^T [V, K] = R^T @ M^T + E^T @ I. The tile of a lane is the left
 *         operand instead of the right one and the rows of M are right ones; no other tile changes
 *         its place, and R^T leaves L0C as the result wants it.
 * Vector  writes I once; with bf16 maps it widens them into a ring of slots that the cube reads in
 *         place of ag_hm; without maps it writes the zeros.
 *
 * L1      two maps M 64K and E 2 x 16K in turn; R 16K per lane; I 4K: 228K
 * L0      tiles R and E of a lane 2 x 16K on one side; on the other I 4K and 32 rows of M, 16K, in
 *         turn. L0C 16K per lane
 * UB      bf16 only: half the rows of a map as they come 24K, widened 48K, both in turn
 *
 * Flags   kUnitReady  V -> C  I is in GM, once; kWidened, a ring  V -> C  a slot is filled, C -> V
 *         it has been read. M_MTE1 frees a place for rows of M. A lane's tiles in L0 need no flag of
 *         their own: the other lane's step lies between, and its rows come in after the places' flags
 * Limits  K = V = 128. I @ E spreads an infinity of E to the 32 rows beside it, as NaN
 */
#ifndef MERGE_FWD_BWD_KERNEL_FOLD_H
#define MERGE_FWD_BWD_KERNEL_FOLD_H

#include "kernel_operator.h"

#include "cross_core.h"
#include "local_memory.h"
#include "merge_fwd_bwd_kernel_tiling_data.h"

namespace fla
{

constexpr uint32_t kMapCols = 2 * kDim;  // of [E | M]
constexpr uint32_t kFoldRows = 32;       // rows of R that one product makes
constexpr uint32_t kFoldBlocks = kDim / kFoldRows;
constexpr uint32_t kFoldMostColumns = 32;  // of a lane
constexpr uint32_t kFoldTileElems = kDim * kFoldMostColumns;
constexpr uint32_t kUnitElems = kFoldRows * kFoldRows;

/// Cross-core flags.
constexpr uint16_t kUnitReady = 0;
using WidenedFlags = RingFlags<1, kFoldRing>;

/// GM addresses in kernel order, and the tiling data. (GM_ADDR is a macro with a `*`: one
/// declaration each.)
struct FoldArgs {
    GM_ADDR agHm;
    GM_ADDR h;
    GM_ADDR workspace;
    MergeFwdBwdKernelTilingData t;
};

/// Byte offsets in L1, and in L0 on the side of the lanes' tiles and on that of the rows of M.
struct FoldL1 {
    static constexpr uint32_t tile = kFoldTileElems * sizeof(float);
    static constexpr uint32_t map = 0;
    static constexpr uint32_t value = map + 2 * kStateElems * sizeof(float);  // [turn][lane]
    static constexpr uint32_t running = value + 2 * kFoldLanes * tile;
    static constexpr uint32_t unit = running + kFoldLanes * tile;
    static constexpr uint32_t end = unit + kUnitElems * sizeof(float);
};
struct FoldL0 {
    static constexpr uint32_t lane = 2 * FoldL1::tile;  // R, E
    static constexpr uint32_t tiles = kFoldLanes * lane;
    static constexpr uint32_t place = kFoldRows * kDim * sizeof(float);
    static constexpr uint32_t unit = 2 * place;
    static constexpr uint32_t rows = unit + kUnitElems * sizeof(float);
    static constexpr uint32_t sums = kFoldLanes * FoldL1::tile;
};
static_assert(FoldL1::end <= kL1Bytes, "fold: the L1 plan is too big");
static_assert(FoldL0::tiles <= kL0aBytes && FoldL0::tiles <= kL0bBytes &&
                  FoldL0::rows <= kL0aBytes && FoldL0::rows <= kL0bBytes &&
                  FoldL0::sums <= kL0cBytes,
              "fold: the L0 plan is too big");
static_assert(kFoldUnitBytes == kUnitElems * sizeof(float) && kFoldRunningBytes == FoldL1::tile,
              "fold: the plan reserves another workspace");

/// The steps of one group, item after item; both bodies walk them alike.
class FoldWalk
{
  public:
    __aicore__ inline void Init(const MergeFwdBwdKernelTilingData &t, uint32_t group)
    {
        t_ = t;
        parts_ = kDim / (kFoldLanes * t.laneColumns);
        group_ = group;
        groups_ = static_cast<uint32_t>(AscendC::GetBlockNum());
        items_ = (t.heads * parts_ - group + groups_ - 1) / groups_;
    }

    __aicore__ inline uint32_t Items() const { return items_; }
    /// Steps of an item: one map each, but the first map only starts the next one's step.
    __aicore__ inline uint32_t Steps() const { return Multiplies() ? t_.count - 1 : 1; }
    __aicore__ inline bool Multiplies() const { return t_.count > 1; }

    /// First element of [E | M] in ag_hm: the map of a step, or the one an item starts from.
    __aicore__ inline uint64_t MapOf(uint32_t item, uint32_t step) const
    {
        return MapAt(item, Multiplies() ? step + 1 : 0);
    }
    __aicore__ inline uint64_t StartOf(uint32_t item) const { return MapAt(item, 0); }

    /// First of the columns of V that an item serves.
    __aicore__ inline uint32_t Column(uint32_t item) const
    {
        return Number(item) % parts_ * kFoldLanes * t_.laneColumns;
    }
    __aicore__ inline uint32_t Head(uint32_t item) const { return Number(item) / parts_; }

    /// Elements of a row of a widened map: the item's columns of E, then M.
    __aicore__ inline uint32_t WidenedCols() const { return kFoldLanes * t_.laneColumns + kDim; }

  private:
    __aicore__ inline uint32_t Number(uint32_t item) const { return group_ + item * groups_; }
    __aicore__ inline uint64_t MapAt(uint32_t item, uint32_t index) const
    {
        const uint32_t rank = t_.backwards ? t_.first - index : t_.first + index;
        return (static_cast<uint64_t>(rank) * t_.heads + Head(item)) * kDim * kMapCols;
    }

    MergeFwdBwdKernelTilingData t_;
    uint32_t parts_ = 0;
    uint32_t group_ = 0;
    uint32_t groups_ = 0;
    uint32_t items_ = 0;
};

/// Workspace of a group: I, R of the lanes, the ring.
__aicore__ inline GM_ADDR FoldWorkspace(const FoldArgs &args, uint32_t group)
{
    const uint32_t bytes = args.t.isBf16 ? kFoldGroupBytes : kFoldNarrowBytes;
    return args.workspace + static_cast<uint64_t>(group) * bytes;
}

}  // namespace fla
#endif  // MERGE_FWD_BWD_KERNEL_FOLD_H
