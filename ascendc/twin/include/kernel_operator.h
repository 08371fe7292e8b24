// SPDX-License-Identifier: Apache-2.0
// The header every Ascend C kernel includes, as the twin provides it. Same name and same words as
// CANN's.
#ifndef FLA_TWIN_KERNEL_OPERATOR_H
#define FLA_TWIN_KERNEL_OPERATOR_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Qualifiers of the device compiler. There is one address space here.
#define __global__
#define __aicore__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__

using GM_ADDR = __gm__ uint8_t *;

#include "../api/tensor.h"
#include "../api/pipe.h"
#include "../api/sync.h"
#include "../api/data_copy.h"
#include "../api/vector.h"
#include "../api/cube.h"
#include "../api/fixpipe.h"

// Constants, as on the device: the branch of the other core type is not compiled into this object.
#define ASCEND_IS_AIC constexpr(::twin::CoreType::TWIN_CORE == ::twin::CoreType::AIC)
#define ASCEND_IS_AIV constexpr(::twin::CoreType::TWIN_CORE == ::twin::CoreType::AIV)

// On the device these are read by a pass before the compiler; here the entry returns on cores the
// type has not.
namespace twin
{
constexpr KernelType KERNEL_TYPE_AIV_ONLY = KernelType::kAivOnly;
constexpr KernelType KERNEL_TYPE_AIC_ONLY = KernelType::kAicOnly;
constexpr KernelType KERNEL_TYPE_MIX_AIV_1_0 = KernelType::kMixAiv10;
constexpr KernelType KERNEL_TYPE_MIX_AIC_1_0 = KernelType::kMixAic10;
constexpr KernelType KERNEL_TYPE_MIX_AIC_1_1 = KernelType::kMixAic11;
constexpr KernelType KERNEL_TYPE_MIX_AIC_1_2 = KernelType::kMixAic12;
}  // namespace twin
#define KERNEL_TASK_TYPE_DEFAULT(type)      \
    if (!::twin::EnterKernel(::twin::type)) \
    return

// Tiling data is a plain struct that the host wrote and GM holds.
#define REGISTER_TILING_DEFAULT(Struct) using TwinTilingStruct [[maybe_unused]] = Struct
#define GET_TILING_DATA_WITH_STRUCT(Struct, name, tiling) \
    Struct name;                                          \
    ::AscendC::TwinReadTiling(&name, sizeof(Struct), tiling)
#define GET_TILING_DATA(name, tiling) GET_TILING_DATA_WITH_STRUCT(TwinTilingStruct, name, tiling)

namespace AscendC
{
inline namespace TWIN_NS
{

inline void TwinReadTiling(void *to, uint32_t bytes, const uint8_t *tiling, TWIN_HERE)
{
    if constexpr (twin::kChecked) {
        twin::CheckedReadTiling(to, tiling, bytes, where);
    } else {
        std::memcpy(to, tiling, bytes);
    }
}

/// The launcher passes the user part already, as the generated wrapper of the operator project
/// does.
inline GM_ADDR GetUserWorkspace(GM_ADDR workspace)
{
    return workspace;
}

}  // namespace TWIN_NS
}  // namespace AscendC
#endif  // FLA_TWIN_KERNEL_OPERATOR_H
