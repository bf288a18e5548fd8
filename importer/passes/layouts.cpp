#include <algorithm>
#include <map>

#include "importer/passes/passes.h"

namespace ofsdp::importer {
namespace {

class LayoutPass {
 public:
  explicit LayoutPass(const Graph& source) : graph_(source), editor_(graph_) {}

  Result<Graph> run() {
    const std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (const Node& node : nodes) OFSDP_RETURN_IF_ERROR(place(node));
    for (Parameter& p : graph_.parameters) OFSDP_RETURN_IF_ERROR(want(p.gradient, Layout::kPlain));
    return std::move(graph_);
  }

 private:
  const TensorDesc& desc(ValueId id) const { return graph_.value(id).desc; }

  Status place(const Node& before) {
    Node node = before;
    backward_ = node.backward;
    const LayoutRule rule = node.op->layout;
    OFSDP_RETURN_IF_ERROR(rule == LayoutRule::kPlain         ? all_plain(node)
                          : rule == LayoutRule::kElementwise ? elementwise(node)
                                                             : channels_last(node));
    if (node.inputs != before.inputs) return editor_.place(std::move(node));
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  Status all_plain(Node& node) {
    for (ValueId& id : node.inputs) OFSDP_RETURN_IF_ERROR(want(id, Layout::kPlain));
    return {};
  }

  // Chooses channels last if an operand already has it and all have the output's shape.
  Status elementwise(Node& node) {
    const Shape shape = desc(node.outputs[0]).shape;  // `want` adds values
    bool last = false, same = shape.rank() == 4;
    for (ValueId id : node.inputs) {
      if (id == 0 || desc(id).numel() == 1) continue;
      last = last || desc(id).layout == Layout::kChannelsLast;
      same = same && desc(id).shape == shape;
    }
    if (!last || !same) return all_plain(node);
    for (ValueId& id : node.inputs) {
      if (desc(id).numel() != 1 || desc(id).shape == shape) {
        OFSDP_RETURN_IF_ERROR(want(id, Layout::kChannelsLast));
      }
    }
    for (ValueId id : node.outputs) {
      if (id != 0 && desc(id).shape == shape) graph_.value(id).desc.layout = Layout::kChannelsLast;
    }
    return {};
  }

  Status channels_last(Node& node) {
    auto named = [](const std::vector<int>& list, size_t i) {
      return std::ranges::find(list, static_cast<int>(i)) != list.end();
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == 0) continue;
      const bool last =
          named(node.op->channels_last_inputs, i) && desc(node.inputs[i]).shape.rank() == 4;
      OFSDP_RETURN_IF_ERROR(want(node.inputs[i], last ? Layout::kChannelsLast : Layout::kPlain));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == 0 || !named(node.op->channels_last_outputs, i)) continue;
      if (desc(node.outputs[i]).shape.rank() != 4) continue;
      graph_.value(node.outputs[i]).desc.layout = Layout::kChannelsLast;
    }
    return {};
  }

  // Replaces `id` by the same value in `layout`.
  Status want(ValueId& id, Layout layout) {
    if (id == 0 || desc(id).layout == layout) return {};
    const auto key = std::make_pair(id, layout);
    if (const auto it = reordered_.find(key); it != reordered_.end()) {
      id = it->second;
      return {};
    }
    const char* to = layout == Layout::kPlain ? "plain" : "channels_last";
    const std::string name = format_text("{}.{}", graph_.value(id).name, to);
    OFSDP_ASSIGN_OR_RETURN(
        const auto outputs,
        editor_.add("ofsdp.Reorder", name, {id}, {{"to", std::string(to)}}, 1, backward_));
    const ValueId made = outputs[0];
    reordered_[key] = made;
    reordered_[{made, desc(id).layout}] = id;
    id = made;
    return {};
  }

  Graph graph_;
  GraphEditor editor_;
  bool backward_ = false;
  std::map<std::pair<ValueId, Layout>, ValueId> reordered_;
};

}  // namespace

Result<Graph> assign_layouts(const Graph& graph) { return LayoutPass(graph).run(); }

}  // namespace ofsdp::importer
