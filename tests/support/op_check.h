// Checks of one operator against its reference: the definition of conformance. Each returns the
// findings, one a line, and "" without any.
//
//   check_definition  samples are there, and a kernel, `view` or body, an infer and a reference
//   check_kernels     every implementation that accepts the sample, in every layout that the
//                     LayoutRule allows,
//                     apart and in place: values within tolerance of the reference, the same bits
//                     when run again over other garbage, inputs unchanged, nothing written outside
//   check_pitched     the same with a pitch (TensorDesc::pitch): for each operand alone, for all
//                     with one shape, for all; `taken` counts the accepted problems
//   check_gradient    the gradient that `grad` emits, or the nodes of a body do (body_graph.h), by
//                     references in double, against central differences of the reference; and
//                     that every emitted node has a kernel
#pragma once

#include <string>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::testing {

std::string check_definition(const OpDef& op);
std::string check_kernels(const OpDef& op, const SampleCase& sample);
std::string check_pitched(const OpDef& op, const SampleCase& sample, int& taken);
std::string check_gradient(const Registry& registry, const OpDef& op, const SampleCase& sample);

// The step for checks of random operators: four samples out of order.
StepContext check_step();
inline constexpr uint64_t kCheckNodeSeed = 77;

}  // namespace ofsdp::testing
