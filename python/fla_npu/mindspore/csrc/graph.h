// SPDX-License-Identifier: Apache-2.0
// What the bridge module offers for graphs; see graph.cc.
#ifndef FLA_NPU_BRIDGE_GRAPH_H
#define FLA_NPU_BRIDGE_GRAPH_H

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace fla_bridge
{

/// Adds `record` to the module.
void DefineGraph(py::module_ *module);

}  // namespace fla_bridge
#endif  // FLA_NPU_BRIDGE_GRAPH_H
