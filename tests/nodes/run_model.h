// run_model: a bound model through the importer, `specialize` and the kernels, node by node. No
// schedule and no memory plan: each value has separate bytes, filled with garbage before.
//
// kInputs lets all inputs be data. kNeeded binds as constants the inputs that an operator must know
// while planning (OpDef::constant_inputs).
//
// `visit`, if any, is called with the graph that ran and its values.
//
// Ownership: values; the registry must outlive the call. Threads: one at a time (a file in the
// temporary folder). Errors: kInput; `planned` tells whether planning got through.
#pragma once

#include <functional>

#include "kernels/core/op_def.h"
#include "tests/nodes/bound_model.h"
#include "tests/nodes/interpreter.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

enum class Known { kInputs, kNeeded };

using Visit = std::function<void(const Graph& graph, Interpreter& values)>;

Result<std::vector<Constant>> run_model(const BoundModel& bound, const Registry& registry,
                                        Known known, bool& planned, const Visit& visit = {});

}  // namespace ofsdp::nodes
