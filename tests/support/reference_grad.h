// A GradBuilder without a graph: evaluates the nodes that `grad` emits at once, with references, in
// double.
//
// Forward values belong to one node on given inputs; `seeds` are the gradients of the outputs.
// `error()` collects failures on the way (an unknown operator, an infer that refuses, a node that
// no kernel accepts).
#pragma once

#include <map>
#include <set>
#include <string>

#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_values.h"

namespace ofsdp::testing {

class ReferenceGrad final : public GradBuilder {
 public:
  // `needed`: the inputs that need a gradient.
  ReferenceGrad(const Registry& registry, const OpDef& op, const SampleCase& sample,
                const CaseValues& values, std::set<size_t> needed);

  const std::vector<RefTensor>& outputs() const { return outputs_; }
  void seed(size_t output, RefTensor gradient);
  const std::map<size_t, Ref>& grads() const { return grads_; }
  const RefTensor& value(Ref ref) const { return values_[static_cast<size_t>(ref.id)].tensor; }
  const std::string& error() const { return error_; }

  Attributes attributes() const override { return sample_.attributes; }
  size_t num_inputs() const override { return inputs_.size(); }
  Ref input(size_t i) const override { return inputs_[i]; }
  Ref output(size_t i) override;
  Ref grad_output(size_t i) const override;
  bool needs_grad(size_t i) const override { return needed_.contains(i); }
  TensorDesc desc(Ref ref) const override { return value(ref).desc; }
  ConstantPtr constant_value(Ref ref) const override {
    return values_[static_cast<size_t>(ref.id)].constant;
  }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override;
  Ref constant(ConstantPtr value) override;
  void set_grad(size_t input, Ref grad) override;
  void fail(Status status) override { error_ += status.message() + "\n"; }

 private:
  struct Value {
    RefTensor tensor;
    ConstantPtr constant;
  };

  Ref add(RefTensor tensor, ConstantPtr constant = nullptr);
  std::vector<RefTensor> evaluate(const OpDef& op, const Attributes& attributes,
                                  const std::vector<Ref>& inputs, size_t num_outputs,
                                  bool needs_kernel);

  const Registry& registry_;
  const OpDef& op_;
  const SampleCase& sample_;
  std::set<size_t> needed_;
  std::vector<Value> values_ = {{}};  // value 0 is none
  std::vector<Ref> inputs_;
  std::vector<RefTensor> outputs_;  // the node's, as many as the sample has
  std::map<size_t, Ref> output_refs_;
  std::map<size_t, Ref> seeds_;
  std::map<size_t, Ref> grads_;
  std::string error_;
};

}  // namespace ofsdp::testing
