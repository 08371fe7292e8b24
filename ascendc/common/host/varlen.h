// SPDX-License-Identifier: Apache-2.0
// Packed sequences on the host: offsets, chunk counts and the canonical order of chunks.
#ifndef FLA_COMMON_HOST_VARLEN_H
#define FLA_COMMON_HOST_VARLEN_H

#include <cstdint>
#include <string>
#include <vector>

namespace fla
{

using Offsets = std::vector<int64_t>;

/// What is wrong with sequence offsets over `tokens` rows ("cu_seqlens[3] = 7 is below ..."), or
/// "". Offsets start at 0, end at `tokens` and never decrease; an empty sequence is legal.
std::string OffsetsFault(const Offsets &offsets, int64_t tokens);

/// The same for the edges of windows inside of `tokens` rows: each window holds a token or more, and
/// the first may begin behind row 0, the last end before `tokens`.
std::string WindowsFault(const Offsets &edges, int64_t tokens);

/// Chunks of all sequences together. A chunk never spans two sequences; an empty one has none.
int64_t CountChunks(const Offsets &offsets, int64_t chunkSize);

/// Flat (sequence, chunk of that sequence) pairs, sequence by sequence.
std::vector<int64_t> CanonicalChunkIndices(const Offsets &offsets, int64_t chunkSize);

}  // namespace fla
#endif  // FLA_COMMON_HOST_VARLEN_H
