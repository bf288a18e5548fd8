// One node of a plug-in's operator, evaluated as it is built: its forward and, through `grad`, its
// backward, each tensor between guard pages. Kernels of the plug-in run four times - twice alike,
// once over other old bytes, once with two threads - and must give the same bits every time.
//
// Ownership: owns its tensors. Threads: one. Errors: what is wrong is collected, one line each.
#pragma once

#include "kernels/core/registry.h"
#include "kernels/cpu/parallel.h"
#include "plugins/loading/guarded_buffer.h"
#include "plugins/loading/operators.h"

namespace ofsdp::plugins {

class CheckGraph final : public GradBuilder {
 public:
  // `known`: inputs whose values are told to infer.
  CheckGraph(const Registry& registry, const OpDef& op, Attributes attributes,
             std::vector<RefTensor> inputs, const std::vector<bool>& known, size_t num_outputs)
      : registry_(registry), op_(op), attributes_(std::move(attributes)) {
    Values given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs_.push_back(add_tensor(format_text("input {}", i), inputs[i], known[i]));
      given.push_back(value(inputs_.back()));
    }
    grads_.resize(inputs.size());
    auto made = evaluate(op_, attributes_, given, num_outputs, true);
    if (!made.ok()) {
      fail(std::move(made).status());
      return;
    }
    for (Value& output : *made) outputs_.push_back(add(std::move(output)));
  }

  const std::vector<std::string>& wrong() const { return wrong_; }
  const std::vector<Ref>& outputs() const { return outputs_; }
  std::vector<double> values(Ref ref) const {
    return to_doubles(value(ref).desc, value(ref).buffer->data());
  }

  // Outputs again with other inputs, by one run of the kernel.
  std::vector<std::vector<double>> outputs_for(const std::vector<RefTensor>& inputs) {
    Values given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Ref ref = add_tensor("an input", inputs[i], value(inputs_[i]).constant != nullptr);
      given.push_back(value(ref));
    }
    auto made = evaluate(op_, attributes_, given, outputs_.size(), false);
    std::vector<std::vector<double>> found(outputs_.size());
    values_.resize(values_.size() - static_cast<size_t>(std::ranges::count_if(
                                        inputs, [](const auto& t) { return t.desc.present(); })));
    if (!made.ok()) {
      fail(std::move(made).status());
      return found;
    }
    for (size_t i = 0; i < found.size(); ++i) {
      if ((*made)[i].buffer) found[i] = to_doubles((*made)[i].desc, (*made)[i].buffer->data());
    }
    return found;
  }

  void seed(size_t output, const std::vector<double>& gradient) {
    seeds_.resize(std::max(seeds_.size(), output + 1));
    seeds_[output] = add_tensor(format_text("the gradient of output {}", output),
                                {desc(outputs_[output]), gradient}, false);
  }

  void need(std::vector<bool> inputs) { needed_ = std::move(inputs); }
  Ref grad(size_t input) const { return grads_[input]; }

  Attributes attributes() const override { return attributes_; }
  size_t num_inputs() const override { return inputs_.size(); }
  Ref input(size_t i) const override { return inputs_[i]; }

  // An output that the sample does not have, but backward reads.
  Ref output(size_t i) {
    if (i < outputs_.size()) return outputs_[i];
    Values given;
    for (const Ref ref : inputs_) given.push_back(value(ref));
    auto made = evaluate(op_, attributes_, given, i + 1, false);
    if (!made.ok()) {
      fail(std::move(made).status());
      return {};
    }
    return add(std::move((*made)[i]));
  }

  Ref grad_output(size_t i) const override { return i < seeds_.size() ? seeds_[i] : Ref{}; }
  bool needs_grad(size_t i) const override { return i < needed_.size() && needed_[i]; }
  TensorDesc desc(Ref ref) const override { return value(ref).desc; }
  ConstantPtr constant_value(Ref ref) const override { return value(ref).constant; }
  std::vector<Ref> emit(const std::string& op, const std::vector<Ref>& inputs,
                        const Attributes& attributes, size_t num_outputs) {
    Values given;
    for (const Ref ref : inputs) given.push_back(value(ref));
    auto made = evaluate(registry_.get(op), attributes, given, num_outputs, true);
    if (made.ok()) {
      std::vector<Ref> refs;
      for (Value& output : *made) refs.push_back(add(std::move(output)));
      return refs;
    }
    fail(std::move(made).status());
    std::vector<Ref> dummies;
    for (size_t i = 0; i < num_outputs; ++i) {
      dummies.push_back(add_tensor("nothing", {{DType::kFloat32, {}}, {0}}, false));
    }
    return dummies;
  }

  Ref constant(ConstantPtr given) {
    return add_tensor("a constant", {given->desc, to_doubles(given->desc, given->bytes.data())},
                      true);
  }

  void set_grad(size_t input, Ref grad) override { grads_[input] = grad; }
  void fail(Status status) override { wrong_.push_back(status.message()); }

 private:
  static constexpr int kOldBytes = 0x7B,
                       kOtherOldBytes = 0x41;  // what outputs hold before a kernel runs

  // "forward of com.example.RmsNorm", "backward of com.example.RmsNorm".
  static std::string part_of(const OpDef& op) {
    const std::string name = op.full_name(), own = std::string(kBackwardDomain) + ".";
    return name.starts_with(own) ? "backward of " + name.substr(own.size()) : "forward of " + name;
  }

  struct Value {
    TensorDesc desc;
    std::shared_ptr<GuardedBuffer> buffer;
    ConstantPtr constant;
  };
  using Values = std::vector<Value>;

  const Value& value(Ref ref) const { return values_[static_cast<size_t>(ref.id)]; }
  Ref add(Value value) {
    values_.push_back(std::move(value));
    return {static_cast<int>(values_.size()) - 1};
  }

  Ref add_tensor(const std::string& name, const RefTensor& tensor, bool known) {
    if (!tensor.desc.present()) return {};
    Value made{tensor.desc, std::make_shared<GuardedBuffer>(name, tensor.desc.bytes()), nullptr};
    from_doubles(tensor.values, tensor.desc, made.buffer->data());
    made.buffer->protect(true);
    if (known) {
      const std::byte* data = made.buffer->data();
      made.constant = std::make_shared<const Constant>(
          Constant{tensor.desc, std::vector<std::byte>(data, data + tensor.desc.bytes())});
    }
    return add(std::move(made));
  }

  Result<Values> evaluate(const OpDef& op, const Attributes& attributes, const Values& inputs,
                          size_t num_outputs, bool repeated) {
    InferContext context{attributes, {}, {}, std::vector<bool>(num_outputs, true)};
    for (const Value& input : inputs) {
      context.inputs.push_back(input.desc);
      context.constants.push_back(input.constant);
    }
    auto descs = op.infer(context);
    if (!descs.ok()) return std::move(descs).status();
    descs->resize(num_outputs);
    const Problem problem{attributes, context.inputs, *descs, context.constants};
    Values outputs;
    for (size_t i = 0; i < num_outputs; ++i) {
      const std::string name =
          format_text("output {} of {} {}", i, part_of(op), (*descs)[i].text());
      outputs.push_back(
          {(*descs)[i], std::make_shared<GuardedBuffer>(name, (*descs)[i].bytes()), nullptr});
    }
    if (op.view) {
      std::memcpy(outputs[0].buffer->data(), inputs[0].buffer->data(), outputs[0].desc.bytes());
      return outputs;
    }
    OFSDP_RETURN_IF_ERROR(run(op, problem, inputs, outputs, 1, kOldBytes));
    if (repeated && of_plugin(op)) OFSDP_RETURN_IF_ERROR(repeat(op, problem, inputs, outputs));
    for (Value& output : outputs) output.buffer->protect(true);
    return outputs;
  }

  Status run(const OpDef& op, const Problem& given, const Values& inputs, Values& outputs,
             int threads, int old_bytes) {
    set_pool_threads(threads);
    Problem problem = given;
    problem.threads = threads;
    OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(op, problem));
    GuardedBuffer scratch("the scratch of " + part_of(op), kernel->workspace_bytes());
    std::vector<TensorView> in, out;
    for (const Value& v : inputs) in.push_back({v.buffer ? v.buffer->data() : nullptr, v.desc});
    for (const Value& v : outputs) {
      v.buffer->fill(old_bytes);
      out.push_back({v.buffer->data(), v.desc});
    }
    const StepContext step{.seed = 0, .step = 0, .sample_index = {}};
    OFSDP_RETURN_IF_ERROR(kernel->run({in, out, scratch.data(), &step}));
    for (const Value& v : outputs) {
      if (!v.buffer->surrounded()) return fault("{} writes outside of its bytes", v.buffer->name());
    }
    if (!scratch.surrounded()) return fault("it writes outside of {}", scratch.name());
    return {};
  }

  Status repeat(const OpDef& op, const Problem& problem, const Values& inputs,
                const Values& outputs) {
    struct Trial {
      int threads, old_bytes;
      const char* what;
    };
    const Trial trials[] = {{1, kOldBytes, "two runs differ in"},
                            {1, kOtherOldBytes, "forward or backward leaves elements unwritten of"},
                            {2, kOldBytes, "one and two threads differ in"}};
    for (const Trial& trial : trials) {
      Values again;
      for (const Value& v : outputs) {
        again.push_back(
            {v.desc, std::make_shared<GuardedBuffer>(v.buffer->name(), v.buffer->size()), nullptr});
      }
      OFSDP_RETURN_IF_ERROR(run(op, problem, inputs, again, trial.threads, trial.old_bytes));
      for (size_t i = 0; i < outputs.size(); ++i) {
        const bool same = std::memcmp(again[i].buffer->data(), outputs[i].buffer->data(),
                                      outputs[i].desc.bytes()) == 0;
        if (!same) return fault("{} {}", trial.what, outputs[i].buffer->name());
      }
    }
    return {};
  }

  const Registry& registry_;
  const OpDef& op_;
  Attributes attributes_;
  Values values_ = {{}};  // value 0 is none
  std::vector<Ref> inputs_, outputs_, seeds_, grads_;
  std::vector<bool> needed_;
  std::vector<std::string> wrong_;
};

}  // namespace ofsdp::plugins
