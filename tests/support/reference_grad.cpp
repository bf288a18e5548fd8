#include "tests/support/reference_grad.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/op_def.h"
#include "tests/support/body_graph.h"
#include "tests/support/namespaces.h"
#include "tests/support/op_check.h"

namespace ofsdp::testing {

ReferenceGrad::ReferenceGrad(const Registry& registry, const OpDef& op, const SampleCase& sample,
                             const CaseValues& values, std::set<size_t> needed)
    : registry_(registry), op_(op), sample_(sample), needed_(std::move(needed)) {
  for (size_t i = 0; i < values.inputs.size(); ++i) {
    const bool present = values.inputs[i].desc.present();
    inputs_.push_back(present ? add(values.inputs[i], values.constants[i]) : Ref{});
  }
  outputs_ = evaluate(op_, sample.attributes, inputs_, sample.num_outputs, false);
}

Ref ReferenceGrad::add(RefTensor tensor, ConstantPtr constant) {
  values_.push_back({std::move(tensor), std::move(constant)});
  return {static_cast<int>(values_.size()) - 1};
}

std::vector<RefTensor> ReferenceGrad::evaluate(const OpDef& op, const Attributes& attributes,
                                               const std::vector<Ref>& inputs, size_t num_outputs,
                                               bool needs_kernel) {
  InferContext infer{attributes, {}, {}, std::vector<bool>(num_outputs, true)};
  std::vector<RefTensor> values;
  for (Ref ref : inputs) {
    values.push_back(value(ref));
    infer.inputs.push_back(value(ref).desc);
    infer.constants.push_back(constant_value(ref));
  }
  auto descs = op.infer(infer);
  if (!descs.ok() || descs->size() < num_outputs) {
    error_ +=
        op.full_name() + ": " + (descs.ok() ? "too few outputs" : descs.error().message()) + "\n";
    return std::vector<RefTensor>(num_outputs);
  }
  descs->resize(num_outputs);
  Problem problem{attributes, infer.inputs, *descs, infer.constants};
  if (needs_kernel && !op.view) {
    if (auto kernel = create_kernel(op, problem); !kernel.ok()) {
      error_ += kernel.error().message() + "\n";
    }
  }
  return op.reference({attributes, std::move(values), *descs, kCheckNodeSeed, check_step()});
}

void ReferenceGrad::seed(size_t output, RefTensor gradient) {
  seeds_[output] = add(std::move(gradient));
}

Ref ReferenceGrad::output(size_t i) {
  if (output_refs_.contains(i)) return output_refs_[i];
  auto all =
      evaluate(op_, sample_.attributes, inputs_, std::max(i + 1, sample_.num_outputs), false);
  return output_refs_[i] = add(std::move(all[i]));
}

Ref ReferenceGrad::grad_output(size_t i) const {
  const auto it = seeds_.find(i);
  return it == seeds_.end() ? Ref{} : it->second;
}

std::vector<Ref> ReferenceGrad::emit(const std::string& op, const std::vector<Ref>& inputs,
                                     const Attributes& attributes, size_t num_outputs) {
  auto outputs = evaluate(registry_.get(op), attributes, inputs, num_outputs, true);
  std::vector<Ref> refs;
  for (size_t i = 0; i < num_outputs; ++i) refs.push_back(add(std::move(outputs[i])));
  return refs;
}

Ref ReferenceGrad::constant(ConstantPtr value) {
  RefTensor tensor{value->desc, to_doubles(value->desc, value->bytes.data())};
  return add(std::move(tensor), std::move(value));
}

void ReferenceGrad::set_grad(size_t input, Ref grad) {
  if (!needs_grad(input) || !grad) return;
  if (grads_.contains(input)) error_ += format_text("input {} got two gradients\n", input);
  if (desc(grad).shape != desc(inputs_[input]).shape) {
    error_ += format_text("input {} {} got a gradient {}\n", input, desc(inputs_[input]).text(),
                          desc(grad).text());
  }
  grads_[input] = grad;
}

namespace {

// Limits the checked elements of an input. The code is the same for each: sanitizers see it with a
// few.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kMaxElements = 4;
#else
constexpr size_t kMaxElements = 24;
#endif
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-4;

// Inputs that never need a gradient: class weights, a teacher.
bool no_gradient_by_design(const OpDef& op, size_t input) {
  const bool class_loss =
      op.name == "SoftmaxCrossEntropyLoss" || op.name == "NegativeLogLikelihoodLoss";
  return (class_loss && input == 2) || (op.name == "DistillationLoss" && input == 1);
}

std::set<size_t> differentiable_inputs(const OpDef& op, const SampleCase& sample) {
  std::set<size_t> list;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const bool known = std::ranges::find(sample.constant_inputs, i) != sample.constant_inputs.end();
    if (is_floating(sample.inputs[i].dtype) && !known && !no_gradient_by_design(op, i)) {
      list.insert(i);
    }
  }
  return list;
}

// sum of seeds times outputs: the differentiated function
double project(const OpDef& op, const SampleCase& sample, const CaseValues& values,
               const std::vector<RefTensor>& outputs,
               const std::map<size_t, std::vector<double>>& seeds) {
  std::vector<TensorDesc> descs;
  for (const RefTensor& output : outputs) descs.push_back(output.desc);
  const auto made =
      op.reference({sample.attributes, values.inputs, descs, kCheckNodeSeed, check_step()});
  double sum = 0;
  for (const auto& [i, seed] : seeds) {
    for (size_t k = 0; k < seed.size(); ++k) sum += seed[k] * made[i].values[k];
  }
  return sum;
}

// By the operator's rule, or through the body if that takes the node's place.
std::map<size_t, RefTensor> gradients(const Registry& registry, const OpDef& op,
                                      const SampleCase& sample, const CaseValues& values,
                                      const std::set<size_t>& inputs,
                                      const std::map<size_t, std::vector<double>>& seeds,
                                      std::string& error) {
  if (is_lowered(op, sample.attributes)) {
    return body_gradients(registry, op, sample, values, inputs, seeds, error);
  }
  ReferenceGrad grad(registry, op, sample, values, inputs);
  for (const auto& [i, seed] : seeds) grad.seed(i, {grad.outputs()[i].desc, seed});
  op.grad(grad);
  error += grad.error();
  std::map<size_t, RefTensor> made;
  for (const auto& [input, ref] : grad.grads()) made[input] = grad.value(ref);
  return made;
}

}  // namespace

std::string check_gradient(const Registry& registry, const OpDef& op, const SampleCase& sample) {
  const std::string where = op.full_name() + "/" + sample.name;
  CaseValues values = make_values(sample);
  const std::set<size_t> inputs = differentiable_inputs(op, sample);
  ReferenceGrad all(registry, op, sample, values, inputs);
  std::mt19937_64 random(9);
  std::map<size_t, std::vector<double>> seeds;
  for (size_t i = 0; i < all.outputs().size(); ++i) {
    const TensorDesc& desc = all.outputs()[i].desc;
    if (!is_floating(desc.dtype)) continue;
    seeds[i] = normals(static_cast<size_t>(desc.numel()), random);
  }
  if (seeds.empty()) return "";  // whole numbers: no derivative
  std::string error = all.error();
  const auto whole = gradients(registry, op, sample, values, inputs, seeds, error);
  if (!error.empty()) return where + ": " + error;

  std::string wrong;
  for (size_t input : inputs) {
    const size_t count = values.inputs[input].values.size();
    const auto found = whole.find(input);
    if (found == whole.end()) {
      wrong += format_text("{}: input {} got no gradient\n", where, input);
      continue;
    }
    const auto& gradient = found->second.values;
    // The same for this input as the only one.
    const auto alone = gradients(registry, op, sample, values, {input}, seeds, error);
    if (!alone.contains(input) || alone.at(input).values != gradient) {
      wrong += format_text("{}: input {} alone has another gradient\n", where, input);
    }
    double scale = 0;
    for (double g : gradient) scale = std::max(scale, std::abs(g));
    for (size_t n = 0; n < std::min(count, kMaxElements); ++n) {
      const size_t at = count <= kMaxElements ? n : random() % count;
      double& x = values.inputs[input].values[at];
      const double original = x;
      x = original + kStep;
      const double above = project(op, sample, values, all.outputs(), seeds);
      x = original - kStep;
      const double below = project(op, sample, values, all.outputs(), seeds);
      x = original;
      const double slope = (above - below) / (2 * kStep);
      if (std::abs(slope - gradient[at]) <= kTolerance * std::max(scale, 1e-2)) continue;
      wrong += format_text("{}: input {} element {}: finite difference {}, gradient {}\n", where,
                           input, at, slope, gradient[at]);
      break;
    }
  }
  return wrong;
}

}  // namespace ofsdp::testing
