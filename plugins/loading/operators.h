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

// A plug-in's kernel for the CPU, which its functions for CUDA put onto a stream of a device
// instead.
class PluginKernel : public Kernel {
 public:
  virtual bool on_devices() const = 0;  // whether it has such a function
  virtual Status put(const KernelArgs& args, void* stream) = 0;
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
