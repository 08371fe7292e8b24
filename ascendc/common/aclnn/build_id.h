// SPDX-License-Identifier: Apache-2.0
// Every library of a build carries the build's id, as a symbol for loaders and as an ELF note for
// readers.
#ifndef FLA_COMMON_ACLNN_BUILD_ID_H
#define FLA_COMMON_ACLNN_BUILD_ID_H

extern "C" __attribute__((visibility("default"))) const char fla_build_id[33];

#endif  // FLA_COMMON_ACLNN_BUILD_ID_H
