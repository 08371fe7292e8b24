// SPDX-License-Identifier: Apache-2.0
// What @op@'s plan tells its kernel. The only header that host and device share.
#ifndef @OP@_TILING_DATA_H
#define @OP@_TILING_DATA_H

#include <cstdint>

struct @OpType@TilingData {
    uint64_t elements;
    float scale;
    uint32_t tiles;  // of kTileElements, the last one cut
};

constexpr uint32_t k@OpType@TileElements = 8192;  // 32 KB of fp32

#endif  // @OP@_TILING_DATA_H
