// One node of a plug-in's operator, evaluated as it is built: its forward and, through `grad`, its
// backward, each tensor between guard pages. Kernels of the plug-in run four times - twice alike,
// once over other old bytes, once with two threads - and must give the same bits every time.
//
// Ownership: owns its tensors. Threads: one. Errors: what is wrong is collected, one line each.
#pragma once

#include "kernels/core/registry.h"
#include "plugins/loading/guarded_buffer.h"
#include "plugins/loading/operators.h"

namespace ofsdp::plugins {

class CheckGraph final : public GradBuilder {
 public:
  // `known`: inputs whose values are told to infer.
  CheckGraph(const Registry& registry, const OpDef& op, Attributes attributes,
             std::vector<RefTensor> inputs, const std::vector<bool>& known, size_t num_outputs);

  const std::vector<std::string>& wrong() const { return wrong_; }
  const std::vector<Ref>& outputs() const { return outputs_; }
  std::vector<double> values(Ref ref) const;
  // Outputs again with other inputs, by one run of the kernel.
  std::vector<std::vector<double>> outputs_for(const std::vector<RefTensor>& inputs);
  void seed(size_t output, const std::vector<double>& gradient);
  void need(std::vector<bool> inputs) { needed_ = std::move(inputs); }
  Ref grad(size_t input) const { return grads_[input]; }

  const Attributes& attributes() const override { return attributes_; }
  size_t num_inputs() const override { return inputs_.size(); }
  Ref input(size_t i) const override { return inputs_[i]; }
  Ref output(size_t i) override;
  Ref grad_output(size_t i) const override { return i < seeds_.size() ? seeds_[i] : Ref{}; }
  bool needs_grad(size_t i) const override { return i < needed_.size() && needed_[i]; }
  const TensorDesc& desc(Ref ref) const override { return value(ref).desc; }
  ConstantPtr constant_value(Ref ref) const override { return value(ref).constant; }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) override;
  Ref constant(ConstantPtr value) override;
  void set_grad(size_t input, Ref grad) override { grads_[input] = grad; }
  void fail(Status status) override { wrong_.push_back(status.message()); }

 private:
  struct Value {
    TensorDesc desc;
    std::shared_ptr<GuardedBuffer> buffer;
    ConstantPtr constant;
  };
  using Values = std::vector<Value>;

  const Value& value(Ref ref) const { return values_[static_cast<size_t>(ref.id)]; }
  Ref add(Value value);
  Ref add_tensor(const std::string& name, const RefTensor& tensor, bool known);
  Result<Values> evaluate(const OpDef& op, const Attributes& attributes, const Values& inputs,
                          size_t num_outputs, bool repeat);
  Status run(const OpDef& op, const Problem& problem, const Values& inputs, Values& outputs,
             int threads, int old_bytes);
  Status repeat(const OpDef& op, const Problem& problem, const Values& inputs,
                const Values& outputs);

  const Registry& registry_;
  const OpDef& op_;
  Attributes attributes_;
  Values values_ = {{}};  // value 0 is none
  std::vector<Ref> inputs_, outputs_, seeds_, grads_;
  std::vector<bool> needed_;
  std::vector<std::string> wrong_;
};

}  // namespace ofsdp::plugins
