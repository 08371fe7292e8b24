// SPDX-License-Identifier: Apache-2.0
#include "varlen.h"

#include <sstream>

#include "plan.h"

namespace fla
{

std::string OffsetsFault(const Offsets &offsets, int64_t tokens)
{
    std::ostringstream fault;
    if (offsets.size() < 2) {
        fault << "cu_seqlens has " << offsets.size() << " entries; one sequence needs 2";
    } else if (offsets.front() != 0) {
        fault << "cu_seqlens[0] = " << offsets.front() << "; the first offset must be 0";
    } else {
        for (size_t i = 1; i < offsets.size(); ++i) {
            if (offsets[i] < offsets[i - 1]) {
                fault << "cu_seqlens[" << i << "] = " << offsets[i] << " is below cu_seqlens["
                      << i - 1 << "] = " << offsets[i - 1] << "; offsets must not decrease";
                return fault.str();
            }
        }
        if (offsets.back() != tokens) {
            fault << "cu_seqlens ends at " << offsets.back() << ", but T = " << tokens
                  << "; the last offset must be T";
        }
    }
    return fault.str();
}

std::string WindowsFault(const Offsets &edges, int64_t tokens)
{
    std::ostringstream fault;
    if (edges.size() < 2) {
        fault << "cu_seqlens has " << edges.size() << " entries; one window needs 2";
    } else if (edges.front() < 0) {
        fault << "cu_seqlens[0] = " << edges.front() << "; a window begins at token 0 or later";
    } else {
        for (size_t i = 1; i < edges.size(); ++i) {
            if (edges[i] <= edges[i - 1]) {
                fault << "cu_seqlens[" << i << "] = " << edges[i] << " is not above cu_seqlens["
                      << i - 1 << "] = " << edges[i - 1] << "; a window holds one token or more";
                return fault.str();
            }
        }
        if (edges.back() > tokens) {
            fault << "cu_seqlens[" << edges.size() - 1 << "] = " << edges.back()
                  << ", but T = " << tokens << "; windows lie inside of the T tokens given";
        }
    }
    return fault.str();
}

int64_t CountChunks(const Offsets &offsets, int64_t chunkSize)
{
    int64_t chunks = 0;
    for (size_t i = 1; i < offsets.size(); ++i) {
        chunks += CeilDiv(offsets[i] - offsets[i - 1], chunkSize);
    }
    return chunks;
}

std::vector<int64_t> CanonicalChunkIndices(const Offsets &offsets, int64_t chunkSize)
{
    std::vector<int64_t> indices;
    indices.reserve(2 * CountChunks(offsets, chunkSize));
    for (size_t i = 1; i < offsets.size(); ++i) {
        const int64_t chunks = CeilDiv(offsets[i] - offsets[i - 1], chunkSize);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            indices.push_back(static_cast<int64_t>(i) - 1);
            indices.push_back(chunk);
        }
    }
    return indices;
}

}  // namespace fla
