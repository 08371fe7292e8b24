// SPDX-License-Identifier: Apache-2.0
// CANN's graph-side entries of an operator (tiling, shape and dtype inference), driven by its
// contract. The generated files only say which contract and which plan. Needs the host headers of a
// CANN toolkit.
#ifndef FLA_COMMON_CANN_HOST_ENTRY_H
#define FLA_COMMON_CANN_HOST_ENTRY_H

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

/// Output shapes from the dimension letters; -1 everywhere while an input shape is unknown.
ge::graphStatus InferShapes(const Contract &contract, gert::InferShapeContext &context);

/// Every output has the first dtype that its contract names.
ge::graphStatus InferDataTypes(const Contract &contract, gert::InferDataTypeContext &context);

}  // namespace cann
}  // namespace fla
#endif  // FLA_COMMON_CANN_HOST_ENTRY_H
