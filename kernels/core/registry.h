// Registry: the operators this process knows, by domain and name. Built once by
// kernels/ops/operators.cpp (and by plug-ins later), then only read.
//
// Ownership: main owns it; everybody else has a const reference. Threads: any, once built.
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

// The best implementation that accepts the problem, made; or which operator refused which problem.
// `choice`, unless null, says which implementation it is and why others before it were not taken.
Result<std::unique_ptr<Kernel>> create_kernel(const OpDef& op, const Problem& problem,
                                              KernelChoice* choice = nullptr);

}  // namespace ofsdp::kernels
