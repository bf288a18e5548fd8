// Makes OpDefs of a plug-in's descriptions. An operator gives one for itself and, if its backward
// is a kernel, one for that, named domain.Name under "ofsdp.backward":
//
//   inputs      the gradients of the outputs, the saved inputs, the saved outputs (absent: none,
//               or no gradient comes that way)
//   attributes  the node's, the role of each operand ("ofsdp.operands") and the wanted gradients
//               ("ofsdp.wanted")
//   outputs     the gradients asked for, in the order of the inputs
//
// OpDefs share the operator and with it the library.
#pragma once

#include "kernels/core/device.h"
#include "plugins/loading/call.h"

namespace ofsdp::plugins {

inline constexpr const char* kBackwardDomain = "ofsdp.backward";

std::string backward_domain(const PluginOperator& op);

OpDef plugin_op_def(const PluginOperatorPtr& op);

// A plug-in's kernel: OFSDP_FORWARD or OFSDP_BACKWARD of a node. `run` calls the function for the
// CPU; `put` calls the one for CUDA, which puts its work onto a stream.
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
  // Sets the addresses of the operands.
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

// Returns the built-in operator with `op`'s kernels, and its backward if it has one, in front.
OpDef overridden(const OpDef& built_in, const PluginOperatorPtr& op);

// Calls op.def.build_backward with functions that use `builder`.
void build_backward(const PluginOperatorPtr& op, GradBuilder& builder);

// Returns whether the best kernel of an operator, perhaps built-in by name, is a plug-in's.
bool of_plugin(const OpDef& op);

// Checks number, types and attributes of a node against the declaration.
Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs);

// Kernels of plug-ins on a device: `cuda_forward` and `cuda_backward` of ofsdp_plugin.h as the
// Kernel that a device's executor runs. A call passes the node, with addresses of device memory,
// and the native stream of the compute stream; it is made while a step is launched or captured, and
// a captured step is replayed without another call. The node's `step` is therefore -1.
//
// REQUIRES: the device outlives the kernels.

// Returns whether the kernel for the problem is a plug-in's, which comes before a built-in one of
// that name.
bool plugin_takes(const OpDef& op, const Problem& problem);

// REQUIRES: plugin_takes. Null: the plug-in has no function for CUDA.
std::unique_ptr<Kernel> make_plugin_kernel(Device& device, const OpDef& op, const Problem& problem);

}  // namespace ofsdp::plugins
