// The arguments of a plug-in's functions: PluginNode is an ofsdp_node with everything it points
// to, made once for a problem and used in every step; its calls allocate nothing.
//
// A PluginNode owns its arrays and keeps the library loaded; it never moves. One thread uses it,
// but any may call set_error. The library's error lines become input errors of infer and faults of
// kernels.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>

#include "kernels/core/op_def.h"
#include "plugins/ofsdp_plugin.h"

namespace ofsdp::plugins {

// Copies a struct of the library to our size; members that it does not have are zero.
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

// Types have ONNX's numbers: number_of_dtype, dtype_of_number.
inline bool in_types(uint32_t types, DType dtype) {
  return (types & OFSDP_TYPE(number_of_dtype(dtype))) != 0;
}

// Returns an attribute in the form of the C interface, which points into `value`.
ofsdp_attribute plugin_attribute(const std::string& name, const Attribute& value);
// And back, as a copy.
Attribute attribute_of_plugin(const ofsdp_attribute& a);

// Tensors as the C interface shows them.
class PluginTensors {
 public:
  explicit PluginTensors(const std::vector<TensorDesc>& descs);
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
  // REQUIRES: no more descs than the declaration has; missing ones are absent.
  PluginNode(PluginOperatorPtr op, const Attributes& attributes, std::vector<TensorDesc> inputs,
             std::vector<TensorDesc> outputs, std::vector<TensorDesc> grad_outputs = {},
             std::vector<TensorDesc> grad_inputs = {});
  PluginNode(const PluginNode&) = delete;

  const PluginOperator& op() const { return *op_; }
  const ofsdp_node& node() const { return node_; }
  PluginTensors& inputs() { return inputs_; }
  PluginTensors& outputs() { return outputs_; }
  PluginTensors& grad_outputs() { return grad_outputs_; }
  PluginTensors& grad_inputs() { return grad_inputs_; }
  void set_scratch(std::byte* bytes, size_t size);
  void set_step(const StepContext* step);

  // Calls `function` and turns its answer or exception into a Status.
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

  // Called by the host's functions.
  void set_error(const char* message);
  int32_t set_output(size_t index, int32_t dtype, int32_t rank, const int64_t* shape);
  const ofsdp_attribute* attribute(const char* name) const;

 private:
  void clear_error();
  Status thrown(ErrorKind kind, const char* what, const char* message) const;
  Status failed(ErrorKind kind, const char* what) const;

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
