#include <algorithm>
#include <set>

#include "importer/graph/graph_uses.h"
#include "importer/passes/passes.h"

namespace ofsdp::importer {
namespace {

constexpr size_t kWideAccess = 16;      // bytes that the fast kernels of a device move at once
constexpr int64_t kPitchMultiple = 64;  // elements: 128 bytes of 16-bit floats
constexpr int64_t kRowOverRoom = 8;     // a row is at least that many times what is added to it

// Returns the pitch of rows that do not begin at multiples of 16 bytes; 0: they do, or it would
// cost too much.
int64_t wanted_pitch(const TensorDesc& desc) {
  const int64_t row = desc.row();
  if (desc.layout != Layout::kPlain || desc.shape.rank() < 2 || desc.numel() == 0) return 0;
  if (static_cast<size_t>(row) * dtype_size(desc.dtype) % kWideAccess == 0) return 0;
  const int64_t pitch = (row + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple;
  return (pitch - row) * kRowOverRoom <= row ? pitch : 0;
}

bool is_matrix_product(const Node& node) {
  static constexpr std::string_view kNames[] = {"Gemm", "MatMul", "ofsdp.MatMul",
                                                "com.microsoft.FusedMatMul", "ofsdp.GemmEpilogue"};
  return std::ranges::any_of(kNames,
                             [&](std::string_view name) { return is_operator(node, name); });
}

class RowPitcher {
 public:
  RowPitcher(const Graph& source, const TakesNode& takes)
      : graph_(source), takes_(takes), uses_(source) {
    for (ValueId id : trained_values(graph_)) fixed_.insert(id);
    fixed_.insert(graph_.matches);
    for (const Measured& m : graph_.measured) fixed_.insert(m.rows);
  }

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (is_matrix_product(node)) pitch(node.outputs[0]);
    }
    return std::move(graph_);
  }

 private:
  TensorDesc& desc(ValueId id) { return graph_.value(id).desc; }

  void pitch(ValueId product) {
    const int64_t wanted = product == 0 ? 0 : wanted_pitch(desc(product));
    if (wanted == 0 || desc(product).pitch != 0) return;
    const std::vector<ValueId> rows = same_rows(product);
    if (!std::ranges::all_of(rows, [&](ValueId id) { return may_have_pitch(id, product); })) return;
    for (ValueId id : rows) desc(id).pitch = wanted;
    if (all_take(rows)) return;
    for (ValueId id : rows) desc(id).pitch = 0;
  }

  // A view may show other rows than the product has.
  bool may_have_pitch(ValueId id, ValueId product) {
    return !fixed_.contains(id) && desc(id).row() == desc(product).row();
  }

  // Returns the value, its views, and what a node may write in their place, which has their bytes.
  std::vector<ValueId> same_rows(ValueId id) {
    std::vector<ValueId> found{id};
    for (size_t at = 0; at < found.size(); ++at) {
      for (size_t reader : uses_.readers(found[at])) {
        const ValueId more = in_place_of(graph_.nodes[reader], found[at]);
        if (more != 0 && std::ranges::find(found, more) == found.end()) found.push_back(more);
      }
    }
    return found;
  }

  // 0: none.
  ValueId in_place_of(const Node& node, ValueId id) {
    if (node.op->view) return node.inputs[0] == id ? node.outputs[0] : 0;
    const auto output = static_cast<size_t>(node.op->inplace_output);
    const bool over = std::ranges::any_of(node.op->inplace_inputs, [&](int k) {
      const auto input = static_cast<size_t>(k);
      return input < node.inputs.size() && node.inputs[input] == id;
    });
    const ValueId made = over && output < node.outputs.size() ? node.outputs[output] : 0;
    return made != 0 && desc(made) == desc(id) ? made : 0;
  }

  // Asks every node that makes or reads one of them.
  bool all_take(const std::vector<ValueId>& rows) {
    std::set<size_t> nodes;
    for (ValueId id : rows) {
      nodes.insert(static_cast<size_t>(uses_.maker(id)));
      nodes.insert(uses_.readers(id).begin(), uses_.readers(id).end());
    }
    return std::ranges::all_of(nodes, [&](size_t i) {
      const Node& node = graph_.nodes[i];
      return node.op->view || takes_(graph_, node);
    });
  }

  Graph graph_;
  const TakesNode& takes_;
  GraphUses uses_;
  std::set<ValueId> fixed_;
};

}  // namespace

Graph pitch_rows(const Graph& graph, const TakesNode& takes) {
  return RowPitcher(graph, takes).run();
}

}  // namespace ofsdp::importer
