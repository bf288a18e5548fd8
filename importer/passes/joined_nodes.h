// Passes over finished graphs, forward and backward: they join nodes, or choose how values lie in
// memory, for the kernels of one device. importer/pipeline.h has their order.
//
// `takes` tells whether the device has a kernel for a node.
#pragma once

#include <functional>

#include "importer/graph/graph.h"
#include "importer/passes/joined_nodes.h"
#include "importer/passes/passes.h"

namespace ofsdp::importer {

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

}  // namespace ofsdp::importer
