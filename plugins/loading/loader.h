// Plug-ins from library to kernel: load_plugins opens the libraries that --plugin names,
// PluginLibrary is one of them, plugin_op_def makes an OpDef for each operator, and PluginNode
// holds a call's arguments.
//
// A library is checked when it is opened: version, completeness, names. It calls the program
// through an ofsdp_host.
//
// PluginLibrary closes the library when the last user is gone. Input errors name the file: it
// cannot be opened, is for another kind of machine, has no entry, was built against a newer header,
// or is incomplete.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"
#include "plugins/ofsdp_plugin.h"

namespace ofsdp::plugins {

// The arguments of a plug-in's functions: PluginNode is an ofsdp_node with everything it points to,
// made once for a problem and used in every step; calls allocate nothing.
//
// A PluginNode owns the arrays and keeps the library loaded; it never moves. One thread uses it,
// but any may call set_error. The library's error lines become input errors from infer and faults
// from kernels.

// Copies a library's struct to our size; members that it lacks are zero.
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

// Types have ONNX's numbers: onnx_number, dtype_from_onnx_number.
inline bool in_types(uint32_t types, DType dtype) {
  return (types & OFSDP_TYPE(onnx_number(dtype))) != 0;
}

// Returns an attribute in the C interface's form, which points into `value`.
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

  // Calls `function` and turns the answer or exception into a Status.
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

// Makes OpDefs from a plug-in's descriptions. An operator gives one for itself and, if backward is
// a kernel, one for that, named domain.Name under "ofsdp.backward":
//
//   inputs      the output gradients, the saved inputs, the saved outputs (absent: none,
//               or no gradient comes that way)
//   attributes  the node's, each operand's role ("ofsdp.operands") and the wanted gradients
//               ("ofsdp.wanted")
//   outputs     the gradients asked for, in input order
//
// OpDefs share the operator and with it the library.

inline constexpr const char* kBackwardDomain = "ofsdp.backward";

std::string backward_domain(const PluginOperator& op);

OpDef plugin_op_def(const PluginOperatorPtr& op);

// A plug-in's kernel: OFSDP_FORWARD or OFSDP_BACKWARD for a node. `run` calls the function for the
// CPU; `put` calls the one for CUDA, which puts work onto a stream.
class PluginKernel : public Kernel {
 public:
  template <typename... Operands>
  PluginKernel(int32_t phase, Operands&&... operands)
      : forward_(phase == OFSDP_FORWARD),
        node_(std::forward<Operands>(operands)...),
        bytes_(node_.scratch_bytes(phase)) {}

  size_t workspace_bytes() const override { return bytes_; }
  bool on_devices() const { return for_cuda() != nullptr; }

  Status run(const KernelArgs& args) override {
    const auto function = forward_ ? node_.op().def.forward : node_.op().def.backward;
    return call(forward_ ? "forward" : "backward", args, function);
  }
  Status put(const KernelArgs& args, void* stream) {
    return call(forward_ ? "cuda_forward" : "cuda_backward", args, for_cuda(), stream);
  }

 protected:
  // Sets the operands' addresses.
  virtual void use(const KernelArgs& args) = 0;
  PluginNode& node() { return node_; }

 private:
  int32_t (*for_cuda() const)(const ofsdp_node*, void*) {
    return forward_ ? node_.op().def.cuda_forward : node_.op().def.cuda_backward;
  }

  template <typename F, typename... More>
  Status call(const char* what, const KernelArgs& args, F function, More... more) {
    use(args);
    node_.set_scratch(args.workspace, bytes_);
    node_.set_step(args.step);
    return node_.call(ErrorKind::kFault, what, [&] { return function(&node_.node(), more...); });
  }

  bool forward_;
  PluginNode node_;
  size_t bytes_;
};
inline bool no_gradient(const ofsdp_operand& operand) {
  return (operand.flags & OFSDP_NO_GRADIENT) != 0;
}
bool has_backward_kernel(const PluginOperator& op);
OpDef plugin_backward_def(const PluginOperatorPtr& op);
void emit_backward(const PluginOperatorPtr& op, GradBuilder& builder);  // that node

// Returns the built-in operator with `op`'s kernels, and backward if it has one, in front.
OpDef overridden(const OpDef& built_in, const PluginOperatorPtr& op);

// Calls op.def.build_backward with functions that use `builder`.
void build_backward(const PluginOperatorPtr& op, GradBuilder& builder);

// Returns whether an operator's best kernel is a plug-in's; the name may be built-in.
bool of_plugin(const OpDef& op);

// Checks a node's operand count, types and attributes against the declaration.
Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs);

// Plug-in kernels on a device: `cuda_forward` and `cuda_backward` in ofsdp_plugin.h as the Kernel
// that a device's executor runs. A call passes the node, with device addresses, and the compute
// stream's native stream; it is made while a step is launched or captured, and a captured step is
// replayed without another call. The node's `step` is therefore -1.
//
// REQUIRES: the device outlives the kernels.

// Returns whether the kernel for the problem is a plug-in's, which comes before a built-in one with
// that name.
bool plugin_takes(const OpDef& op, const Problem& problem);

// REQUIRES: plugin_takes. Null: the plug-in has no function for CUDA.
std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op, const Problem& problem);

// The function table that libraries get.
ofsdp_host plugin_host();

class PluginLibrary {
 public:
  static Result<std::shared_ptr<const PluginLibrary>> open(const std::string& path);
  ~PluginLibrary();
  PluginLibrary(const PluginLibrary&) = delete;

  const std::string& path() const { return path_; }
  const ofsdp_host* host() const { return &host_; }
  const ofsdp_plugin& description() const { return plugin_; }

 private:
  PluginLibrary() = default;
  Status load(const std::string& path);
  Status describe();

  std::string path_;
  void* handle_ = nullptr;
  ofsdp_host host_ = {};
  ofsdp_plugin plugin_ = {};
};
using PluginLibraryPtr = std::shared_ptr<const PluginLibrary>;

// Returns the operators that the library describes, checked for completeness. The loader fills in
// `known`.
Result<std::vector<std::shared_ptr<PluginOperator>>> plugin_operators(
    const PluginLibraryPtr& library);
Result<std::vector<ofsdp_optimizer>> plugin_optimizers(const PluginLibrary& library);

// load_plugins finds the libraries that --plugin names, checks them and adds them to the built-in
// operators and optimizers.
//
// A name without a slash is looked for in OFSDP_PLUGIN_PATH's folders (separated by colons), as
// NAME, NAME.so and libNAME.so, and never in the current folder. Two libraries that claim one name
// are refused; one that claims a built-in operator needs `may_override`, and then the library's
// kernels come first and the built-in ones stay for problems that these refuse.
//
// The operators keep their libraries loaded. Input errors name --plugin and the file.

struct LoadedPlugins {
  Registry registry;                     // built-in and theirs
  std::vector<OptimizerDef> optimizers;  // as well; theirs are named "plugin:NAME"
  std::vector<PluginLibraryPtr> libraries;
  std::vector<PluginOperatorPtr> operators;  // theirs alone
};

Result<LoadedPlugins> load_plugins(const std::vector<std::string>& names, bool may_override);

// Returns the file for a name.
Result<std::string> find_plugin(const std::string& name, const std::string& search_path);

}  // namespace ofsdp::plugins
