// SPDX-License-Identifier: Apache-2.0
// The libraries of the recorded toolkit. libregister keeps what is registered; the others are empty.
#include <string>

namespace
{
std::string &Lines()
{
    static std::string lines;
    return lines;
}
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void standin_register(const char *kind, const char *name,
                                                             const char *json)
{
    Lines() += std::string(kind) + "\t" + name + "\t" + json + "\n";
}
/// Every registration so far, one a line: kind, op type, JSON.
__attribute__((visibility("default"))) const char *standin_registered()
{
    return Lines().c_str();
}
}
