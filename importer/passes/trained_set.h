// The trained set of initializers. The rule: every floating-point initializer that a gradient
// reaches, but running statistics of BatchNormalization, tensors of rank 0, tables that only cos
// and sin inputs of rotary embeddings read, one element of any rank that a Clip, Max, Min, Expand,
// Pad or Where reads, and names matching *inv_freq, *.attn.bias, *.masked_bias, *cos_cache,
// *sin_cache. `train` patterns replace the rule, `freeze` patterns beat
// it. A pattern is tried as a literal name first, then as a glob; one that matches no initializer
// is an error. Scales and zero points of quantized values are no weights; with `learned_scales`
// scales are trained, of any rank, unless their weight is frozen.
//
// choose_candidates applies names; keep_reached, after autodiff, drops initializers that no
// gradient reaches. Small parameters that are not trained become constants, so that shapes may
// depend on them.
//
// Threads: any. Errors: kInput naming flag and pattern; no trained parameter at all.
#pragma once

#include <set>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// Parameter::reason of those that the graph itself gives their next values.
inline constexpr const char* kRunningStatistics = "running statistics";
// The loss does not depend on it.
inline constexpr const char* kUnreached = "no gradient reaches it";

struct TrainedRules {
  std::vector<std::string> freeze;
  std::vector<std::string> train;
  bool learned_scales = false;  // of quantized values: they are trained as well
  // Frozen matrices stay in the type of the file (frozen_weights.h): for kernels of the CPU.
  bool hold_frozen = false;
  // Why an initializer that `train` does not name is not trained.
  std::string otherwise = "not named by --train";
  // If not empty, these names replace all of the above: the trained set of a checkpoint that is
  // evaluated.
  std::set<std::string> saved = {};
};

Result<Graph> choose_candidates(const Graph& graph, const TrainedRules& rules);

// Trained is what the file says, as training artifacts do: `trained` has the names.
Graph choose_given(const Graph& graph, const std::set<std::string>& trained);

// `differentiated` is the autodiff of a specialization of `graph`.
Result<Graph> keep_reached(const Graph& graph, const Graph& differentiated);

// The printed table: a line a parameter, with the reason when it is not trained.
std::string trained_table(const Graph& graph);

}  // namespace ofsdp::importer
