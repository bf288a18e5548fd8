#include "importer/passes/decoder_past.h"

#include <algorithm>
#include <map>

#include "importer/graph/graph_uses.h"
#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

// Inputs that hold a past or belong to it, and outputs that hold the present.
struct PastPlaces {
  std::vector<size_t> past, present;
};

const PastPlaces* places_of(const Node& node) {
  static const std::map<std::string, PastPlaces> places{
      {"Attention", {{4, 5}, {1, 2}}},
      {"com.microsoft.Attention", {{4, 6}, {1}}},
      {"com.microsoft.MultiHeadAttention", {{6, 7, 8, 9}, {1, 2}}},
      {"com.microsoft.GroupQueryAttention", {{3, 4}, {1, 2}}}};
  const auto found = places.find(node.op->full_name());
  return found == places.end() ? nullptr : &found->second;
}

bool reads_as_past(const Node& node, ValueId id) {
  const PastPlaces* places = places_of(node);
  if (places == nullptr) return false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == id && std::ranges::find(places->past, i) == places->past.end()) {
      return false;
    }
  }
  return true;
}

// Whether something reads the value, and all that do take it for a past.
bool is_past(const Graph& graph, const GraphUses& uses, ValueId id) {
  const auto& readers = uses.readers(id);
  return !readers.empty() && std::ranges::count(graph.outputs, id) == 0 &&
         std::ranges::all_of(readers, [&](size_t n) { return reads_as_past(graph.nodes[n], id); });
}

void drop(std::vector<ValueId>& ids, ValueId id) { std::erase(ids, id); }

// Takes the past from a node, and the present, unless another node reads it, from the graph.
void drop_past(Graph& graph, const GraphUses& uses, Node& node, ValueId past) {
  std::ranges::replace(node.inputs, past, ValueId{0});
  for (const size_t i : places_of(node)->present) {
    if (i >= node.outputs.size() || !uses.readers(node.outputs[i]).empty()) continue;
    drop(graph.outputs, node.outputs[i]);
    node.outputs[i] = 0;
  }
}

}  // namespace

Result<PastFree> without_past(const Graph& graph, const std::vector<std::string>& columns) {
  PastFree made{graph, {}};
  const GraphUses uses(graph);
  for (const ValueId id : graph.inputs) {
    if (!is_past(graph, uses, id)) continue;
    const std::string& name = graph.value(id).name;
    OFSDP_REJECT_IF(std::ranges::find(columns, name) != columns.end(),
                    "{}: input '{}': expected no column, for it is a past, which is fed empty; "
                    "found one",
                    graph.file, name);
    for (const size_t reader : uses.readers(id)) {
      drop_past(made.graph, uses, made.graph.nodes[reader], id);
    }
    drop(made.graph.inputs, id);
    made.fed_empty.push_back(name);
  }
  return made;
}

std::string past_line(const std::vector<std::string>& fed_empty) {
  if (fed_empty.empty()) return "";
  const size_t more = fed_empty.size() - 1;
  const std::string others =
      more == 0 ? "" : format_text(" and {} more input{}", more, more == 1 ? "" : "s");
  return format_text("past: {}{} {} fed empty: only past inputs of attention read {}\n",
                     escaped(fed_empty[0]), others, more == 0 ? "is" : "are",
                     more == 0 ? "it" : "them");
}

}  // namespace ofsdp::importer
