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

// join_epilogues gives products a step at their end that would otherwise be a pass over memory, for
// a device with such kernels. Gemm nodes become ofsdp.GemmEpilogue together with
//
//   Gelu (tanh) over the product           forward; the product stays, for the gradient
//   ofsdp.GeluGrad (tanh) over the product backward
//   Add to an older value                  residuals, gradient sums
//   ofsdp.SumTo [n] over an operand        the bias gradient with the weight gradient, or
//                                          over ofsdp.GeluGrad's result
//
// Looks through views (Reshape and the like). Works on finished graphs, forward and backward, also
// recomputed ones. A node keeps the product's place, so no value lives longer and no unit is needed
// later. Joins only nodes that `takes` accepts. Graph::fused counts them as "epilogue".
using TakesNode = std::function<bool(const Graph&, const Node&)>;

Graph join_epilogues(const Graph& graph, const TakesNode& takes);

// join_loss_gradient makes a cross-entropy loss and its gradient by the scores in one node,
// ofsdp.SoftmaxCrossEntropyLossWithGradient, in place of SoftmaxCrossEntropyLoss or
// ofsdp.NarrowCrossEntropyLoss. The gradient needs only the loss weight, which is known when a
// micro-batch begins, and nothing else may read the loss's saved output. Works on finished graphs,
// also recomputed ones. The two stay apart if `takes` refuses, or if the operator does: scores with
// axes beyond [N, C].
Graph join_loss_gradient(const Graph& graph, const TakesNode& takes);

// multiply_kept_rows skips score rows with labels that the loss ignores (all but the masked tokens
// in a masked language model, instruction prompts, padding), in products and in the gradient, which
// is zero there. Around ofsdp.SoftmaxCrossEntropyLossWithGradient
//
//   ofsdp.KeptRows            finds the rows that a micro-batch keeps; the loss reads their labels
//   Gemm that makes scores    becomes ofsdp.KeptRowsGemm over the kept input rows, which
//                             ofsdp.TakeKeptRows puts first, so they are first in the scores
//   Gemm that reads d scores  becomes ofsdp.KeptRowsGemm; ofsdp.PutKeptRows puts the rows in its
//                             result back to their places
//
// Memory is planned for a micro-batch that keeps all rows; such a step has the unchanged graph's
// bits and kernels. Needs 128 rows and 1024 classes or more; nothing else may read the scores, and
// only products and sums over all rows may read their gradient. Works on finished graphs, also
// recomputed ones, after join_loss_gradient. If `takes` refuses a node, the graph stays as it is.
// Graph::fused counts them as "kept_rows".
Graph multiply_kept_rows(const Graph& graph, const TakesNode& takes);

// chunk_losses lets the product that makes scores, the loss and the gradient's products go through
// the rows in chunks, so that scores are never whole. Around
// ofsdp.SoftmaxCrossEntropyLossWithGradient
//
//   Gemm that makes scores       becomes ofsdp.LinearCrossEntropy, with its operands, and gives
//   the loss                     the loss,
//   Gemm that reads d scores     the gradient by the input and by the weights,
//   ofsdp.SumTo of d scores      and by the bias
//
// ofsdp.KeptRowsGemm becomes the same node, which computes the kept rows alone. Nothing else may
// read the scores or their gradient. Works on finished graphs after multiply_kept_rows. If `takes`
// refuses the node, the graph stays as it is. Graph::fused counts them as "chunked_loss".
//
// [Note: chunks of scores] A chunk costs launches, and for each weight 8 bytes of traffic in the
// float32 sum of the gradient, against 6 operations a row. So scores are cut from
// `least_chunked_bytes` on, into at most eight chunks of at least `least_chunk_rows` rows, and only
// if that saves a quarter of the bytes: a gradient in 16 bits has float32 sums of its own. Shapes
// alone decide, so every strategy and every rank has the same chunks and the same bits.
// `wide_gradients`: widen_gradients follows, so that the sum lies in the gradient itself.
Graph chunk_losses(const Graph& graph, const TakesNode& takes, const PassSwitches& switches,
                   bool wide_gradients = false);

// widen_gradients makes every parameter's gradient float32 in a graph that computes in 16 bits, for
// slots in which a device sums float32. Products write float32 themselves (Gemm with kWideResult,
// ofsdp.LinearCrossEntropy), without rounding; a Cast follows every other node, and every node that
// `takes` refuses. Graph::fused counts the products as "wide_gradient". Errors: from inference.
Result<Graph> widen_gradients(const Graph& graph, const TakesNode& takes);

// pitch_rows gives the rows in a product's result a pitch (TensorDesc), a multiple of 64 elements,
// if they do not begin at multiples of 16 bytes, which fast products need: logits over a vocabulary
// of 50257. Sizes stay. For a device with such kernels.
//
// The result's views and values written in its place (the score gradient) get the same pitch, if
// `takes` accepts all nodes that make or read them. Otherwise they stay dense. Parameter gradients
// stay dense too, and rows that would grow by more than an eighth. REQUIRES: no later pass infers
// descs.
Graph pitch_rows(const Graph& graph, const TakesNode& takes);

// join_norm_addends lets ofsdp.LayerNormalizationGrad add another gradient for the same value to
// the result, in place of an Add that alone reads the result: each residual in a pre-norm
// transformer has one. The other gradient must exist before. The CPU computes the same bits. Works
// on finished graphs, also recomputed ones. The two stay apart if `takes` refuses. Graph::fused
// counts them as "addend".
Graph join_norm_addends(const Graph& graph, const TakesNode& takes);

// keep_attention_statistics lets attention keep the log-sum-exp for the gradient, on a device with
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
// as the next projection's gradient does. Exporters put a Transpose between the two, and fusion
// lets attention write the transposed Y. If fusion has not, and the Transpose's output is kept, the
// gradient reads that and gets the perm as y_perm. Otherwise, or if `takes` refuses a node, the
// nodes stay as they are. Graph::fused counts them as "statistics".
//
// Dao et al., "FlashAttention", 2022.
Graph keep_attention_statistics(const Graph& graph, const TakesNode& takes);

// repeat_chains lets ofsdp.ChainGrad return the chain's result once more, for backward nodes that
// read it, such as the weight gradient of the product after a SwiGLU; these then stand after the
// ofsdp.ChainGrad. So the result is not kept from the forward pass to the backward pass, for a
// write of it. It has the same bits: the chain's steps are those of the forward pass. Results that
// the chain saved for the gradient alone, such as a sigmoid, are computed again as well, and
// rounded as they were when they were saved. Chains whose gradient does not read all inputs stay
// as they are, and so do nodes that the gradient itself needs. Graph::fused counts the chains as
// "chain_again".
Graph repeat_chains(const Graph& graph, const TakesNode& takes);

// separate_documents lets documents share a row of `length` tokens (--pack). The graph gets two
// inputs, int64 [batch, length]: the document of each token, and its place in the document. Each
// Attention, and each Softmax over [batch, heads, length, length], sees a key only from its own
// document. Where a table of the row's places, which no input reaches, meets tokens [batch, length,
// width] in an Add, Sub, Mul or Div, its rows are read at the places in the documents. Works on
// specialized graphs after fuse. A mask serves all layers.
//
// Whether documents are apart then is for a forward pass to say (runtime/train/setup/packing.h).
// Errors: kInput if a node does not take its operands any more.
inline constexpr const char* kSegmentsInput = "ofsdp.segments";
inline constexpr const char* kPositionsInput = "ofsdp.positions";
Result<Graph> separate_documents(const Graph& graph, int64_t batch, int64_t length);

// with_values: a graph without inputs that have one value in every batch (--input): constants take
// their places. The file keeps the inputs.

struct InputValue {
  double number = 0;     // of every element
  ConstantPtr tensor{};  // in place of `number`
};
using InputValues = std::map<std::string, InputValue>;  // input name -> value

// Returns a tensor that holds one number everywhere; null if the dtype cannot hold it.
ConstantPtr filled_constant(DType dtype, const Shape& shape, double number);

// An input that gets a number may have one axis of unknown size, which gets the batch's. Names that
// are no inputs are kInput unless `some`. Errors: kInput naming --input.
Result<Graph> with_values(const Graph& graph, const InputValues& values, bool some = false);

// without_past: a decoder for training, without earlier steps' keys and values.
//
// Model builders write decoders for generation: each attention reads a past and writes past and
// present joined. If only past inputs of attention operators read a graph input, the past has
// length 0 here. The input goes away, and so do the outputs that hold the present. A Shape may also
// read it, because masks depend on the past's length.
//
// Errors: kInput for a past that has a column or a fixed length.

struct PastFree {
  Graph graph;
  std::vector<std::string> fed_empty;  // inputs that were removed
};

// `columns`: names in the data. REQUIRES: the graph is symbolic.
Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns);

// Returns "past.0 and 3 more inputs are fed empty: ..." with a line end, or "" if there are none.
std::string past_line(const std::vector<std::string>& fed_empty);

// The trained set. Every floating-point initializer that a gradient reaches is trained, except
// BatchNormalization's running statistics and numbers and tables that are no weights
// (untrained_rules.h). `train` patterns replace that rule, and `freeze` patterns beat it. A pattern
// is first tried as a literal name, then as a glob; if it matches no initializer, it is an error.
// Quantization scales and zero points are no weights; with `learned_scales`, scales of any rank are
// trained unless their weight is frozen.
//
// choose_candidates applies names. keep_reached, after autodiff, drops initializers that no
// gradient reaches. Small parameters that are not trained become constants, so shapes may depend on
// them.
//
// Errors: kInput naming flag and pattern; no trained parameter at all.

// Parameter::reason if the graph updates the parameter itself.
inline constexpr const char* kRunningStatistics = "running statistics";
// Parameter::reason if the loss does not depend on it.
inline constexpr const char* kUnreached = "no gradient reaches it";
inline constexpr const char* kUnread = "no node reads it";

struct TrainedRules {
  std::vector<std::string> freeze;
  std::vector<std::string> train;
  bool learned_scales = false;  // trains quantization scales, too
  // Frozen matrices keep the file's type (hold_frozen), for CPU kernels.
  bool hold_frozen = false;
  // Parameter::reason if `train` does not name the initializer.
  std::string otherwise = "not named by --train";
  // If not empty, these names replace all rules: a checkpoint's trained set in evaluation.
  std::set<std::string> saved = {};
  // For a run that changes values: returns kInput if an initializer is both a running statistic and
  // a weight, or a running statistic that the run cannot update.
  bool changes_values = false;
};

// BatchNormalization reads its running statistics without the Identity and Cast nodes between.
Result<Graph> choose_candidates(const Graph& graph, const TrainedRules& rules);

// Trains exactly the initializers that `trained` names, as training artifacts say.
Graph choose_given(const Graph& graph, const std::set<std::string>& trained);

// REQUIRES: `differentiated` is `graph`, specialized and differentiated.
Result<Graph> keep_reached(const Graph& graph, const Graph& differentiated);

// Returns the table to print: a line per parameter, with the reason if it is not trained.
std::string trained_table(const Graph& graph);

// hold_frozen lets frozen matrices keep the file's type instead of becoming float32 when they are
// read: dequantized 4-bit and 8-bit integers, and 16-bit floats.
//
//   x MatMul (Identity | Transpose)* FakeQuantize(w)     ofsdp.StoredMatMul(x, w, scale, zero)
//   Gemm, FusedMatMul                                    the same, then a product and a sum
//   Gather(w) from 16-bit floats                         Gather, then a Cast for the gathered rows
//
// Such a weight becomes a raw parameter (Parameter::raw), and so do the scales if nothing else
// reads them. A weight stays float32 if it has another reader, or if the bytes have no fixed place
// in the file.
//
// REQUIRES: `graph` is symbolic and the trained set is chosen.

Graph hold_frozen(const Graph& graph, const OnnxFile& file);

}  // namespace ofsdp::importer
