// Registry: the operators this process knows, by domain and name. Built once by
// kernels/ops/operators.cpp (and by plug-ins later), then only read.
//
// main owns it; all others have a const reference.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "kernels/core/kernel_choice.h"
#include "kernels/core/op_def.h"

namespace ofsdp::kernels {

class Registry {
 public:
  void add(OpDef op);
  void add_own(OpDef op);  // in the domain "ofsdp"
  const OpDef* find(const std::string& domain, const std::string& name) const;  // null: unknown
  const OpDef& get(const std::string& full_name) const;  // of ours; "ofsdp.ReluGrad", "Relu"
  const std::map<std::pair<std::string, std::string>, OpDef>& all() const { return ops_; }

 private:
  std::map<std::pair<std::string, std::string>, OpDef> ops_;
};

Registry make_registry();  // every operator of kernels/ops

// Makes the best implementation that accepts the problem; the error names operator and problem.
// `choice`, unless null, receives the implementation and why others before it were not taken.
Result<std::unique_ptr<Kernel>> create_kernel(const OpDef& op, const Problem& problem,
                                              KernelChoice* choice = nullptr);

}  // namespace ofsdp::kernels
