#include "importer/normalize/graph_rewriter.h"

#include <algorithm>
#include <utility>

#include "importer/passes/model_inputs.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"
#include "kernels/core/op_def.h"

namespace ofsdp::importer {

std::string GraphNames::fresh(const std::string& name) {
  std::string made = name;
  while (made.empty() || !taken_.insert(made).second) {
    made = name + "__" + std::to_string(++last_[name]);
  }
  return made;
}

void GraphNames::rename(onnx::NodeProto& node, NameMap& bound) {
  if (!node.name().empty()) node.set_name(fresh(node.name()));
  for (auto& name : *node.mutable_input()) replace(name, bound);
  for (auto& attribute : *node.mutable_attribute()) {
    if (attribute.has_g()) rename(*attribute.mutable_g(), bound);
  }
  for (auto& name : *node.mutable_output()) define(name, bound);
}

void GraphNames::replace(std::string& name, const NameMap& bound) {
  const auto found = bound.find(name);
  if (found != bound.end()) name = found->second;
}

void GraphNames::collect(const onnx::GraphProto& graph) {
  for (const auto& info : graph.input()) taken_.insert(info.name());
  for (const auto& info : graph.output()) taken_.insert(info.name());
  for (const auto& tensor : graph.initializer()) taken_.insert(tensor.name());
  for (const auto& node : graph.node()) {
    taken_.insert(node.name());
    for (const auto& name : node.output()) taken_.insert(name);
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) collect(attribute.g());
    }
  }
}

void GraphNames::rename(onnx::GraphProto& graph, NameMap bound) {
  std::unordered_set<std::string> local;
  auto shadow = [&](std::string& name) {
    if (local.insert(name).second)
      bound.erase(name);  // an input may have a default value with the same name
    define(name, bound);
  };
  for (auto& info : *graph.mutable_input()) shadow(*info.mutable_name());
  for (auto& tensor : *graph.mutable_initializer()) shadow(*tensor.mutable_name());
  for (auto& node : *graph.mutable_node()) rename(node, bound);
  for (auto& info : *graph.mutable_output()) replace(*info.mutable_name(), bound);
}

void GraphNames::define(std::string& name, NameMap& bound) {
  if (name.empty()) return;
  const auto found = bound.find(name);
  name = found != bound.end() ? found->second : bound[name] = fresh(name);
}

Result<Reasons> rewrite_graph(onnx::ModelProto& model, const Registry& registry,
                              const InputNumbers& numbers) {
  const bool whole = std::ranges::all_of(model.graph().node(), [&](const auto& node) {
    return registry.find(node.domain(), node.op_type()) != nullptr;
  });
  return whole ? Reasons{} : GraphRewriter(model, registry, numbers).run();
}

GraphRewriter::GraphRewriter(onnx::ModelProto& model, const Registry& registry,
                             const InputNumbers& numbers)
    : model_(model),
      registry_(registry),
      names_(model.graph()),
      known_(model, registry),
      types_(model, [this](const std::string& name) { return known_.find(name); }) {
  known_.set_types(types_);
  for (const auto& input : model.graph().input()) {
    const auto found = numbers.find(input.name());
    if (found == numbers.end() || !input.type().has_tensor_type()) continue;
    const auto& type = input.type().tensor_type();
    std::vector<int64_t> axes;
    for (const auto& dim : type.shape().dim()) axes.push_back(dim.dim_value());  // 0: unknown
    const bool fixed = std::ranges::count(axes, 0) == 0;
    const DType dtype = dtype_from_onnx_number(type.elem_type());
    if (fixed) known_.know(input.name(), filled_constant(dtype, Shape(axes), found->second));
  }
  file_nodes_ = model.graph().node_size();
  file_bytes_ = static_cast<int64_t>(model.graph().ByteSizeLong());
  nodes_.Swap(model.mutable_graph()->mutable_node());
}

Result<Reasons> GraphRewriter::run() {
  for (auto& node : nodes_) OFSDP_RETURN_IF_ERROR(process(std::move(node)));
  return std::move(reasons_);
}

Status GraphRewriter::check_budgets() const {
  OFSDP_REJECT_IF(made_nodes_ > file_nodes_ + kMaxNodes,
                  "expected loops, branches and functions that make at most {} nodes, found more",
                  kMaxNodes);
  OFSDP_REJECT_IF(made_bytes_ > file_bytes_ + kMaxModelBytes,
                  "expected loops, branches and functions that make at most {} bytes, found more",
                  kMaxModelBytes);
  return ok_status();
}

Status GraphRewriter::hold(const std::string& name, std::vector<std::string> tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  held_tensors_ += count;
  OFSDP_REJECT_IF(count > kMaxIterations, "expected a sequence of at most {} tensors, found {}",
                  kMaxIterations, count);
  OFSDP_REJECT_IF(held_tensors_ > kMaxNodes,
                  "expected sequences of at most {} tensors in all, found more", kMaxNodes);
  sequences[name] = std::move(tensors);
  return ok_status();
}

Status GraphRewriter::process(onnx::NodeProto node) {
  OFSDP_RETURN_IF_ERROR(check_budgets());
  const std::string name =
      node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  const std::string label = format_text("node '{}' ({})", name, operator_name(node));
  return resolve(node).with_prefix(label);
}

Status GraphRewriter::resolve(onnx::NodeProto& node) {
  if (is_sequence_node(*this, node)) return resolve_sequences(*this, node);
  if (registry_.find(node.domain(), node.op_type()) != nullptr) {
    keep(std::move(node));
    return {};
  }
  const std::string op = operator_name(node);
  if (op == "If") return resolve_if(*this, node);
  if (op == "Loop") return resolve_loop(*this, node);
  if (op == "Scan") return resolve_scan(*this, node);
  auto body = function_body(*this, node);
  if (!body) {
    keep(std::move(node));
    return {};
  }
  for (auto& inner : *body) OFSDP_RETURN_IF_ERROR(process(std::move(inner)));
  return {};
}

Status GraphRewriter::refuse(onnx::NodeProto node, const std::string& why) {
  reasons_[operator_name(node)] = why;
  keep(std::move(node));
  return {};
}

Status GraphRewriter::add(const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs,
                          const IntAttributes& attributes) {
  onnx::NodeProto node;
  node.set_op_type(op);
  node.set_name(names_.fresh(outputs[0] + "_" + op));
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  for (const auto& [name, value] : attributes) add_attribute(node, name, value);
  return process(std::move(node));
}

Status GraphRewriter::alias(const std::string& from, const std::string& to) {
  if (to.empty()) return {};
  return add("Identity", {from}, {to});
}

void GraphRewriter::constant(const std::string& name, const onnx::TensorProto& tensor) {
  onnx::NodeProto node = constant_node(name, tensor);
  node.set_name(name);
  keep(std::move(node));
}

void GraphRewriter::scalar(const std::string& name, int type, int64_t value) {
  onnx::TensorProto tensor;
  tensor.set_data_type(type);
  if (type == onnx::TensorProto::INT64) {
    tensor.add_int64_data(value);
  } else {
    tensor.add_int32_data(static_cast<int32_t>(value));
  }
  constant(name, tensor);
}

std::string GraphRewriter::ints(const std::vector<int64_t>& values) {
  onnx::TensorProto tensor;
  tensor.set_data_type(onnx::TensorProto::INT64);
  tensor.add_dims(static_cast<int64_t>(values.size()));
  for (const int64_t value : values) tensor.add_int64_data(value);
  const std::string name = names_.fresh("ints");
  constant(name, tensor);
  return name;
}

Result<std::vector<std::string>> GraphRewriter::process_body(
    onnx::GraphProto body, const std::vector<std::string>& inputs) {
  OFSDP_RETURN_IF_ERROR(check_budgets());
  NameMap bound;
  for (int i = 0; i < body.input_size() && i < static_cast<int>(inputs.size()); ++i) {
    bound[body.input(i).name()] = inputs[static_cast<size_t>(i)];
  }
  for (const auto& tensor : body.initializer()) {
    if (bound.contains(tensor.name())) continue;
    constant(bound[tensor.name()] = names_.fresh(tensor.name()), tensor);
  }
  for (auto& node : *body.mutable_node()) {
    names_.rename(node, bound);
    OFSDP_RETURN_IF_ERROR(process(std::move(node)));
  }
  std::vector<std::string> outputs;
  for (const auto& output : body.output()) {
    const auto found = bound.find(output.name());
    outputs.push_back(found == bound.end() ? output.name() : found->second);
  }
  return outputs;
}

Result<std::vector<std::string>> GraphRewriter::unstack(const std::string& name, int64_t axis,
                                                        int64_t count) {
  OFSDP_REJECT_IF(count > kMaxIterations, "expected at most {} tensors along axis {}, found {}",
                  kMaxIterations, axis, count);
  std::vector<std::string> slices, pieces;
  for (int64_t i = 0; i < count; ++i) {
    slices.push_back(names_.fresh(name + "_slice"));
    pieces.push_back(names_.fresh(name + "_piece"));
  }
  const std::string sizes = ints(std::vector<int64_t>(static_cast<size_t>(count), 1));
  const std::string axes = ints({axis});
  if (count > 0) OFSDP_RETURN_IF_ERROR(add("Split", {name, sizes}, slices, {{"axis", axis}}));
  for (size_t i = 0; i < slices.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(add("Squeeze", {slices[i], axes}, {pieces[i]}));
  }
  return pieces;
}

Status GraphRewriter::stack(const std::vector<std::string>& pieces, int64_t axis,
                            const std::string& to) {
  const std::string axes = ints({axis});
  std::vector<std::string> slices;
  for (const std::string& piece : pieces) {
    slices.push_back(names_.fresh(piece + "_slice"));
    OFSDP_RETURN_IF_ERROR(add("Unsqueeze", {piece, axes}, {slices.back()}));
  }
  return add("Concat", slices, {to}, {{"axis", axis}});
}

}  // namespace ofsdp::importer
