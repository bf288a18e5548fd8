// Passes over whole graphs. Each returns a new graph, or changes the one that it is given.
// importer/pipeline.h has their order.
//
// Errors: kInput naming file and node.
#pragma once

#include <functional>

#include "importer/graph/graph.h"
#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {

// Switches for tests, which leave passes out or make them eager. A run keeps the defaults.
struct PassSwitches {
  FusionSettings fusions{};
  bool layouts = true;  // assign_layouts
  bool joins = true;    // join_loss_gradient, multiply_kept_rows, join_norm_addends
};

// carry_statistics finds the running statistics of a training graph. If a BatchNormalization has
// training_mode=1, outputs 1 and 2 become the next values of the initializers at inputs 3 and 4
// (ONNX's population variance), even if the file leaves these outputs out. Statistics that --freeze
// names stay, and so do statistics that other nodes compute.
//
// Changes the graph. Errors: kInput from inference.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
Status carry_statistics(Graph& graph);

// A graph that brings its own backward part has Parameter::gradient and Graph::loss_weight before
// autodiff, as training artifacts of ONNX Runtime do.
//
// order_backward turns a specialized graph with the loss into a graph like those of autodiff:
//   - nodes that the loss and running statistics need are forward, all others backward; forward
//     comes first, each part in the order of the file
//   - a forward node that reads only weights (Transpose of a weight) moves to its first reader, and
//     backward gets its own copy: it reads the weight again, unsharded with the unit, instead of
//     keeping the result
//   - Identity nodes of backward go away; a node of its own writes the gradient of each parameter
// So backward nodes read the same parameters as their forward nodes, and units, unshards and
// reductions follow as they do after autodiff.
//
// without_backward returns the forward part, for evaluation.
//
// Errors: kInput from inference.
inline bool brings_backward(const Graph& graph) { return graph.loss_weight != 0; }

Result<Graph> order_backward(const Graph& graph);
Graph without_backward(const Graph& graph);

// autodiff adds the backward nodes of a specialized training graph, by reverse accumulation over
// the nodes with the `grad` of their OpDefs.
//
// It starts from each term of the loss (a float32 scalar) with its weight as the gradient. It sets
// Parameter::gradient of every trained parameter that a gradient reaches, and 0 for the others. The
// gradients of a value used several times are added in the order from last use to first, so the
// bits depend on nothing else. A node of its own writes the gradient of a parameter (never a view),
// so the planner can let it write into the buffer that the reduction reads.
//
// Errors: kInput listing every node between a trained parameter and the loss that has no gradient.
Result<Graph> autodiff(const Graph& graph);

// lower_precision turns a specialized and fused float32 graph into one that computes in bfloat16 or
// float16, as FSDP's MixedPrecision(param_dtype) does with a module. It runs before autodiff, so
// each gradient has the type of the value.
//
//   parameters     become `dtype`, the result of a gather; masters and files stay float32, and so
//                  do running statistics
//   float32 inputs are converted, except labels of the loss
//   nodes          with a float operand of `dtype` compute in it, and constants and other float32
//                  operands are converted for them. Nodes that depend only on constants and
//                  integers (positions, masks, angles) stay in float32 until they meet such an
//                  operand.
//   losses         and counts of right answers stay float32, with widened operands; but
//                  cross-entropy of scores [N, C] reads the scores as they are and rounds their
//                  gradient (ofsdp.NarrowCrossEntropyLoss)
//
// A finite constant stays finite: it is clamped to the range of `dtype` (masks of -3.4e38). Kernels
// of normalizations, softmax, reductions and products accumulate in float32.
//
// Errors: kInput from inference.
// https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.MixedPrecision
Result<Graph> lower_precision(const Graph& graph, DType dtype);

// Converts a float32 constant into another floating type.
ConstantPtr narrowed(const Constant& constant, DType dtype);

// synchronize_batch_norm lets each BatchNormalization in training take the statistics from the rows
// of all ranks, weighted by the number of rows, and the gradient too. The next running statistics
// are those of the joined rows, on every rank. In a finished graph
//
//   BatchNormalization           becomes ofsdp.ChannelStatistics, ofsdp.JoinRows,
//                                ofsdp.JoinedStatistics, and BatchNormalization with these
//   ofsdp.BatchNormalizationGrad becomes ofsdp.ChannelDots, ofsdp.JoinRows and
//                                ofsdp.JoinedNormalizationGrad
//
// If there is one rank, the graph stays as it is. Errors: kInput naming the node if running
// statistics are not float32.
Status synchronize_batch_norm(Graph& graph, const RankRows& ranks);

// assign_layouts chooses the layout of each activation and inserts ofsdp.Reorder nodes between
// neighbours that want different ones.
//
// Convolutions and poolings run faster channels last. Elementwise nodes between them take either
// layout, so a chain of them needs no reorder. Everything else, and all inputs, parameters and
// gradients of parameters, is plain (see OpDef::layout). A value is reordered at most once each
// way.
Result<Graph> assign_layouts(const Graph& graph);

// join_epilogues gives products a step at their end that would otherwise be a pass over memory, for
// a device with such kernels. Gemm nodes become ofsdp.GemmEpilogue together with
//
//   Gelu (tanh) of the product             forward; the product stays, for the gradient
//   ofsdp.GeluGrad (tanh) of the product   backward
//   Add of the product to an older value   residuals, sums of gradients
//   ofsdp.SumTo [n] of an operand          the bias gradient with the gradient of the weights, or
//                                          of the result of ofsdp.GeluGrad
//
// Looks through views (Reshape and the like). Works on finished graphs, forward and backward, also
// recomputed ones. A node keeps the place of the product, so no value lives longer and no unit is
// needed later. Joins only nodes that `takes` accepts. Graph::fused counts them as "epilogue".
using TakesNode = std::function<bool(const Graph&, const Node&)>;

Graph join_epilogues(const Graph& graph, const TakesNode& takes);

// join_loss_gradient makes a cross-entropy loss and its gradient by the scores in one node,
// ofsdp.SoftmaxCrossEntropyLossWithGradient, in place of SoftmaxCrossEntropyLoss or
// ofsdp.NarrowCrossEntropyLoss. The gradient needs only the loss weight, which is known when a
// micro-batch begins, and nothing else may read the saved output of the loss. Works on finished
// graphs, also recomputed ones. The two stay apart if `takes` refuses, or if the operator does:
// scores with axes beyond [N, C].
Graph join_loss_gradient(const Graph& graph, const TakesNode& takes);

// multiply_kept_rows skips rows of scores with labels that the loss ignores (all but the masked
// tokens of a masked language model, prompts of instructions, padding), in products and in the
// gradient, which is zero there. Around ofsdp.SoftmaxCrossEntropyLossWithGradient
//
//   ofsdp.KeptRows            finds the rows that a micro-batch keeps; the loss reads their labels
//   Gemm that makes scores    becomes ofsdp.KeptRowsGemm of the kept rows of the input, which
//                             ofsdp.TakeKeptRows puts first, so they are first in the scores
//   Gemm that reads d scores  becomes ofsdp.KeptRowsGemm; ofsdp.PutKeptRows puts the rows of its
//                             result back to their places
//
// Memory is planned for a micro-batch that keeps all rows; such a step has the bits and kernels of
// the unchanged graph. Needs 128 rows and 1024 classes or more; nothing else may read the scores,
// and only products and sums over all rows may read their gradient. Works on finished graphs, also
// recomputed ones, after join_loss_gradient. If `takes` refuses one of the nodes, the graph stays
// as it is. Graph::fused counts them as "kept_rows".
Graph multiply_kept_rows(const Graph& graph, const TakesNode& takes);

// pitch_rows gives the rows of a product's result a pitch (TensorDesc) of a multiple of 64 elements
// if they do not begin at multiples of 16 bytes, which fast products need: logits of a vocabulary
// of 50257. Sizes stay. For a device with such kernels.
//
// Views of the result and values written in its place (the gradient of the scores) get the same
// pitch, if `takes` accepts all nodes that make or read them. Otherwise they stay dense, as
// gradients of parameters do, and rows that would grow by more than an eighth. REQUIRES: no later
// pass infers descs.
Graph pitch_rows(const Graph& graph, const TakesNode& takes);

// join_norm_addends lets ofsdp.LayerNormalizationGrad add another gradient of the same value to its
// result, in place of an Add that alone reads the result: each residual of a pre-norm transformer
// has one. The other gradient must exist before. The CPU computes the same bits. Works on finished
// graphs, also recomputed ones. The two stay apart if `takes` refuses. Graph::fused counts them as
// "addend".
Graph join_norm_addends(const Graph& graph, const TakesNode& takes);

// keep_attention_statistics lets attention keep its log-sum-exp for its gradient, on a device with
// such kernels. In a training graph
//
//   Attention            becomes ofsdp.AttentionWithStatistics(Q, K, V, mask, lengths) -> Y,
//                        statistics, float32 [batch, heads, queries], an ordinary tensor
//   ofsdp.AttentionGrad  reads Y and the statistics as operands 6 and 7
//
// if both read the same queries, keys, values, mask and lengths. Works on finished graphs, also
// recomputed ones: it takes the last forward node before the gradient (which may be a clone), and a
// recomputed operand counts as the operand. Attention without a gradient keeps nothing.
//
// Nothing large lives for this alone: another backward node that does not recompute Y must need it,
// as the gradient of the next projection does. Exporters put a Transpose between the two, and
// fusion lets attention write its output. If fusion has not, and the output of the Transpose is
// kept, the gradient reads that and gets the perm as y_perm. Otherwise the nodes stay as they are,
// as they do if `takes` refuses one of them. Graph::fused counts them as "statistics".
//
// Dao et al., "FlashAttention", 2022.
Graph keep_attention_statistics(const Graph& graph, const TakesNode& takes);

}  // namespace ofsdp::importer
