// lower_precision: a graph whose nodes compute in bfloat16 or float16, out of a specialized and
// fused one in float32; what FSDP's MixedPrecision(param_dtype) does with a module. Runs before
// autodiff, so that gradients have the types of what they are gradients of.
//
//   parameters     become `dtype` (what a gather gives; masters and files stay float32), but not
//                  running statistics
//   float32 inputs are converted where they enter, labels of the loss are not
//   nodes          with a float operand of `dtype` compute in it; constants and other float32
//                  operands are converted for them. Nodes that only constants and integers reach
//                  (positions, masks, angles) stay in float32 until they meet one of those.
//   losses         and what counts right answers stay float32: their operands are widened; but
//                  cross-entropy of scores [N, C] reads those as they are and rounds their gradient
//                  (ofsdp.NarrowCrossEntropyLoss)
//
// A finite constant stays finite: it is clamped to the largest of `dtype` (masks of -3.4e38).
// Inside normalizations, softmax, reductions and products kernels accumulate in float32.
//
// Pure. Threads: any. Errors: kInput from inference.
// https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.MixedPrecision
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

Result<Graph> lower_precision(const Graph& graph, DType dtype);

// `constant`, float32, in another floating type.
ConstantPtr narrowed(const Constant& constant, DType dtype);

}  // namespace ofsdp::importer
