#include "importer/normalize/old_node.h"

#include <cstring>

namespace ofsdp::importer {
namespace {

template <typename T>
void append_raw(const std::string& raw, std::vector<double>& to) {
  for (size_t at = 0; at + sizeof(T) <= raw.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, raw.data() + at, sizeof(T));
    to.push_back(static_cast<double>(value));
  }
}

// None for element types that no rule reads, and for bytes that are not there.
std::optional<std::vector<double>> numbers_of(const onnx::Tensor& tensor) {
  std::vector<double> all;
  const auto take = [&]<typename T>(const std::vector<T>& list) {
    if (tensor.is_raw_data()) return append_raw<T>(tensor.raw(), all);
    all.assign(list.begin(), list.end());
  };
  const int type = tensor.elem_type();
  if (type == onnx::TensorProto::FLOAT) take(tensor.floats());
  if (type == onnx::TensorProto::DOUBLE) take(tensor.doubles());
  if (type == onnx::TensorProto::INT64) take(tensor.int64s());
  if (type == onnx::TensorProto::INT32) take(tensor.int32s());
  int64_t count = 1;
  for (const int64_t size : tensor.sizes()) count *= size;
  if (static_cast<int64_t>(all.size()) != count) return {};
  return all;
}

}  // namespace

int64_t OldNode::i(const char* attribute, int64_t otherwise) const {
  return has(attribute) ? node_->i(onnx::Symbol(attribute)) : otherwise;
}

std::string OldNode::s(const char* attribute, const char* otherwise) const {
  return has(attribute) ? node_->s(onnx::Symbol(attribute)) : otherwise;
}

void OldNode::drop(const char* attribute) {
  if (has(attribute)) node_->removeAttribute(onnx::Symbol(attribute));
}

bool OldNode::reads(size_t input) const {
  const auto inputs = node_->inputs();
  return input < inputs.size() && !inputs[input]->uniqueName().empty();
}

bool OldNode::gives(size_t output) const {
  return output < node_->outputs().size() && !node_->outputs()[output]->uses().empty();
}

Result<int64_t> OldNode::rank(size_t input) const {
  const onnx::Value* value = node_->inputs()[input];
  if (value->has_sizes()) return static_cast<int64_t>(value->sizes().size());
  return input_error(
      "expected the number of axes of '{}' to be known, found no shape; declare it, or export with "
      "a newer opset",
      value->uniqueName());
}

std::optional<std::vector<double>> OldNode::numbers(size_t input) const {
  onnx::Value* value = node_->inputs()[input];
  if (value->node()->kind() == onnx::kConstant) {
    if (!value->node()->hasAttribute(onnx::kvalue)) return {};
    return numbers_of(value->node()->t(onnx::kvalue));
  }
  const std::string name = value->uniqueName();
  const auto stored = graph_->getInitializer(name);
  if (stored != graph_->initializers().end()) {
    if (auto numbers = numbers_of(*stored)) return numbers;
  }
  const auto floats = floats_of_ ? floats_of_(name) : std::nullopt;
  if (!floats) return {};
  return std::vector<double>(floats->begin(), floats->end());
}

onnx::Value* OldNode::before(const char* op, const std::vector<onnx::Value*>& inputs) {
  onnx::Node* made = graph_->create(onnx::Symbol(op), inputs);
  if (node_->has_name()) made->setName(node_->name() + "/" + op);
  return made->insertBefore(node_)->output();
}

onnx::Value* OldNode::constant(const onnx::Tensor& tensor) {
  onnx::Node* made = graph_->create(onnx::kConstant);
  made->t_(onnx::kvalue, tensor);
  return made->insertBefore(node_)->output();
}

onnx::Value* OldNode::ints(std::vector<int64_t> values, bool scalar) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::INT64;
  if (!scalar) tensor.sizes() = {static_cast<int64_t>(values.size())};
  tensor.int64s() = std::move(values);
  return constant(tensor);
}

onnx::Value* OldNode::floats(std::vector<float> values, bool scalar) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::FLOAT;
  if (!scalar) tensor.sizes() = {static_cast<int64_t>(values.size())};
  tensor.floats() = std::move(values);
  return constant(tensor);
}

onnx::Value* OldNode::truth(bool value) {
  onnx::Tensor tensor;
  tensor.elem_type() = onnx::TensorProto::BOOL;
  tensor.int32s() = {value ? 1 : 0};
  return constant(tensor);
}

onnx::Value* OldNode::none() {
  onnx::Node* made = graph_->create(onnx::kUndefined);
  made->insertBefore(node_)->output()->setUniqueName("");
  return made->output();
}

void OldNode::set_inputs(const std::vector<onnx::Value*>& inputs) {
  node_->removeAllInputs();
  for (onnx::Value* input : inputs) node_->addInput(input);
}

// `made` gets the name, type and readers of `old`. Subgraphs read it by that name.
void OldNode::take_over(onnx::Value* old, onnx::Value* made) {
  const std::string name = old->uniqueName();
  old->setUniqueName(graph_->getNextUniqueName(), false);
  const onnx::use_list uses = old->uses();
  made->setUniqueName(name, false);
  made->setElemType(old->elemType());
  if (old->has_sizes()) made->setSizes(old->sizes());
  old->wipeSizes();
  for (const onnx::Use& use : uses) use.user->replaceInput(use.offset, made);
}

void OldNode::replace_by(onnx::Node* made) {
  take_over(node_->output(), made->output());
  node_->destroy();
  node_ = last_ = made;
}

onnx::Node* OldNode::follow(size_t output, const char* op, const std::vector<onnx::Value*>& more) {
  onnx::Value* old = node_->outputs()[output];
  onnx::Node* made = graph_->create(onnx::Symbol(op));
  made->insertAfter(last_);
  take_over(old, made->output());
  made->addInput(old);
  for (onnx::Value* input : more) made->addInput(input);
  last_ = made;
  return made;
}

}  // namespace ofsdp::importer
