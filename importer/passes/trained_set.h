// The trained set of initializers. Every floating-point initializer that a gradient reaches is
// trained, except running statistics of BatchNormalization, tensors of rank 0, tables that only cos
// and sin inputs of rotary embeddings read, one element of any rank that a Clip, Max, Min, Expand,
// Pad or Where reads, and names matching *inv_freq, *.attn.bias, *.masked_bias, *cos_cache,
// *sin_cache. `train` patterns replace that rule, and `freeze` patterns beat it. A pattern is first
// tried as a literal name, then as a glob; if it matches no initializer, it is an error. Scales and
// zero points of quantized values are no weights; with `learned_scales`, scales of any rank are
// trained unless their weight is frozen.
//
// choose_candidates applies names. keep_reached, after autodiff, drops initializers that no
// gradient reaches. Small parameters that are not trained become constants, so shapes may depend on
// them.
//
// Errors: kInput naming flag and pattern; no trained parameter at all.
#pragma once

#include <set>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

// Parameter::reason of parameters that the graph updates itself.
inline constexpr const char* kRunningStatistics = "running statistics";
// Parameter::reason if the loss does not depend on it.
inline constexpr const char* kUnreached = "no gradient reaches it";

struct TrainedRules {
  std::vector<std::string> freeze;
  std::vector<std::string> train;
  bool learned_scales = false;  // trains the scales of quantized values, too
  // Frozen matrices keep the type of the file (hold_frozen), for kernels of the CPU.
  bool hold_frozen = false;
  // Parameter::reason of an initializer that `train` does not name.
  std::string otherwise = "not named by --train";
  // If not empty, these names replace all of the above: the trained set of a checkpoint in
  // evaluation.
  std::set<std::string> saved = {};
};

Result<Graph> choose_candidates(const Graph& graph, const TrainedRules& rules);

// Trains exactly the initializers that `trained` names, as training artifacts say.
Graph choose_given(const Graph& graph, const std::set<std::string>& trained);

// REQUIRES: `differentiated` is the autodiff of a specialization of `graph`.
Result<Graph> keep_reached(const Graph& graph, const Graph& differentiated);

// Returns the table to print: a line a parameter, with the reason if it is not trained.
std::string trained_table(const Graph& graph);

// hold_frozen lets frozen matrices keep the type of the file instead of becoming float32 when they
// are read: dequantized integers of 4 and 8 bits, and 16-bit floats.
//
//   x MatMul (Identity | Transpose)* FakeQuantize(w)     ofsdp.StoredMatMul(x, w, scale, zero)
//   Gemm, FusedMatMul                                    the same, then a product and a sum
//   Gather(w) of 16-bit floats                           Gather, then a Cast of the gathered rows
//
// Such a weight becomes a raw parameter (Parameter::raw), and so do the scales if nothing else
// reads them. A weight stays float32 if it has another reader, or if the bytes have no place of
// their own in the file.
//
// REQUIRES: `graph` is symbolic and the trained set is chosen.

Graph hold_frozen(const Graph& graph, const OnnxFile& file);

}  // namespace ofsdp::importer
