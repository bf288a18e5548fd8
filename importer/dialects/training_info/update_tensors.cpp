#include "importer/dialects/training_info/update_tensors.h"

#include <algorithm>
#include <numeric>

namespace ofsdp::importer {
namespace {

bool is_elementwise(const Node& node) {
  const std::string name = node.op->full_name();
  if (node.op->domain == kTrainingDomain || name == "Where" || name == "Clip") return true;
  return node.op->layout == LayoutRule::kElementwise && !node.op->random && name != "Dropout";
}

}  // namespace

Status UpdateTensors::run() {
  find_tensors();
  joined_.resize(graph_.values.size());
  std::iota(joined_.begin(), joined_.end(), 0);
  own_leaves();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    Status status = join(static_cast<int>(i));
    if (status.ok()) continue;
    return std::move(status).with_prefix(
        format_text("{}: training_info: node '{}' ({})", file_, node.name, node.op->full_name()));
  }
  return {};
}

// A bound scalar whose next value depends on a tensor is a tensor of one element.
void UpdateTensors::find_tensors() {
  for (const UpdateLeaf& leaf : split_.leaves) {
    const ValueId id = graph_.find(leaf.value);
    const bool scalar = leaf.kind == UpdateLeaf::Kind::kState && graph_.value(id).desc.numel() == 1;
    if (!scalar) tensors_.insert(id);
  }
  for (bool more = true; more;) {
    more = false;
    for (const Node& node : graph_.nodes) {
      if (!std::ranges::any_of(node.inputs, [&](ValueId id) { return is_tensor(id); })) continue;
      for (const ValueId id : node.outputs) more |= id != 0 && tensors_.insert(id).second;
    }
    for (const UpdateLeaf& leaf : split_.leaves) {
      if (leaf.next.empty() || !is_tensor(graph_.find(leaf.next))) continue;
      more |= tensors_.insert(graph_.find(leaf.value)).second;
    }
  }
}

void UpdateTensors::own_leaves() {
  for (const UpdateLeaf& leaf : split_.leaves) {
    if (leaf.kind != UpdateLeaf::Kind::kState) {
      owners_[graph_.find(leaf.value)] = leaf.initializer;
    }
  }
}

int UpdateTensors::root(ValueId id) {
  auto& parent = joined_[static_cast<size_t>(id)];
  return parent == id ? id : parent = root(parent);
}

const std::string* UpdateTensors::owner_of_set(int set) const {
  const auto found = owners_.find(set);
  return found == owners_.end() ? nullptr : &found->second;
}

Status UpdateTensors::unite(ValueId a, ValueId b) {
  const int x = root(a), y = root(b);
  if (x == y) return {};
  const std::string *first = owner_of_set(x), *second = owner_of_set(y);
  if (first != nullptr && second != nullptr && *first != *second) {
    return input_error("mixes the parameters '{}' and '{}': expected an update of each by itself",
                       *first, *second);
  }
  if (second != nullptr) owners_[x] = *second;
  joined_[static_cast<size_t>(y)] = x;
  return {};
}

Status UpdateTensors::join(int index) {
  const Node& node = graph_.nodes[static_cast<size_t>(index)];
  std::vector<ValueId> tensors;
  for (const ValueId id : node.inputs) {
    if (id != 0 && is_tensor(id)) tensors.push_back(id);
  }
  if (tensors.empty()) {
    scalar_nodes_.push_back(index);
    return {};
  }
  for (const ValueId id : node.outputs) {
    if (id != 0) tensors.push_back(id);
  }
  for (const ValueId id : tensors) OFSDP_RETURN_IF_ERROR(unite(tensors[0], id));
  if (!is_elementwise(node)) {
    return input_error("is not elementwise, so it cannot be computed on a shard");
  }
  return check_shapes(node, tensors);
}

Status UpdateTensors::check_shapes(const Node& node, const std::vector<ValueId>& tensors) const {
  const Shape& shape = graph_.value(tensors[0]).desc.shape;
  for (const ValueId id : tensors) {
    const Value& value = graph_.value(id);
    if (!(value.desc.shape == shape)) {
      return input_error("expected {} of the shape of '{}', {}, found {}", value.name,
                         graph_.value(tensors[0]).name, shape.text(), value.desc.shape.text());
    }
    const bool known = value.desc.dtype == DType::kFloat32 || value.desc.dtype == DType::kBool;
    if (!known) {
      return input_error("'{}': expected float32 or bool, found {}", value.name,
                         dtype_name(value.desc.dtype));
    }
  }
  for (const ValueId id : node.inputs) {
    if (id == 0 || is_tensor(id)) continue;
    const Value& value = graph_.value(id);
    if (value.desc.numel() == 1 && value.desc.shape.rank() <= shape.rank()) continue;
    return input_error("'{}': expected a scalar, found {}", value.name, value.desc.text());
  }
  return {};
}

}  // namespace ofsdp::importer
