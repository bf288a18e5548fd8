// Checks of one operator against its own reference: what conformance means. Each returns what is
// wrong, one line a finding, and "" when nothing is.
//
//   check_definition  samples are there, and a kernel, `view` or body, an infer and a reference
//   check_kernels     every implementation that accepts the sample, in every layout its LayoutRule
//   allows,
//                     apart and in place: values within tolerance of the reference, the same bits
//                     when run again over other garbage, inputs unchanged, nothing written outside
//   check_pitched     the same with rows apart (TensorDesc::pitch): of each operand alone, of all
//                     of one shape, of all; `taken` counts the problems that are accepted
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

// The step in which random operators are checked: four samples that are not in order.
StepContext check_step();
inline constexpr uint64_t kCheckNodeSeed = 77;

}  // namespace ofsdp::testing
