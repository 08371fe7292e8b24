// SPDX-License-Identifier: Apache-2.0
// CANN's graph-side entries of an operator (tiling, shape and dtype inference), driven by its
// contract. The generated files only say which contract and which plan. Needs the host headers of a
// CANN toolkit.
#ifndef FLA_COMMON_CANN_HOST_ENTRY_H
#define FLA_COMMON_CANN_HOST_ENTRY_H

#include <string>
#include <vector>

#include "contract.h"
#include "exe_graph/runtime/infer_datatype_context.h"
#include "exe_graph/runtime/infer_shape_context.h"
#include "exe_graph/runtime/tiling_context.h"

namespace fla
{

using PlanOp = Plan (*)(const OpCall &call, const ChipSpec &chip);

namespace cann
{

/// Context -> call -> plan -> tiling buffer, block dim, schedule mode, workspace.
ge::graphStatus Tiling(const Contract &contract, PlanOp plan, gert::TilingContext &context);

/// Inputs that are written: outputs of the same names, too, behind the others.
using Names = std::vector<std::string>;

/// Output shapes from the dimension letters; -1 everywhere while an input shape is unknown.
ge::graphStatus InferShapes(const Contract &contract, gert::InferShapeContext &context,
                            const Names &mutated = {});

/// Every output has the first dtype that its contract names; a written input keeps its own.
ge::graphStatus InferDataTypes(const Contract &contract, gert::InferDataTypeContext &context,
                               const Names &mutated = {});

}  // namespace cann
}  // namespace fla
#endif  // FLA_COMMON_CANN_HOST_ENTRY_H
