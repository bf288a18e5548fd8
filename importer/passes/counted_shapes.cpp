#include "importer/passes/counted_shapes.h"

#include <algorithm>
#include <set>

#include "importer/file/tensor_record.h"
#include "importer/graph/fold.h"

namespace ofsdp::importer {
namespace {

const std::set<std::string> kRestyled = {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity"};

// Whether input i of an operator that moves elements holds elements, not positions.
bool moves(const std::string& op, size_t i) { return op == "Concat" || i == 0; }

bool is_move(const Node& node, const Graph& graph) {
  static const std::set<std::string> kMoves = {"Gather",  "Slice",    "Concat", "Unsqueeze",
                                               "Squeeze", "Identity", "Reshape"};
  const std::string op = node.op->full_name();
  if (op == "Cast") {
    return dtype_from_onnx(node.attributes.i("to", 0)) == DType::kInt64 &&
           graph.value(node.inputs[0]).desc.dtype == DType::kInt64;
  }
  return kMoves.contains(op);
}

}  // namespace

ValueId CountedShapes::root(ValueId mask) const {
  const auto it = roots_.find(mask);
  return it == roots_.end() ? mask : it->second;
}

ValueId CountedShapes::count_of(ValueId mask, ValueId value) {
  return counted_.try_emplace(root(mask), value).first->second;
}

void CountedShapes::watch(const Node& node) {
  const std::string op = node.op->full_name();
  if (kRestyled.contains(op)) {
    const ValueId from = node.inputs[0];
    const bool known = roots_.contains(from);
    if (known || graph_.value(from).desc.dtype == DType::kBool)
      roots_[node.outputs[0]] = root(from);
  }
  if (op != "ReduceSum" || !roots_.contains(node.inputs[0])) return;
  const TensorDesc& y = graph_.value(node.outputs[0]).desc;
  const auto found = counted_.find(root(node.inputs[0]));
  if (found == counted_.end() || y.dtype != DType::kInt64 || y.numel() != 1) return;
  const int64_t all = graph_.value(node.inputs[0]).desc.numel();
  const int64_t mark = index_of({found->second, 1});
  shapes_[node.outputs[0]] = {make_constant<int64_t>(DType::kInt64, y.shape, {&all, 1}),
                              make_constant<int64_t>(DType::kInt64, y.shape, {&mark, 1}), true};
}

int64_t CountedShapes::index_of(Count count) {
  auto it = std::ranges::find(counts_, count);
  if (it == counts_.end()) it = counts_.insert(it, count);
  return it - counts_.begin() + 1;
}

Status CountedShapes::shape_of(const Node& node, int axis, Count count) {
  const Shape& shape = graph_.value(node.inputs[0]).desc.shape;
  std::vector<int64_t> marks(static_cast<size_t>(shape.rank()), 0);
  marks[static_cast<size_t>(axis)] = index_of(count);
  OFSDP_ASSIGN_OR_RETURN(auto descs, infer_outputs(graph_, node));
  Value& y = graph_.value(node.outputs[0]);
  y.desc = descs[0];
  OFSDP_RETURN_IF_ERROR(fold(graph_, node));
  const int64_t start = node.attributes.i("start", 0);  // Shape may give a part

  const auto begin = std::clamp<int64_t>(start < 0 ? start + shape.rank() : start, 0, shape.rank());
  const std::span<const int64_t> cut(marks.data() + begin, static_cast<size_t>(y.desc.numel()));
  shapes_[node.outputs[0]] = {y.constant, make_constant(DType::kInt64, y.desc.shape, cut), false};
  return {};
}

Result<bool> CountedShapes::move(const Node& node) {
  if (!is_move(node, graph_)) return false;
  std::vector<ConstantPtr> bounds, marks;
  bool exact = true;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    const auto it = shapes_.find(id);
    if (it != shapes_.end() && !moves(node.op->full_name(), i)) return false;
    if (it != shapes_.end()) exact = exact && it->second.exact;
    ConstantPtr bound = it != shapes_.end() ? it->second.bound : graph_.value(id).constant;
    if (id != 0 && bound == nullptr) return false;
    ConstantPtr mark = bound;
    if (id != 0 && moves(node.op->full_name(), i)) {
      if (bound->desc.dtype != DType::kInt64) return false;
      const std::vector<int64_t> none(static_cast<size_t>(bound->desc.numel()), 0);
      mark = it != shapes_.end() ? it->second.marks
                                 : make_constant<int64_t>(DType::kInt64, bound->desc.shape, none);
    }
    bounds.push_back(std::move(bound));
    marks.push_back(std::move(mark));
  }
  OFSDP_ASSIGN_OR_RETURN(ConstantPtr bound, fold_one(*graph_.registry, node, bounds));
  OFSDP_ASSIGN_OR_RETURN(ConstantPtr mark, fold_one(*graph_.registry, node, marks));
  Value& y = graph_.value(node.outputs[0]);
  y.desc = bound->desc;
  if (exact) {
    graph_.nodes.push_back(node);
  } else {
    y.kind = ValueKind::kConstant;
    y.constant = bound;
  }
  const bool marked = std::ranges::any_of(mark->as<int64_t>(), [](int64_t m) { return m != 0; });
  if (marked) shapes_[node.outputs[0]] = {std::move(bound), std::move(mark), exact};
  return true;
}

ValueId CountedShapes::bound(ValueId id) {
  if (graph_.value(id).constant != nullptr) return id;
  return editor_.add_constant(graph_.value(id).name + ".bound", shapes_.at(id).bound);
}

std::optional<Count> CountedShapes::mark(ValueId id, int64_t i) const {
  const auto it = shapes_.find(id);
  if (it == shapes_.end()) return std::nullopt;
  const int64_t index = it->second.marks->as<int64_t>()[static_cast<size_t>(i)];
  if (index == 0) return std::nullopt;
  return counts_[static_cast<size_t>(index - 1)];
}

}  // namespace ofsdp::importer
