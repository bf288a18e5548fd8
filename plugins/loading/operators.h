// OpDefs out of what a plug-in describes. An operator gives one for itself and, when its backward
// is a kernel, one for that, named domain.Name under "ofsdp.backward":
//
//   inputs      the gradients of the outputs, the saved inputs, the saved outputs (absent: none,
//               or no gradient comes that way)
//   attributes  those of the node, and what all operands are ("ofsdp.operands") and which gradients
//               are asked for ("ofsdp.wanted")
//   outputs     the gradients asked for, in the order of the inputs
//
// Ownership: OpDefs share the operator and with it the library. Threads and errors: as OpDef.
#pragma once

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

// `op`'s kernels, and its backward if it has one, in front of those of the built-in operator.
OpDef overridden(const OpDef& built_in, const PluginOperatorPtr& op);

// Calls op.def.build_backward, whose functions use `builder`.
void build_backward(const PluginOperatorPtr& op, GradBuilder& builder);

// Whether the best kernel of an operator, a built-in one perhaps by name, is a plug-in's.
bool of_plugin(const OpDef& op);

// Number, types and attributes of a node against the declaration.
Status check_operands(const PluginOperator& op, const Attributes& attributes,
                      const std::vector<TensorDesc>& inputs);

}  // namespace ofsdp::plugins
