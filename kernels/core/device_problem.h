// A Problem in the C form that device libraries get, and back.
//
// Ownership: EncodedProblem owns what its C structs point to, but for the bytes of constants and
// attributes, which are the Problem's. Threads: one. Errors: none.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "kernels/core/device_table.h"
#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

class EncodedProblem {
 public:
  EncodedProblem(const std::string& op, const Problem& problem);
  EncodedProblem(const EncodedProblem&) = delete;
  const ofsdp_problem& get() const { return problem_; }

 private:
  void add(const std::string& name, const Attribute& value);

  std::deque<std::string> strings_;
  std::deque<ofsdp_device_operand> tensors_;
  std::vector<ofsdp_device_attribute> attributes_;
  std::vector<ofsdp_device_operand> inputs_, outputs_;
  ofsdp_problem problem_{};
};

// Copies everything, constants included.
Problem decode(const ofsdp_problem& problem);

}  // namespace ofsdp::kernels
