// The arguments of a plug-in's functions: PluginNode is an ofsdp_node with everything it points
// to, made once for a problem and used in every step; its calls allocate nothing.
//
// Ownership: a PluginNode owns its arrays and keeps the library loaded; it never moves. Threads:
// one, but set_error may come from any. Errors: what the library said, as kInput from infer and
// kFault from kernels.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>

#include "kernels/core/op_def.h"
#include "plugins/ofsdp_plugin.h"

namespace ofsdp::plugins {

// A struct of the library in our size: what it does not have is zero.
template <typename T>
T whole(const T* given) {
  T made{};
  if (given != nullptr) std::memcpy(&made, given, std::min(given->struct_size, sizeof(T)));
  return made;
}

class PluginLibrary;

struct PluginOperator {
  std::shared_ptr<const PluginLibrary> library;  // keeps it loaded
  const ofsdp_host* host = nullptr;
  ofsdp_operator def = {};
  std::string domain, name;  // domain "" for ai.onnx
  std::vector<ofsdp_operand> inputs, outputs;
  std::vector<ofsdp_attribute> attributes;
  std::shared_ptr<const std::vector<std::string>> known;  // operators that backward may emit

  std::string full_name() const { return domain.empty() ? name : domain + "." + name; }
};
using PluginOperatorPtr = std::shared_ptr<const PluginOperator>;

// Types go by ONNX's numbers: number_of_dtype, dtype_of_number.
inline bool in_types(uint32_t types, DType dtype) {
  return (types & OFSDP_TYPE(number_of_dtype(dtype))) != 0;
}

// An attribute in the form of the C interface; it points into `value`.
inline ofsdp_attribute plugin_attribute(const std::string& name, const Attribute& value) {
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

// And back: a value of its own.
inline Attribute attribute_of_plugin(const ofsdp_attribute& a) {
  if (a.type == OFSDP_FLOAT) return a.f;
  if (a.type == OFSDP_STRING) return std::string(a.s == nullptr ? "" : a.s);
  if (a.type == OFSDP_INTS) return std::vector<int64_t>(a.ints, a.ints + a.count);
  if (a.type == OFSDP_FLOATS) return std::vector<float>(a.floats, a.floats + a.count);
  return a.i;
}

// Tensors as the C interface shows them.
class PluginTensors {
 public:
  explicit PluginTensors(const std::vector<TensorDesc>& descs) {
    for (const TensorDesc& desc : descs) {
      std::vector<int64_t>& numbers = numbers_.emplace_back(desc.shape.axes());
      const size_t rank = numbers.size();
      numbers.resize(2 * rank, 1);
      for (size_t i = rank; i-- > 1;) numbers[rank + i - 1] = numbers[rank + i] * numbers[i];
      tensors_.push_back({sizeof(ofsdp_tensor), static_cast<int32_t>(number_of_dtype(desc.dtype)),
                          static_cast<int32_t>(rank), nullptr, nullptr, nullptr});
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].shape = numbers_[i].data();
      tensors_[i].strides = numbers_[i].data() + numbers_[i].size() / 2;
      pointers_.push_back(&tensors_[i]);
    }
  }

  PluginTensors(const PluginTensors&) = delete;

  const ofsdp_tensor* const* data() const { return pointers_.data(); }
  size_t size() const { return tensors_.size(); }
  void set(size_t i, const void* bytes) { tensors_[i].data = const_cast<void*>(bytes); }

 private:
  std::vector<std::vector<int64_t>> numbers_;  // shapes and strides
  std::vector<ofsdp_tensor> tensors_;
  std::vector<const ofsdp_tensor*> pointers_;
};

class PluginNode {
 public:
  // `descs` beyond those of the declaration must not be there; missing ones are absent.
  PluginNode(PluginOperatorPtr op, const Attributes& attributes, std::vector<TensorDesc> inputs,
             std::vector<TensorDesc> outputs, std::vector<TensorDesc> grad_outputs = {},
             std::vector<TensorDesc> grad_inputs = {})
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

  PluginNode(const PluginNode&) = delete;

  const PluginOperator& op() const { return *op_; }
  const ofsdp_node& node() const { return node_; }
  PluginTensors& inputs() { return inputs_; }
  PluginTensors& outputs() { return outputs_; }
  PluginTensors& grad_outputs() { return grad_outputs_; }
  PluginTensors& grad_inputs() { return grad_inputs_; }
  void set_scratch(std::byte* bytes, size_t size) {
    node_.scratch = size == 0 ? nullptr : bytes;
    node_.scratch_size = size;
  }

  void set_step(const StepContext* step) {
    if (step == nullptr) return;
    node_.seed = step->seed;
    node_.step = step->step;
  }

  // Calls `function` and turns what it answers, or throws, into a Status.
  template <typename F>
  Status call(ErrorKind kind, const char* what, const F& function) {
    clear_error();
    try {
      if (function() == OFSDP_OK) return {};
    } catch (const std::exception& error) {
      return thrown(kind, what, error.what());
    } catch (...) {
      return thrown(kind, what, "no std::exception");
    }
    return failed(kind, what);
  }
  size_t scratch_bytes(int32_t phase) {
    return op_->def.scratch == nullptr ? 0 : op_->def.scratch(&node_, phase);
  }

  const std::vector<TensorDesc>& outputs_set() const { return outputs_set_; }

  // Behind the host's functions.
  void set_error(const char* message) {
    if (message == nullptr || said_.test_and_set()) return;
    std::snprintf(error_.data(), error_.size(), "%s", message);
    std::replace(error_.begin(), error_.end(), '\n', ' ');
  }

  int32_t set_output(size_t index, int32_t dtype, int32_t rank, const int64_t* shape) {
    const bool there = index < outputs_set_.size();
    if (!there || rank < 0 || rank > 64 || (rank > 0 && shape == nullptr)) {
      set_error(there ? "set_output: no shape of that rank"
                      : "set_output: no output of that index");
      return OFSDP_ERROR;
    }
    std::vector<int64_t> axes(shape, shape + rank);
    outputs_set_[index] = {dtype_of_number(dtype), Shape(std::move(axes))};
    return OFSDP_OK;
  }

  const ofsdp_attribute* attribute(const char* name) const {
    for (const ofsdp_attribute& attribute : attributes_) {
      if (std::strcmp(attribute.name, name) == 0) return &attribute;
    }
    return nullptr;
  }

 private:
  static std::vector<TensorDesc> padded(std::vector<TensorDesc> descs, size_t count) {
    descs.resize(count);
    return descs;
  }

  void clear_error() {
    error_[0] = '\0';
    said_.clear();
  }

  Status thrown(ErrorKind kind, const char* what, const char* message) const {
    return {kind, format_text("the plug-in's {} threw an exception: {}", what, message)};
  }

  Status failed(ErrorKind kind, const char* what) const {
    const char* message = error_[0] == '\0' ? "no message" : error_.data();
    return {kind, format_text("the plug-in's {} failed: {}", what, message)};
  }

  PluginOperatorPtr op_;
  Attributes held_;
  std::vector<ofsdp_attribute> attributes_;
  PluginTensors inputs_, outputs_, grad_outputs_, grad_inputs_;
  std::vector<TensorDesc> outputs_set_;
  ofsdp_node node_ = {};
  std::atomic_flag said_;
  std::array<char, 400> error_ = {};
};

}  // namespace ofsdp::plugins
