#include "importer/passes/trained_set.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "importer/graph/graph_uses.h"
#include "kernels/base/escaped.h"
#include "kernels/base/readable.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

bool glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// The initializers that one pattern names.
std::set<std::string> matches(const Graph& graph, const std::string& pattern) {
  std::set<std::string> names;
  for (const std::string& name : graph.initializers) {
    if (name == pattern) return {name};
    if (glob(pattern, name)) names.insert(name);
  }
  return names;
}

Result<std::set<std::string>> all_matches(const Graph& graph, const char* flag,
                                          const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  for (const std::string& pattern : patterns) {
    const auto found = matches(graph, pattern);
    OFSDP_REJECT_IF(found.empty(), "{} {}: matches no initializer of {}", flag, pattern,
                    graph.file);
    names.insert(found.begin(), found.end());
  }
  return names;
}

// Whether nodes read it, and all as cosines or sines of a rotation.
bool is_rotary_table(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  static const std::map<std::string, std::vector<size_t>> tables{
      {"RotaryEmbedding", {1, 2}},
      {"com.microsoft.RotaryEmbedding", {2, 3}},
      {"com.microsoft.GroupQueryAttention", {7, 8}}};
  const auto& readers = uses.readers(p.value);
  return !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
    const Node& node = graph.nodes[reader];
    const auto found = tables.find(node.op->full_name());
    if (found == tables.end()) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& places = found->second;
      if (node.inputs[i] == p.value && std::ranges::find(places, i) == places.end()) return false;
    }
    return true;
  });
}

// Returns the operator that reads one number as a bound, a fill or a choice; empty: there is none.
// Views and casts pass it on.
std::string reader_of_number(const Graph& graph, const GraphUses& uses, ValueId value) {
  for (const size_t reader : uses.readers(value)) {
    const Node& node = graph.nodes[reader];
    for (const char* name : {"Clip", "Max", "Min", "Expand", "Pad", "Where"}) {
      if (node.op->full_name() == name) return name;
    }
    if (!node.op->view && node.op->full_name() != "Cast") continue;
    const std::string next = reader_of_number(graph, uses, node.outputs[0]);
    if (!next.empty()) return next;
  }
  return "";
}

std::string why_not_by_rule(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  for (const char* pattern :
       {"*inv_freq", "*.attn.bias", "*.masked_bias", "*cos_cache", "*sin_cache"}) {
    if (glob(pattern, p.name)) return format_text("its name matches {}", pattern);
  }
  if (is_rotary_table(graph, uses, p)) return "only cos and sin inputs read it";
  const Shape& shape = graph.value(p.value).desc.shape;
  if (shape.rank() == 0) return "rank 0";
  const std::string reader = shape.numel() == 1 ? reader_of_number(graph, uses, p.value) : "";
  return reader.empty() ? "" : "one number that " + reader + " reads";
}

// Scales and zero points of FakeQuantize nodes.
struct ScaleUses {
  explicit ScaleUses(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      if (node.op->full_name() != "ofsdp.FakeQuantize") continue;
      scales.insert(node.inputs[1]);
      if (node.inputs.size() > 2) zero_points.insert(node.inputs[2]);
      if (node.attributes.i("weight", 0) != 0) weights[node.inputs[1]].push_back(node.inputs[0]);
    }
  }

  std::set<ValueId> scales, zero_points;
  std::map<ValueId, std::vector<ValueId>> weights;  // of a scale
};

// Whether it is the weight of few bits of such an operator, or its scales or zero points.
bool is_of_few_bits(const Node& node, size_t input) {
  const std::string name = node.op->full_name();
  if (name == "com.microsoft.MatMulNBits") return input >= 1 && input <= 4;
  return name == "com.microsoft.GatherBlockQuantized" && input != 1;
}

// Returns why its readers keep it from being trained, or "".
std::string why_not_by_use(const Graph& graph, const GraphUses& uses, const Parameter& p) {
  for (const size_t reader : uses.readers(p.value)) {
    const Node& node = graph.nodes[reader];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != p.value) continue;
      if (is_of_few_bits(node, i)) return "read as it is stored";
      const auto& fixed = node.op->constant_inputs;
      if (std::ranges::find(fixed, static_cast<int>(i)) != fixed.end())
        return "read while planning";
      if (node.op->full_name() == "BatchNormalization" && (i == 3 || i == 4)) {
        return kRunningStatistics;
      }
    }
  }
  return "";
}

void freeze(Graph& graph, Parameter& p, std::string reason) {
  p.trained = false;
  p.reason = std::move(reason);
  Value& value = graph.value(p.value);
  if (p.reason == kRunningStatistics) {
    value.constant = nullptr;  // its value will change
  } else if (value.constant != nullptr) {
    value.kind = ValueKind::kConstant;
  }
}

// A scale whose weight stays keeps the integers of the file meaningful by staying as well.
void freeze_scales_of_frozen(Graph& graph, const ScaleUses& uses) {
  std::map<ValueId, bool> trained;
  for (const Parameter& p : graph.parameters) trained[p.value] = p.trained;
  for (Parameter& p : graph.parameters) {
    const auto found = uses.weights.find(p.value);
    if (!p.trained || found == uses.weights.end()) continue;
    const bool stays = std::ranges::any_of(found->second, [&](ValueId w) { return !trained[w]; });
    if (stays) freeze(graph, p, "the scale of a frozen weight");
  }
}

void mark_learned(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (node.op->full_name() != "ofsdp.FakeQuantize") continue;
    Node made = node;
    made.attributes.set("learned", int64_t{1});
    GraphEditor::change_symbolic(node, std::move(made));
  }
}

// Trained values come from the checkpoint, so none of them stays a constant of the file.
Graph choose_saved(const Graph& graph, const std::set<std::string>& saved) {
  Graph result = graph;
  const GraphUses uses(result);
  const ScaleUses quantized(result);
  bool learned = false;
  for (Parameter& p : result.parameters) {
    p.trained = saved.contains(p.name);
    const std::string use = why_not_by_use(result, uses, p);
    if (p.trained) {
      result.value(p.value).constant = nullptr;
      learned = learned || quantized.scales.contains(p.value);
    } else {
      freeze(result, p, use.empty() ? "not trained in the checkpoint" : use);
    }
  }
  if (learned) mark_learned(result);
  return result;
}

}  // namespace

Result<Graph> choose_candidates(const Graph& graph, const TrainedRules& rules) {
  if (!rules.saved.empty()) return choose_saved(graph, rules.saved);
  Graph result = graph;
  OFSDP_ASSIGN_OR_RETURN(const auto frozen, all_matches(graph, "--freeze", rules.freeze));
  OFSDP_ASSIGN_OR_RETURN(const auto named, all_matches(graph, "--train", rules.train));
  const GraphUses uses(result);
  const ScaleUses quantized(result);
  for (Parameter& p : result.parameters) {
    std::string reason = why_not_by_use(result, uses, p);
    const bool scale = quantized.scales.contains(p.value);
    if (quantized.zero_points.contains(p.value)) {
      reason = "zero points";
    } else if (scale && !rules.learned_scales) {
      reason = "scales (--qat-scales fixed)";
    } else if (frozen.contains(p.name)) {
      reason = "--freeze";
    } else if (reason.empty() && !rules.train.empty()) {
      reason = named.contains(p.name) ? "" : rules.otherwise;
    } else if (reason.empty() && !scale) {
      reason = why_not_by_rule(result, uses, p);
    }
    p.trained = reason.empty();
    if (!p.trained) freeze(result, p, reason);
  }
  if (!rules.learned_scales) return result;
  freeze_scales_of_frozen(result, quantized);
  mark_learned(result);
  return result;
}

Graph choose_given(const Graph& graph, const std::set<std::string>& trained) {
  Graph result = graph;
  const GraphUses uses(result);
  for (Parameter& p : result.parameters) {
    p.trained = trained.contains(p.name);
    const std::string use = why_not_by_use(result, uses, p);
    if (!p.trained) freeze(result, p, use.empty() ? "frozen in the file" : use);
  }
  return result;
}

Result<Graph> keep_reached(const Graph& graph, const Graph& differentiated) {
  Graph result = graph;
  bool any = false, candidates = false;
  for (size_t i = 0; i < result.parameters.size(); ++i) {
    Parameter& p = result.parameters[i];
    if (!p.trained) continue;
    candidates = true;
    if (differentiated.parameters[i].gradient == 0) {
      freeze(result, p, kUnreached);
      continue;
    }
    any = true;
    result.value(p.value).constant = nullptr;  // its value will change
  }
  if (any) return result;
  OFSDP_REJECT_IF(candidates, "{}: the loss '{}' reaches no trainable initializer", graph.file,
                  differentiated.value(differentiated.loss).name);
  return input_error("{}: nothing to train: of {} floating-point initializers none is trainable",
                     graph.file,
                     std::ranges::count(graph.parameters, false, &Parameter::of_teacher));
}

std::string trained_table(const Graph& graph) {
  constexpr size_t kMostOfAName = 56;
  size_t widest = 0;
  for (const Parameter& p : graph.parameters) {
    widest = std::max(widest, std::min(escaped(p.name).size(), kMostOfAName));
  }
  std::string out;
  for (const Parameter& p : graph.parameters) {
    if (p.of_teacher) continue;
    const Shape& shape = graph.value(p.value).desc.shape;
    std::string name = escaped(p.name);
    name.resize(std::max(name.size(), widest), ' ');
    out +=
        format_text("{:<7} {}  {:<18} {:>13}{}\n", p.trained ? "train" : "keep", name, shape.text(),
                    readable_count(shape.numel()), p.trained ? "" : "  (" + p.reason + ")");
  }
  return out;
}

}  // namespace ofsdp::importer
