// The parameters that a run trains, and the form in which others are held.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"

namespace ofsdp::importer {

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
// Parameter::reason if the file's metadata say so (importer/write/state_dict.h).
inline constexpr const char* kFrozenByModule = "frozen by the module";
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
  // Initializers that the file's module does not train; `train` takes their place.
  std::set<std::string> frozen = {};
  // Weights that an edit has added to the file's.
  std::set<std::string> added = {};
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
