#include <algorithm>
#include <cstdio>
#include <cstring>

#include "plugins/loading/loader.h"

namespace ofsdp::plugins {
namespace {

std::vector<TensorDesc> padded(std::vector<TensorDesc> descs, size_t count) {
  descs.resize(count);
  return descs;
}

}  // namespace

ofsdp_attribute plugin_attribute(const std::string& name, const Attribute& value) {
  ofsdp_attribute made{};
  made.struct_size = sizeof(made);
  made.name = name.c_str();
  if (const auto* i = std::get_if<int64_t>(&value)) {
    made.type = OFSDP_INT, made.i = *i;
  } else if (const auto* f = std::get_if<float>(&value)) {
    made.type = OFSDP_FLOAT, made.f = *f;
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    made.type = OFSDP_STRING, made.s = s->c_str();
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    made.type = OFSDP_INTS, made.ints = ints->data(), made.count = ints->size();
  } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
    made.type = OFSDP_FLOATS, made.floats = floats->data(), made.count = floats->size();
  }
  return made;
}

Attribute attribute_of_plugin(const ofsdp_attribute& a) {
  if (a.type == OFSDP_FLOAT) return a.f;
  if (a.type == OFSDP_STRING) return std::string(a.s == nullptr ? "" : a.s);
  if (a.type == OFSDP_INTS) return std::vector<int64_t>(a.ints, a.ints + a.count);
  if (a.type == OFSDP_FLOATS) return std::vector<float>(a.floats, a.floats + a.count);
  return a.i;
}

PluginTensors::PluginTensors(const std::vector<TensorDesc>& descs) {
  for (const TensorDesc& desc : descs) {
    std::vector<int64_t>& numbers = numbers_.emplace_back(desc.shape.axes());
    const size_t rank = numbers.size();
    numbers.resize(2 * rank, 1);
    for (size_t i = rank; i-- > 1;) numbers[rank + i - 1] = numbers[rank + i] * numbers[i];
    tensors_.push_back({sizeof(ofsdp_tensor), static_cast<int32_t>(onnx_number(desc.dtype)),
                        static_cast<int32_t>(rank), nullptr, nullptr, nullptr});
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].shape = numbers_[i].data();
    tensors_[i].strides = numbers_[i].data() + numbers_[i].size() / 2;
    pointers_.push_back(&tensors_[i]);
  }
}

PluginNode::PluginNode(PluginOperatorPtr op, const Attributes& attributes,
                       std::vector<TensorDesc> inputs, std::vector<TensorDesc> outputs,
                       std::vector<TensorDesc> grad_outputs, std::vector<TensorDesc> grad_inputs)
    : op_(std::move(op)),
      held_(attributes),
      inputs_(padded(std::move(inputs), op_->inputs.size())),
      outputs_(padded(std::move(outputs), op_->outputs.size())),
      grad_outputs_(padded(std::move(grad_outputs), op_->outputs.size())),
      grad_inputs_(padded(std::move(grad_inputs), op_->inputs.size())),
      outputs_set_(op_->outputs.size()) {
  for (const auto& [name, value] : held_.all()) {
    attributes_.push_back(plugin_attribute(name, value));
  }
  for (const ofsdp_attribute& declared : op_->attributes) {
    if (!held_.has(declared.name) && declared.required == 0) attributes_.push_back(declared);
  }
  node_ = {.struct_size = sizeof(ofsdp_node),
           .host = op_->host,
           .context = this,
           .inputs = inputs_.data(),
           .num_inputs = inputs_.size(),
           .outputs = outputs_.data(),
           .num_outputs = outputs_.size(),
           .grad_outputs = grad_outputs_.data(),
           .grad_inputs = grad_inputs_.data(),
           .scratch = nullptr,
           .scratch_size = 0,
           .seed = 0,
           .step = 0};
}

void PluginNode::set_scratch(std::byte* bytes, size_t size) {
  node_.scratch = size == 0 ? nullptr : bytes;
  node_.scratch_size = size;
}

void PluginNode::set_step(const StepContext* step) {
  if (step == nullptr) return;
  node_.seed = step->seed;
  node_.step = step->step;
}

void PluginNode::set_error(const char* message) {
  if (message == nullptr || said_.test_and_set()) return;
  std::snprintf(error_.data(), error_.size(), "%s", message);
  std::replace(error_.begin(), error_.end(), '\n', ' ');
}

int32_t PluginNode::set_output(size_t index, int32_t dtype, int32_t rank, const int64_t* shape) {
  const bool there = index < outputs_set_.size();
  if (!there || rank < 0 || rank > 64 || (rank > 0 && shape == nullptr)) {
    set_error(there ? "set_output: no shape of that rank" : "set_output: no output of that index");
    return OFSDP_ERROR;
  }
  std::vector<int64_t> axes(shape, shape + rank);
  outputs_set_[index] = {dtype_from_onnx_number(dtype), Shape(std::move(axes))};
  return OFSDP_OK;
}

const ofsdp_attribute* PluginNode::attribute(const char* name) const {
  for (const ofsdp_attribute& attribute : attributes_) {
    if (std::strcmp(attribute.name, name) == 0) return &attribute;
  }
  return nullptr;
}

void PluginNode::clear_error() {
  error_[0] = '\0';
  said_.clear();
}

Status PluginNode::thrown(ErrorKind kind, const char* what, const char* message) const {
  return {kind, format_text("the plug-in's {} threw an exception: {}", what, message)};
}

Status PluginNode::failed(ErrorKind kind, const char* what) const {
  const char* message = error_[0] == '\0' ? "no message" : error_.data();
  return {kind, format_text("the plug-in's {} failed: {}", what, message)};
}

}  // namespace ofsdp::plugins
