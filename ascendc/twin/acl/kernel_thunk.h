// SPDX-License-Identifier: Apache-2.0
// From the argument array of a launch to the parameters of a kernel entry.
#ifndef FLA_TWIN_ACL_KERNEL_THUNK_H
#define FLA_TWIN_ACL_KERNEL_THUNK_H

#include <cstddef>
#include <utility>

namespace twin
{

template <auto kKernel>
struct Thunk;

/// Thunk<&kernel>::Call(args) calls kernel(args[0], args[1], ...).
template <typename... Args, void (*kKernel)(Args...)>
struct Thunk<kKernel> {
    static void Call(void *const *args) { Apply(args, std::index_sequence_for<Args...>{}); }

  private:
    template <size_t... kIndex>
    static void Apply(void *const *args, std::index_sequence<kIndex...>)
    {
        kKernel(static_cast<Args>(args[kIndex])...);
    }
};

}  // namespace twin
#endif  // FLA_TWIN_ACL_KERNEL_THUNK_H
