#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "importer/file/tensor_record.h"
#include "importer/graph/graph.h"
#include "importer/passes/passes.h"
#include "kernels/cpu/stored_floats.h"

namespace ofsdp::importer {
namespace {

// Returns whether a loss's scores [N, C] may stay in 16 bits; the loss computes in float32.
bool has_narrow_form(const Graph& graph, const Node& node) {
  if (node.op->full_name() != "SoftmaxCrossEntropyLoss") return false;
  const bool alone = node.outputs.size() == 1 || node.outputs[1] == 0;
  return alone && graph.value(node.inputs[0]).desc.shape.rank() == 2;
}

class Narrowing {
 public:
  Narrowing(const Graph& source, DType dtype) : graph_(source), editor_(graph_), dtype_(dtype) {}

  Result<Graph> run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (const Parameter& p : graph_.parameters) {
      if (p.raw) raw_.insert(p.value);
    }
    lower_parameters(nodes);
    find_labels(nodes);
    for (Node& node : nodes) OFSDP_RETURN_IF_ERROR(add(std::move(node)));
    for (LossTerm& term : graph_.terms) {
      OFSDP_ASSIGN_OR_RETURN(term.value, in_type(term.value, DType::kFloat32));
    }
    return std::move(graph_);
  }

 private:
  // The value's type as far as nodes were visited.
  DType type(ValueId id) const { return id == 0 ? DType::kUndefined : graph_.value(id).desc.dtype; }

  // A parameter stays float32 if only OpDef::float32_inputs read it (running statistics).
  void lower_parameters(const std::vector<Node>& nodes) {
    std::set<ValueId> fixed, free;
    for (const Node& node : nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        (has_operand(node.op->float32_inputs, i) ? fixed : free).insert(node.inputs[i]);
      }
    }
    for (const Parameter& p : graph_.parameters) {
      Value& value = graph_.value(p.value);
      const bool statistic = fixed.contains(p.value) && !free.contains(p.value) && !p.trained;
      if (value.desc.dtype != DType::kFloat32 || statistic || p.raw) continue;
      value.desc.dtype = dtype_;
      if (value.constant != nullptr) value.constant = narrowed(*value.constant, dtype_);
    }
  }

  // Finds columns that only losses read, directly or through views.
  void find_labels(const std::vector<Node>& nodes) {
    for (ValueId id : graph_.inputs) {
      if (only_losses_read(nodes, id)) labels_.insert(id);
    }
  }

  static constexpr int kMaxViews = 16;  // label views, one after another

  static bool only_losses_read(const std::vector<Node>& nodes, ValueId id, int views = kMaxViews) {
    return std::ranges::all_of(nodes, [&](const Node& node) {
      if (std::ranges::find(node.inputs, id) == node.inputs.end()) return true;
      return node.op->float32_only ||
             (node.op->view && views > 0 && only_losses_read(nodes, node.outputs[0], views - 1));
    });
  }

  Status add(Node node) {
    const bool low = !node.op->float32_only && reads_low(node);
    const bool narrow_loss = type(node.inputs[0]) == dtype_ && has_narrow_form(graph_, node);
    if (narrow_loss) node.op = &graph_.registry->get("ofsdp.NarrowCrossEntropyLoss");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      ValueId& id = node.inputs[i];
      const DType found = type(id);
      if ((found != DType::kFloat32 && found != dtype_) || raw_.contains(id)) continue;
      const bool to_low = narrow_loss ? i == 0 : low && !has_operand(node.op->float32_inputs, i);
      OFSDP_ASSIGN_OR_RETURN(id, in_type(id, to_low ? dtype_ : DType::kFloat32));
    }
    return editor_.place_inferred(std::move(node));
  }

  bool reads_low(const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == 0 || has_operand(node.op->float32_inputs, i) || raw_.contains(id)) continue;
      const bool column = graph_.value(id).kind == ValueKind::kInput && !labels_.contains(id);
      if (type(id) == dtype_ || (column && type(id) == DType::kFloat32)) return true;
    }
    return false;
  }

  Result<ValueId> in_type(ValueId id, DType wanted) {
    if (type(id) == wanted) return id;
    const auto [it, added] = converted_.try_emplace({id, wanted}, 0);
    if (!added) return it->second;
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kConstant && wanted == dtype_) {
      it->second = editor_.add_constant(value.name, narrowed(*value.constant, dtype_));
    } else {
      const std::string name = format_text("{}.{}", value.name, dtype_name(wanted));
      OFSDP_ASSIGN_OR_RETURN(it->second,
                             editor_.add1("Cast", name, {id}, {{"to", onnx_number(wanted)}}));
    }
    return it->second;
  }

  Graph graph_;
  GraphEditor editor_;
  DType dtype_;
  std::set<ValueId> labels_;
  std::set<ValueId> raw_;  // these keep the file's types
  std::map<std::pair<ValueId, DType>, ValueId> converted_;
};

}  // namespace

ConstantPtr narrowed(const Constant& constant, DType dtype) {
  const float largest = dtype == DType::kFloat16 ? 65504.0f : 0x1.fep127f;
  std::vector<float> values(constant.as<float>().begin(), constant.as<float>().end());
  for (float& v : values) {
    if (std::isfinite(v)) v = std::clamp(v, -largest, largest);
  }
  Constant made{constant.desc, std::vector<std::byte>(values.size() * sizeof(uint16_t))};
  made.desc.dtype = dtype;
  narrow(values.data(), dtype, made.bytes.data(), static_cast<int64_t>(values.size()));
  return std::make_shared<const Constant>(std::move(made));
}

Result<Graph> lower_precision(const Graph& graph, DType dtype) {
  return Narrowing(graph, dtype).run();
}

}  // namespace ofsdp::importer
