// The passes over whole graphs, in the order in which they run. Each returns a new graph, or
// changes the one that it is given.
//
// Threads: any. Errors: kInput naming file and node.
#pragma once

#include <functional>

#include "importer/graph/graph.h"
#include "importer/graph/rank_rows.h"
#include "importer/passes/fusion/fusion.h"

namespace ofsdp::importer {

// Passes that tests leave out or make eager; a run has them as they stand here.
struct PassSwitches {
  FusionSettings fusions{};
  bool layouts = true;  // channels last
  bool joins = true;    // nodes joined after autodiff
};

// carry_statistics: finds the running statistics of a training graph. Outputs 1 and 2 of a
// BatchNormalization with training_mode=1 become the next values of the initializers at its inputs
// 3 and 4 (ONNX's population variance), also where the file leaves these outputs out; statistics
// that --freeze names stay. Statistics computed by other nodes are left alone.
//
// Ownership: changes the graph it is given. Threads: any. Errors: kInput from inference.
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
Status carry_statistics(Graph& graph);

// A graph that brings its own backward has Parameter::gradient and Graph::loss_weight before
// autodiff. Training artifacts of ONNX Runtime give such graphs.
//
// order_backward turns a specialized graph with its loss into one such as autodiff makes:
//   - nodes that the loss and running statistics need are forward, all others backward; forward
//     comes first, each part in the order of the file
//   - a forward node that reads only weights (Transpose of a weight) moves to its first reader, and
//     backward has its own copy: it reads the weight again, unsharded with its unit, instead of
//     keeping the result
//   - Identity nodes of backward go away; a node of its own writes the gradient of each parameter
// So backward nodes read the same parameters as the forward nodes they belong to; units, unshards
// and reductions follow from that as they do after autodiff.
//
// without_backward leaves the forward part, for evaluation.
//
// Pure; all values. Threads: any. Errors: kInput from inference.
inline bool brings_backward(const Graph& graph) { return graph.loss_weight != 0; }

Result<Graph> order_backward(const Graph& graph);
Graph without_backward(const Graph& graph);

// autodiff: adds the backward nodes of a specialized training graph, by reverse accumulation over
// its nodes; the rule of each operator is its OpDef's grad.
//
// Starts from each term of the loss (a float32 scalar) with its weight as its gradient. Sets
// Parameter::gradient of every trained parameter that a gradient reaches (0 for the others). A
// value used several times gets the sum of its gradients in the order of the uses from last to
// first, so the bits depend on nothing else. A node of its own writes the gradient of a parameter
// (it is never a view), so that the planner can let it write where the reduction reads.
//
// Returns a new graph. Threads: any. Errors: kInput listing every node between a trained parameter
// and the loss whose operator has no gradient.
Result<Graph> autodiff(const Graph& graph);

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
Result<Graph> lower_precision(const Graph& graph, DType dtype);

// `constant`, float32, in another floating type.
ConstantPtr narrowed(const Constant& constant, DType dtype);

// synchronize_batch_norm: each BatchNormalization in training takes its statistics from the rows of
// all ranks, counted by rows, and so does its gradient. Its next running statistics are those of
// the joined rows, on every rank. In a finished graph
//
//   BatchNormalization           becomes ofsdp.ChannelStatistics, ofsdp.JoinRows,
//                                ofsdp.JoinedStatistics, and BatchNormalization with these
//   ofsdp.BatchNormalizationGrad becomes ofsdp.ChannelDots, ofsdp.JoinRows and
//                                ofsdp.JoinedNormalizationGrad
//
// With one rank the graph stays as it is. Threads: any. Errors: kInput naming the node: running
// statistics that are not float32.
Status synchronize_batch_norm(Graph& graph, const RankRows& ranks);

// assign_layouts: decides the order of the bytes of each activation, and puts ofsdp.Reorder
// nodes where two neighbours want different ones.
//
// Convolutions and poolings run faster channels last; elementwise nodes between them take what they
// are given, so that a chain of them needs no reorder; everything else, and all inputs, parameters
// and gradients of parameters, is plain (OpDef::layout says who asks for what). A value is
// reordered at most once each way. Threads: any.
Result<Graph> assign_layouts(const Graph& graph);

// join_epilogues: products that do at their end what would be a pass of its own, for a device whose
// library has such kernels. Gemm nodes become ofsdp.GemmEpilogue together with
//
//   Gelu (tanh) of the product             forwards; the product itself stays, for the gradient
//   ofsdp.GeluGrad (tanh) of the product   backwards
//   Add of the product to what was there   residuals, sums of gradients
//   ofsdp.SumTo [n] of an operand          the bias gradient with the gradient of the weights;
//                                          else of what ofsdp.GeluGrad gives
//
// Views between them (Reshape and the like) go around. Works on finished graphs, forwards and
// backwards, also recomputed ones; a node stays where its product was, so no value lives longer and
// no unit is needed later. `takes` is asked for every node that could be made; where it says no the
// parts stay apart. Graph::fused counts, as "epilogue".
//
// Threads: any. Errors: none.
using TakesNode = std::function<bool(const Graph&, const Node&)>;

Graph join_epilogues(const Graph& graph, const TakesNode& takes);

// join_loss_gradient: a cross-entropy loss and its gradient by the scores in one node,
// ofsdp.SoftmaxCrossEntropyLossWithGradient, in place of SoftmaxCrossEntropyLoss or
// ofsdp.NarrowCrossEntropyLoss. The gradient needs the loss weight alone, which is there when a
// micro-batch begins, and nothing else may read what the loss keeps for it. Works on finished
// graphs, also recomputed ones. The two stay apart if `takes` says no, and if the operator refuses
// them: scores with axes beyond [N, C].
//
// Threads: any. Errors: none.
Graph join_loss_gradient(const Graph& graph, const TakesNode& takes);

// multiply_kept_rows: rows of scores whose labels the loss ignores (all but the masked tokens of a
// masked language model, the prompts of instructions, padding) are not multiplied, nor are the rows
// of their gradient, which are zeros. Around ofsdp.SoftmaxCrossEntropyLossWithGradient
//
//   ofsdp.KeptRows            finds the rows that a micro-batch keeps; the loss reads their labels
//   Gemm that makes scores    becomes ofsdp.KeptRowsGemm of the kept rows of its input, which
//                             ofsdp.TakeKeptRows puts first; so they are in the scores
//   Gemm that reads d scores  becomes ofsdp.KeptRowsGemm; rows that it gives go back to their
//                             places (ofsdp.PutKeptRows)
//
// Memory is planned for a micro-batch that keeps all rows; the step of one that does has the bits
// and the kernels of the graph as it was. For 128 rows and 1024 classes or more, where nothing else
// reads the scores and only products and sums over all rows read their gradient. Works on finished
// graphs, also recomputed ones, after join_loss_gradient; where `takes` refuses one of the nodes
// the graph stays as it is. Graph::fused counts, as "kept_rows".
//
// Threads: any. Errors: none.
Graph multiply_kept_rows(const Graph& graph, const TakesNode& takes);

// pitch_rows: gives the rows of a product's result a pitch (TensorDesc), a multiple of 64 elements,
// where they do not begin at multiples of 16 bytes, which fast products need: logits of a
// vocabulary of 50257. Sizes stay what they are. For a device whose library has such kernels.
//
// The views of the result and what is written in its place (the gradient of the scores) get the
// same pitch, if all nodes that make or read them take it: `takes` is asked. Else they stay dense,
// as gradients of parameters do, and rows that it would make longer by more than an eighth.
// REQUIRES: no pass that infers descs comes after it.
//
// Threads: any. Errors: none.
Graph pitch_rows(const Graph& graph, const TakesNode& takes);

// join_norm_addends: ofsdp.LayerNormalizationGrad that adds another gradient of the same value to
// its result, in place of the Add that alone reads that result: in a pre-norm transformer each
// residual has one. The other gradient must be there before. The CPU gives the bits of the two
// nodes. Works on finished graphs, also recomputed ones; where `takes` says no the two stay apart.
// Graph::fused counts, as "addend".
//
// Threads: any. Errors: none.
Graph join_norm_addends(const Graph& graph, const TakesNode& takes);

// keep_attention_statistics: attention that keeps its log-sum-exp for its gradient, for a device
// whose library has such kernels. In a training graph
//
//   Attention            becomes ofsdp.AttentionWithStatistics(Q, K, V, mask, lengths) -> Y,
//                        statistics, float32 [batch, heads, queries], a tensor as any other
//   ofsdp.AttentionGrad  reads Y and the statistics as its operands 6 and 7
//
// where both read the same queries, keys, values, mask and lengths. Works on finished graphs, also
// recomputed ones: of several forward nodes (a clone is one) the last before the gradient is taken,
// and an operand that is computed again is the operand. Attention without a gradient keeps nothing.
//
// Nothing big lives for this alone: Y must be there for another backward node that does not compute
// it again, as the gradient of the projection that follows it. Exporters put a Transpose between
// the two, which fusion lets attention write; where it has not and the output of the Transpose is
// kept, the gradient reads that, and has its perm as y_perm. Else the nodes stay as they are, as
// where `takes` refuses one of the two. Graph::fused counts, as
// "statistics".
//
// Threads: any. Errors: none. Dao et al., "FlashAttention", 2022.
Graph keep_attention_statistics(const Graph& graph, const TakesNode& takes);

}  // namespace ofsdp::importer
