#include "importer/normalize/known_values.h"

#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "importer/normalize/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/namespaces.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

const onnx::OpSchema* BoundedSchemas::GetSchema(const std::string& key, int most_version,
                                                const std::string& domain) const {
  const auto* schema = onnx::OpSchemaRegistry::Instance()->GetSchema(key, most_version, domain);
  if (schema == nullptr || !schema->has_data_propagation_function()) return schema;
  auto& bounded = bounded_[schema];
  if (bounded == nullptr) {
    bounded = std::make_unique<onnx::OpSchema>(*schema);
    bounded->PartialDataPropagationFunction(
        [propagate = schema->GetDataPropagationFunction()](onnx::DataPropagationContext& c) {
          if (is_short(c)) propagate(c);
        });
  }
  return bounded.get();
}

bool BoundedSchemas::is_short(const onnx::DataPropagationContext& c) {
  for (size_t i = 0; i < c.getNumInputs(); ++i) {
    const onnx::TypeProto* type = c.getInputType(i);
    if (type == nullptr || !type->has_tensor_type()) continue;
    const auto& shape = type->tensor_type().shape();
    if (shape.dim_size() == 1 && shape.dim(0).dim_value() > kMaxListed) return false;
  }
  return true;
}

GraphTypes::GraphTypes(const onnx::ModelProto& model,
                       std::function<ConstantPtr(const std::string&)> known)
    : model_(model), known_(std::move(known)) {
  for (const auto& info : model.graph().value_info()) add(info.name(), info.type());
  for (const auto& info : model.graph().input()) add(info.name(), info.type());
  for (const auto& tensor : model.graph().initializer()) {
    onnx::TypeProto type;
    set_tensor_type(type, tensor.data_type(), tensor.dims());
    add(tensor.name(), type);
  }
}

const onnx::TypeProto* GraphTypes::find(const std::string& name) {
  infer();
  const auto found = types_.find(name);
  return found == types_.end() ? nullptr : &found->second;
}

std::optional<std::vector<int64_t>> GraphTypes::axes(const std::string& name) {
  const onnx::TypeProto* type = find(name);
  if (type == nullptr || !type->has_tensor_type() || !type->tensor_type().has_shape()) return {};
  std::vector<int64_t> axes;
  for (const auto& dim : type->tensor_type().shape().dim()) {
    axes.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
  }
  return axes;
}

bool GraphTypes::complete(const onnx::TypeProto& type) {
  if (!type.has_tensor_type()) return type.value_case() != onnx::TypeProto::VALUE_NOT_SET;
  return type.tensor_type().elem_type() != 0 && type.tensor_type().has_shape();
}

bool GraphTypes::small_integers(const onnx::TypeProto& type) {
  if (!complete(type) || !type.has_tensor_type()) return false;
  const auto& tensor = type.tensor_type();
  const int element = tensor.elem_type();
  if (element != onnx::TensorProto::INT64 && element != onnx::TensorProto::INT32) return false;
  return tensor.shape().dim_size() <= 1;
}

void GraphTypes::infer() {
  const int count = model_.graph().node_size();
  if (busy_ || inferred_ == count) return;
  busy_ = true;
  onnx::ModelProto part = part_from(inferred_);
  inferred_ = count;
  infer(part);
  for (int round = 0; round < kMaxRounds && add_known(part); ++round) infer(part);
  busy_ = false;
}

void GraphTypes::add(const std::string& name, const onnx::TypeProto& type) {
  const auto found = types_.find(name);
  if (found == types_.end()) {
    types_.emplace(name, type);
  } else if (complete(type)) {
    const onnx::TypeProto before = std::exchange(found->second, type);
    keep_sizes(before, found->second);
  }
}

void GraphTypes::keep_sizes(const onnx::TypeProto& before, onnx::TypeProto& type) {
  if (!before.has_tensor_type() || !type.has_tensor_type()) return;
  const auto& from = before.tensor_type().shape();
  auto& shape = *type.mutable_tensor_type()->mutable_shape();
  if (!before.tensor_type().has_shape() || from.dim_size() != shape.dim_size()) return;
  for (int i = 0; i < shape.dim_size(); ++i) {
    if (!shape.dim(i).has_dim_value() && from.dim(i).has_dim_value())
      *shape.mutable_dim(i) = from.dim(i);
  }
}

void GraphTypes::declare(onnx::ModelProto& part, const std::string& name) {
  const auto found = types_.find(name);
  if (found == types_.end()) return;
  auto& input = *part.mutable_graph()->add_input();
  input.set_name(name);
  *input.mutable_type() = found->second;
  if (!small_integers(found->second)) return;
  const ConstantPtr value = known_(name);
  if (value == nullptr || value->desc.numel() > kMaxKnown) return;
  *part.mutable_graph()->add_initializer() = tensor_proto(name, value->desc, value->bytes.data());
}

onnx::ModelProto GraphTypes::part_from(int first) {
  onnx::ModelProto part;
  part.set_ir_version(model_.ir_version());
  *part.mutable_opset_import() = model_.opset_import();
  std::unordered_set<std::string> inside;
  const auto& nodes = model_.graph().node();
  for (int i = first; i < nodes.size(); ++i) {
    for (const std::string& name : nodes[i].input()) {
      if (!name.empty() && inside.insert(name).second) declare(part, name);
    }
    for (const std::string& name : nodes[i].output()) inside.insert(name);
    *part.mutable_graph()->add_node() = nodes[i];
  }
  return part;
}

void GraphTypes::infer(onnx::ModelProto& part) {
  try {
    onnx::shape_inference::InferShapes(part, &schemas_,
                                       onnx::ShapeInferenceOptions{false, 0, true});
  } catch (const std::exception&) {
    // Keeps types inferred before the refused node.
  }
  for (const auto& info : part.graph().value_info()) add(info.name(), info.type());
  ++generation_;
}

bool GraphTypes::add_known(onnx::ModelProto& part) {
  std::unordered_set<std::string> inside;
  bool found = false;
  for (auto& node : *part.mutable_graph()->mutable_node()) {
    for (std::string& name : *node.mutable_input()) {
      if (!inside.contains(name)) continue;
      const auto type = types_.find(name);
      if (type == types_.end() || !small_integers(type->second)) continue;
      const ConstantPtr value = known_(name);
      if (value == nullptr || value->desc.numel() > kMaxKnown) continue;
      const std::string known_name = name + kKnownSuffix;
      if (inside.insert(known_name).second) {
        *part.mutable_graph()->add_initializer() =
            tensor_proto(known_name, value->desc, value->bytes.data());
      }
      name = known_name;
      found = true;
    }
    if (node.op_type() == "Constant") continue;
    inside.insert(node.output().begin(), node.output().end());
  }
  return found;
}

KnownValues::KnownValues(const onnx::ModelProto& model, const Registry& registry)
    : model_(model), registry_(registry) {
  const auto& initializers = model.graph().initializer();
  const auto trainable = trainable_names();
  for (int i = 0; i < initializers.size(); ++i) {
    const bool number = initializers[i].dims_size() == 0 || !trainable(initializers[i].name());
    if (number || !is_floating(dtype_from_onnx_number(initializers[i].data_type()))) {
      initializers_[initializers[i].name()] = i;
    }
  }
}

ConstantPtr KnownValues::find(const std::string& name) {
  index();
  if (const auto value = at_once(name)) return *value;
  std::vector<Waiting> stack{waiting(name)};
  for (;;) {
    Waiting& top = stack.back();
    ConstantPtr value;
    if (top.done()) {
      value = finish(top);
      stack.pop_back();
      if (stack.empty()) return value;
    } else {
      const std::string& input = top.node->input(top.order[top.next]);
      const auto known = at_once(input);
      if (!known && makers_.at(input) < top.maker) {
        stack.push_back(waiting(input));
        continue;
      }
      value = known.value_or(nullptr);
    }
    take(stack.back(), std::move(value));
  }
}

std::optional<int64_t> KnownValues::scalar(const std::string& name) {
  const ConstantPtr value = find(name);
  if (value == nullptr || value->desc.numel() != 1 || is_floating(value->desc.dtype)) return {};
  return static_cast<int64_t>(to_doubles(value->desc, value->bytes.data())[0]);
}

std::function<bool(const std::string&)> KnownValues::trainable_names() const {
  auto names = std::make_shared<std::unordered_set<std::string>>();
  for (const auto& node : model_.graph().node()) collect_reads(node, *names);
  return [names](const std::string& name) { return names->contains(name); };
}

void KnownValues::collect_reads(const onnx::NodeProto& node,
                                std::unordered_set<std::string>& names) {
  static const std::unordered_set<std::string> kComparisons = {"Equal", "Greater", "GreaterOrEqual",
                                                               "Less", "LessOrEqual"};
  if (!kComparisons.contains(node.op_type())) {
    names.insert(node.input().begin(), node.input().end());
  }
  for (const auto& attribute : node.attribute()) {
    for (const auto& inner : attribute.g().node()) collect_reads(inner, names);
  }
}

ConstantPtr KnownValues::ints(const std::vector<int64_t>& values, bool scalar, DType dtype) {
  const Shape shape = scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())};
  if (dtype == DType::kInt64) return make_constant<int64_t>(dtype, shape, values);
  const std::vector<int32_t> narrow(values.begin(), values.end());
  return make_constant<int32_t>(dtype, shape, narrow);
}

bool KnownValues::is_op(const onnx::NodeProto& node, const char* op) {
  return node.op_type() == op && short_domain(node.domain()).empty();
}

void KnownValues::index() {
  const auto& nodes = model_.graph().node();
  for (; indexed_ < nodes.size(); ++indexed_) {
    for (const std::string& name : nodes[indexed_].output()) makers_[name] = indexed_;
  }
}

KnownValues::Waiting KnownValues::waiting(const std::string& name) {
  const int maker = makers_.at(name);
  const onnx::NodeProto& node = model_.graph().node(maker);
  Waiting made{name, &node, maker, {}, {}};
  for (int i = 0; i < node.input_size(); ++i) made.order.push_back(i);
  made.inputs.resize(made.order.size());
  // The index first: with it, one axis in a shape may be known although others are not.
  if (gathered_shape(node) != nullptr) std::swap(made.order[0], made.order[1]);
  return made;
}

void KnownValues::take(Waiting& to, ConstantPtr value) {
  const int input = to.order[to.next++];
  to.unknown = value == nullptr && !to.node->input(input).empty();
  if (value != nullptr && to.next == 1 && input == 1) to.value = one_axis(*to.node, *value);
  to.inputs[static_cast<size_t>(input)] = std::move(value);
}

ConstantPtr KnownValues::finish(Waiting& from) {
  ConstantPtr value = from.value;
  if (value == nullptr && !from.unknown) value = folded(*from.node, from.name, from.inputs);
  if (value == nullptr) value = selected(*from.node);
  return remember(from.name, std::move(value));
}

ConstantPtr KnownValues::remember(const std::string& name, ConstantPtr value) {
  values_[name] = {value, types_->generation()};
  return value;
}

std::optional<ConstantPtr> KnownValues::at_once(const std::string& name) {
  if (name.empty()) return nullptr;
  if (const auto found = given_.find(name); found != given_.end()) return found->second;
  if (const auto found = values_.find(name); found != values_.end()) {
    const bool current =
        found->second.value != nullptr || found->second.generation == types_->generation();
    if (current) return found->second.value;
  }
  if (const auto found = initializers_.find(name); found != initializers_.end()) {
    auto constant = constant_from_onnx(model_.graph().initializer(found->second));
    return constant.ok() ? *constant : nullptr;
  }
  const auto maker = makers_.find(name);
  if (maker == makers_.end()) return nullptr;
  const onnx::NodeProto& node = model_.graph().node(maker->second);
  if (is_op(node, "Shape") || is_op(node, "Size")) return remember(name, shape_part(node));
  const OpDef* op = registry_.find(node.domain(), node.op_type());
  const bool foldable = op != nullptr && !op->random && known_bytes_ <= kMaxFoldedBytes;
  if (!foldable && gathered_shape(node) == nullptr) return remember(name, nullptr);
  return {};
}

ConstantPtr KnownValues::shape_part(const onnx::NodeProto& node) {
  if (is_op(node, "Size")) {
    const auto axes = types_->axes(node.input(0));
    const bool known = axes && std::ranges::count(*axes, kUnknownSize) == 0;
    return known ? ints({Shape(*axes).numel()}, true) : nullptr;
  }
  const auto sizes = axes_of(node);
  const bool known = sizes && std::ranges::count(*sizes, kUnknownSize) == 0;
  return known ? ints(*sizes, false) : nullptr;
}

std::optional<std::vector<int64_t>> KnownValues::axes_of(const onnx::NodeProto& shape) {
  const auto axes = types_->axes(shape.input(0));
  if (!axes) return {};
  const auto rank = static_cast<int64_t>(axes->size());
  auto bound = [&](const char* which, int64_t otherwise) {
    const int64_t at = int_attribute(shape, which, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const auto begin = axes->begin() + bound("start", 0);
  return std::vector<int64_t>{begin, std::max(begin, axes->begin() + bound("end", rank))};
}

ConstantPtr KnownValues::selected(const onnx::NodeProto& node) {
  const auto sizes = select(node, kMaxSelections);
  if (!sizes || std::ranges::count(sizes->values, kUnknownSize) > 0) return nullptr;
  return ints(sizes->values, sizes->scalar, sizes->dtype);
}

std::optional<KnownValues::Sizes> KnownValues::sizes_of(const std::string& name, int depth) {
  if (const ConstantPtr value = find(name); value != nullptr) return sizes_in(*value);
  const auto maker = makers_.find(name);
  if (depth == 0 || maker == makers_.end()) return {};
  const onnx::NodeProto& node = model_.graph().node(maker->second);
  if (!is_op(node, "Shape")) return select(node, depth - 1);
  const auto axes = axes_of(node);
  return axes ? std::optional(Sizes{*axes}) : std::nullopt;
}

std::optional<KnownValues::Sizes> KnownValues::sizes_in(const Constant& value) {
  const DType dtype = value.desc.dtype;
  const bool integers = dtype == DType::kInt64 || dtype == DType::kInt32;
  if (!integers || value.desc.shape.rank() > 1) return {};
  const auto numbers = to_doubles(value.desc, value.bytes.data());
  Sizes sizes{{numbers.begin(), numbers.end()}, value.desc.shape.rank() == 0, dtype};
  if (std::ranges::count(sizes.values, kUnknownSize) > 0) return {};
  return sizes;
}

std::optional<KnownValues::Sizes> KnownValues::select(const onnx::NodeProto& node, int depth) {
  if (node.input_size() == 0) return {};
  const auto from = [&] { return sizes_of(node.input(0), depth); };
  if (is_op(node, "Identity")) return from();
  if (is_op(node, "Cast")) return cast(node, from());
  if (is_op(node, "Squeeze") || is_op(node, "Unsqueeze")) {
    auto sizes = from();
    if (!sizes || sizes->values.size() != 1) return {};
    sizes->scalar = is_op(node, "Squeeze");
    return sizes;
  }
  if (is_op(node, "Gather") && node.input_size() == 2) return gathered(node, from());
  if (is_op(node, "Slice") && node.input_size() >= 3) return sliced(node, from());
  return is_op(node, "Concat") ? concatenated(node, depth) : std::nullopt;
}

std::optional<KnownValues::Sizes> KnownValues::cast(const onnx::NodeProto& node,
                                                    std::optional<Sizes> from) {
  const DType to = dtype_from_onnx_number(int_attribute(node, "to", 0));
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto fits = [](int64_t size) { return size <= kMost; };
  const bool narrow = to == DType::kInt32 && from && std::ranges::all_of(from->values, fits);
  if (!from || (to != DType::kInt64 && !narrow)) return {};
  from->dtype = to;
  return from;
}

std::optional<KnownValues::Sizes> KnownValues::gathered(const onnx::NodeProto& node,
                                                        std::optional<Sizes> from) {
  const ConstantPtr at = find(node.input(1));
  const bool known = from && !from->scalar && at != nullptr && at->desc.shape.rank() <= 1;
  if (!known || is_floating(at->desc.dtype)) return {};
  const auto count = static_cast<double>(from->values.size());
  Sizes sizes{{}, at->desc.shape.rank() == 0, from->dtype};
  for (double i : to_doubles(at->desc, at->bytes.data())) {
    i += i < 0 ? count : 0;
    if (i < 0 || i >= count) return {};
    sizes.values.push_back(from->values[static_cast<size_t>(i)]);
  }
  return sizes;
}

std::optional<KnownValues::Sizes> KnownValues::sliced(const onnx::NodeProto& node,
                                                      std::optional<Sizes> from) {
  const auto begin = scalar(node.input(1)), end = scalar(node.input(2));
  const bool plain = node.input_size() < 5 || scalar(node.input(4)) == 1;
  if (!from || from->scalar || !begin || !end || !plain) return {};
  const auto count = static_cast<int64_t>(from->values.size());
  const auto bound = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
  };
  const auto first = from->values.begin() + bound(*begin);
  return Sizes{{first, std::max(first, from->values.begin() + bound(*end))}, false, from->dtype};
}

std::optional<KnownValues::Sizes> KnownValues::concatenated(const onnx::NodeProto& node,
                                                            int depth) {
  Sizes all;
  for (const std::string& name : node.input()) {
    const auto part = sizes_of(name, depth);
    const bool first = all.values.empty();
    if (!part || part->scalar || (!first && part->dtype != all.dtype)) return {};
    all.dtype = part->dtype;
    all.values.insert(all.values.end(), part->values.begin(), part->values.end());
  }
  return all;
}

const onnx::NodeProto* KnownValues::gathered_shape(const onnx::NodeProto& node) const {
  if (!is_op(node, "Gather") || node.input_size() != 2) return nullptr;
  const auto maker = makers_.find(node.input(0));
  if (maker == makers_.end()) return nullptr;
  const onnx::NodeProto& shape = model_.graph().node(maker->second);
  return is_op(shape, "Shape") ? &shape : nullptr;
}

ConstantPtr KnownValues::one_axis(const onnx::NodeProto& node, const Constant& index) {
  const auto axes = axes_of(*gathered_shape(node));
  if (!axes || index.desc.numel() != 1) return nullptr;
  const auto rank = static_cast<int64_t>(axes->size());
  const auto at = static_cast<int64_t>(to_doubles(index.desc, index.bytes.data())[0]);
  if (at < -rank || at >= rank) return nullptr;
  const int64_t axis = (*axes)[static_cast<size_t>(at < 0 ? at + rank : at)];
  return axis < 0 ? nullptr : ints({axis}, index.desc.shape.rank() == 0);
}

ConstantPtr KnownValues::folded(const onnx::NodeProto& node, const std::string& name,
                                const std::vector<ConstantPtr>& inputs) {
  const OpDef* op = registry_.find(node.domain(), node.op_type());
  if (op == nullptr || op->random || known_bytes_ > kMaxFoldedBytes) return nullptr;
  Graph graph;
  graph.registry = &registry_;
  GraphEditor editor(graph);
  Node one{op, node.name(), {}, {}, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& input = node.input(static_cast<int>(i));
    one.inputs.push_back(inputs[i] == nullptr ? 0 : editor.add_constant(input, inputs[i]));
  }
  auto attributes = attributes_from_onnx(node);
  if (!attributes.ok()) return nullptr;
  one.attributes = *std::move(attributes);
  for (const std::string& output : node.output()) {
    one.outputs.push_back(output.empty() ? 0
                                         : editor.add_value({output, ValueKind::kActivation, {}}));
  }
  graph.nodes.push_back(std::move(one));
  const auto result = specialize(graph, {}, Mode::kTrain);
  if (!result.ok()) return nullptr;
  ConstantPtr value = result->value(result->find(name)).constant;
  if (value != nullptr) known_bytes_ += static_cast<int64_t>(value->bytes.size());
  return value;
}

}  // namespace ofsdp::importer
