// Passes over whole graphs. Each returns a new graph, or changes the one that it is given.
// importer/pipeline.h has their order.
//
// Errors: kInput naming file and node.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {

// Switches for tests, which leave passes out or make them eager. A run keeps the defaults.
struct PassSwitches {
  FusionSettings fusions{};
  bool layouts = true;  // assign_layouts
  bool joins = true;    // join_loss_gradient, multiply_kept_rows, chunk_losses, join_norm_addends
  size_t least_chunked_bytes = size_t{128} << 20;  // of scores that are made in chunks
  int64_t least_chunk_rows = 2048;
};

// carry_statistics finds a training graph's running statistics. If a BatchNormalization has
// training_mode=1, outputs 1 and 2 become the next values for the initializers at inputs 3 and 4
// (ONNX's population variance), even if the file leaves these outputs out. Statistics that --freeze
// names stay, and so do statistics that other nodes compute.
//
// Changes the graph. Errors: kInput from inference.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
Status carry_statistics(Graph& graph);

// A graph that brings its own backward part has Parameter::gradient and LossTerm::weight before
// autodiff, as training artifacts of ONNX Runtime do.
//
// order_backward turns a specialized graph with the loss into a graph as autodiff makes it:
//   - nodes that the loss and running statistics need are forward, all others backward; forward
//     comes first, each part in file order
//   - a forward node that reads only weights (a weight's Transpose) moves to the first reader, and
//     backward gets a copy: it reads the weight again, unsharded with the unit, instead of
//     keeping the result
//   - backward's Identity nodes go away; a separate node writes each parameter's gradient
// So backward nodes read the same parameters as their forward nodes, and units, unshards and
// reductions follow as they do after autodiff.
//
// without_backward returns the forward part, for evaluation.
//
// Errors: kInput from inference.
inline bool brings_backward(const Graph& graph) {
  return !graph.terms.empty() && graph.terms[0].weight != 0;
}

Result<Graph> order_backward(const Graph& graph);
Graph without_backward(const Graph& graph);

// autodiff adds backward nodes to a specialized training graph, by reverse accumulation over the
// nodes with OpDef::grad.
//
// It starts from each loss term (a float32 scalar) with the term's weight as gradient. It sets
// Parameter::gradient for every trained parameter that a gradient reaches, and 0 for the others. If
// a value is used several times, the gradients are added from the last use to the first, so the
// bits depend on nothing else. A separate node (never a view) writes each parameter's gradient, so
// the planner can let it write into the buffer that the reduction reads.
//
// Errors: kInput listing every node between a trained parameter and the loss that has no gradient.
Result<Graph> autodiff(const Graph& graph);

// lower_precision turns a specialized and fused float32 graph into one that computes in bfloat16 or
// float16, as FSDP's MixedPrecision(param_dtype) does with a module. It runs before autodiff, so
// each gradient has the value's type.
//
//   parameters     become `dtype`, as a gather returns them; masters and files stay float32, and so
//                  do running statistics
//   float32 inputs are converted, except labels
//   nodes          with a `dtype` operand compute in it, and constants and other float32
//                  operands are converted for them. Nodes that depend only on constants and
//                  integers (positions, masks, angles) stay in float32 until they meet such an
//                  operand.
//   losses         and right-answer counts stay float32, with widened operands; but
//                  cross-entropy reads scores [N, C] as they are and rounds their
//                  gradient (ofsdp.NarrowCrossEntropyLoss)
//
// A finite constant stays finite: it is clamped to `dtype`'s range (masks with -3.4e38).
// Normalizations, softmax, reductions and products accumulate in float32.
//
// Errors: kInput from inference.
// https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.MixedPrecision
Result<Graph> lower_precision(const Graph& graph, DType dtype);

// Converts a float32 constant into another floating type.
ConstantPtr narrowed(const Constant& constant, DType dtype);

// synchronize_batch_norm lets each BatchNormalization in training take the statistics from all
// ranks' rows, weighted by row count, and the gradient too. The next running statistics come from
// the joined rows, on every rank. In a finished graph
//
//   BatchNormalization           becomes ofsdp.ChannelStatistics, ofsdp.JoinRows,
//                                ofsdp.JoinedStatistics, and BatchNormalization with these
//   ofsdp.BatchNormalizationGrad becomes ofsdp.ChannelDots, ofsdp.JoinRows and
//                                ofsdp.JoinedNormalizationGrad
//
// If there is one rank, the graph stays as it is. Errors: kInput naming the node if running
// statistics are not float32.
Status synchronize_batch_norm(Graph& graph, const RankRows& ranks);

// assign_layouts chooses each activation's layout and inserts ofsdp.Reorder nodes between
// neighbours that want different ones.
//
// Convolutions and poolings run faster channels last. Elementwise nodes between them take either
// layout, so a chain between them needs no reorder. Everything else, and all inputs, parameters and
// parameter gradients, is plain (see OpDef::layout). A value is reordered at most once each way.
Result<Graph> assign_layouts(const Graph& graph);

}  // namespace ofsdp::importer
