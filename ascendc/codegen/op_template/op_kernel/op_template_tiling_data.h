// SPDX-License-Identifier: Apache-2.0
// What op_template's plan tells its kernel. The only header that host and device share.
#ifndef OP_TEMPLATE_TILING_DATA_H
#define OP_TEMPLATE_TILING_DATA_H

#include <cstdint>

struct OpTemplateTilingData {
    uint64_t elements;
    float scale;
    uint32_t tiles;  // of kTileElements, the last one cut
};

constexpr uint32_t kOpTemplateTileElements = 8192;  // 32 KB of fp32

#endif  // OP_TEMPLATE_TILING_DATA_H
