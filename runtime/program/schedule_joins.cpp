#include <algorithm>

#include "importer/graph/graph_uses.h"
#include "importer/graph/rank_rows.h"
#include "runtime/program/schedule_places.h"

namespace ofsdp::runtime {

void place_joins(const Graph& graph, StepPlaces& places) {
  const GraphUses uses(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!joins_rows(*node.op)) continue;
    const int index = static_cast<int>(n), maker = uses.maker(node.inputs[0]);
    StepPlaces::Steps& ready =
        maker < 0 ? places.before[n] : places.after[static_cast<size_t>(maker)];
    ready.push_back({StepKind::kPostRows, index});
    const auto& readers = uses.readers(node.outputs[0]);
    const size_t first = readers.empty() ? n : *std::ranges::min_element(readers);
    places.before[first].push_back({StepKind::kJoinRows, index});
  }
}

}  // namespace ofsdp::runtime
