#include "kernels/ops/recurrent/recurrent.h"

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/ops/recurrent/recurrent_reference.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// Attribute of our own, of the gradients: 1 for each input that wants its gradient.
constexpr const char* kNeeds = "ofsdp_needs";
// The inputs that have a gradient, in the order of RecurrentGradient.
constexpr size_t kDifferentiable[] = {kX, kW, kR, kB, kInitialH, kInitialC, kP};

template <RecurrentKind kind>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const RecurrentShape s, infer_recurrent(kind, c.attributes, c.inputs));
  const DType dtype = c.inputs[0].dtype;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (i != kLens && c.has(i) && c.inputs[i].dtype != dtype) {
      return input_error("expected one type of all operands, found {} and {}", c.inputs[0].text(),
                         c.inputs[i].text());
    }
  }
  std::vector<TensorDesc> outputs(s.outputs(), {dtype, s.state_shape()});
  outputs[0].shape = s.y_shape();
  const bool saves = c.wanted.size() > s.outputs() && c.wanted[s.outputs()];
  outputs.push_back(saves ? TensorDesc{dtype, s.saved_shape()} : TensorDesc{});
  return outputs;
}

template <RecurrentKind kind>
void grad(GradBuilder& b) {
  const size_t outputs = kind == RecurrentKind::kLstm ? 3 : 2;
  std::vector<Ref> inputs(kRecurrentInputs);
  for (size_t i = 0; i < b.num_inputs(); ++i) inputs[i] = b.input(i);
  inputs[kY] = b.output(0);
  inputs[kSaved] = b.output(outputs);
  for (size_t i = 0; i < outputs; ++i) inputs[kDiffY + i] = b.grad_output(i);
  std::vector<int64_t> needs;
  for (size_t i : kDifferentiable) needs.push_back(inputs[i] && b.needs_grad(i) ? 1 : 0);
  Attributes attributes = b.attributes();
  attributes.set(kNeeds, needs);
  const char* name = kind == RecurrentKind::kLstm  ? "ofsdp.LSTMGrad"
                     : kind == RecurrentKind::kGru ? "ofsdp.GRUGrad"
                                                   : "ofsdp.RNNGrad";
  const std::vector<Ref> grads = b.emit(name, inputs, attributes, std::size(kDifferentiable));
  for (size_t i = 0; i < grads.size(); ++i) {
    if (needs[i] != 0) b.set_grad(kDifferentiable[i], grads[i]);
  }
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  const std::vector<int64_t> needs = c.attributes.ints(kNeeds);
  std::vector<TensorDesc> outputs;
  for (size_t i = 0; i < std::size(kDifferentiable); ++i) {
    const bool needed = needs[i] != 0 && c.has(kDifferentiable[i]);
    outputs.push_back({c.inputs[0].dtype, needed ? c.inputs[kDifferentiable[i]].shape : Shape{0}});
  }
  return outputs;
}

template <RecurrentKind kind>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  return reference_recurrent(kind, c);
}
template <RecurrentKind kind>
std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return reference_recurrent_grad(kind, c);
}

bool accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return (dtype == DType::kFloat32 || dtype == DType::kFloat64) && p.all_plain();
}

template <RecurrentKind kind>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_recurrent(known_recurrent(kind, p.attributes, p.inputs), p);
}
template <RecurrentKind kind>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_recurrent_grad(known_recurrent(kind, p.attributes, p.inputs), p);
}

template <RecurrentKind kind>
void add(Registry& registry, const std::string& name, std::vector<SampleCase> (*samples)(),
         std::vector<SampleCase> (*grad_samples)()) {
  registry.add({.name = name,
                .min_inputs = 3,
                .first_opset = kind == RecurrentKind::kRnn ? 1 : 7,
                .infer = infer<kind>,
                .grad = grad<kind>,
                .reference = reference<kind>,
                .cpu = {{"products", accepts, create<kind>}, in_float32<accepts, create<kind>>()},
                .samples = samples});
  registry.add(
      {.domain = kOwnDomain,
       .name = name + "Grad",
       .min_inputs = 3,
       .infer = infer_grad,
       .reference = grad_reference<kind>,
       .cpu = {{"products", accepts, create_grad<kind>}, in_float32<accepts, create_grad<kind>>()},
       .samples = grad_samples});
}

}  // namespace

void add_recurrent(Registry& registry, RecurrentKind kind, std::vector<SampleCase> (*samples)(),
                   std::vector<SampleCase> (*grad_samples)()) {
  switch (kind) {
    case RecurrentKind::kRnn:
      return add<RecurrentKind::kRnn>(registry, "RNN", samples, grad_samples);
    case RecurrentKind::kGru:
      return add<RecurrentKind::kGru>(registry, "GRU", samples, grad_samples);
    case RecurrentKind::kLstm:
      return add<RecurrentKind::kLstm>(registry, "LSTM", samples, grad_samples);
  }
}

std::vector<SampleCase> recurrent_grad_samples(RecurrentKind kind,
                                               const std::vector<SampleCase>& forward) {
  std::vector<SampleCase> cases;
  for (const SampleCase& sample : forward) {
    if (sample.inputs[0].numel() == 0) continue;
    SampleCase made = sample;
    const RecurrentShape s = known_recurrent(kind, sample.attributes, sample.inputs);
    const DType dtype = sample.inputs[0].dtype;
    made.inputs.resize(kRecurrentInputs);
    made.inputs[kY] = {dtype, s.y_shape()};
    made.inputs[kSaved] = {dtype, s.saved_shape()};
    made.inputs[kDiffY] = {dtype, s.y_shape()};
    made.inputs[kDiffYh] = {dtype, s.state_shape()};
    if (s.is_lstm()) made.inputs[kDiffYc] = {dtype, s.state_shape()};
    made.attributes.set(kNeeds, std::vector<int64_t>(std::size(kDifferentiable), 1));
    made.num_outputs = std::size(kDifferentiable);
    made.fill = [given = sample.fill](size_t input, std::vector<double>& values) {
      if (given) given(input, values);
      // Small steps of gradients: random gates are no gates, and grow from step to step.
      for (double& v : values) v *= input == kSaved ? 0.3 : input == kR ? 0.5 : 1;
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

std::vector<RecurrentSample> common_recurrent_samples() {
  const auto direction = [](const char* name) {
    return Attributes{{"direction", std::string(name)}};
  };
  Attributes batch_first = direction("bidirectional");
  batch_first.set("layout", int64_t{1});
  return {{.name = "plain", .steps = 4, .batch = 3, .in = 5, .hidden = 6},
          {.name = "wide", .steps = 3, .batch = 20, .in = 33, .hidden = 70, .bias = true},
          {.name = "reverse",
           .steps = 3,
           .batch = 2,
           .in = 4,
           .hidden = 5,
           .attributes = direction("reverse"),
           .bias = true,
           .initial = true},
          {.name = "two_ways",
           .steps = 4,
           .batch = 3,
           .in = 2,
           .hidden = 3,
           .attributes = direction("bidirectional"),
           .bias = true,
           .lens = true,
           .initial = true},
          {.name = "batch_first",
           .steps = 4,
           .batch = 3,
           .in = 2,
           .hidden = 3,
           .attributes = batch_first,
           .bias = true,
           .lens = true,
           .initial = true},
          {.name = "clipped",
           .steps = 3,
           .batch = 2,
           .in = 4,
           .hidden = 5,
           .attributes = {{"clip", 0.9f}},
           .bias = true},
          {.name = "one", .steps = 1, .batch = 1, .in = 1, .hidden = 1, .bias = true},
          {.name = "empty_batch", .steps = 2, .batch = 0, .in = 3, .hidden = 2}};
}

std::vector<SampleCase> recurrent_samples(RecurrentKind kind,
                                          const std::vector<RecurrentSample>& list) {
  const DType f = DType::kFloat32;
  std::vector<SampleCase> cases;
  for (const RecurrentSample& r : list) {
    const int64_t d = r.attributes.s("direction", "") == "bidirectional" ? 2 : 1;
    const bool lstm = kind == RecurrentKind::kLstm;
    const int64_t rows = (lstm ? 4 : kind == RecurrentKind::kGru ? 3 : 1) * r.hidden;
    const bool swapped = r.attributes.i("layout", 0) != 0;
    const Shape states = swapped ? Shape{r.batch, d, r.hidden} : Shape{d, r.batch, r.hidden};
    SampleCase made{.name = r.name, .attributes = r.attributes};
    made.attributes.set("hidden_size", r.hidden);
    made.inputs.resize(lstm ? 8 : 6);
    made.inputs[kX] = {f, swapped ? Shape{r.batch, r.steps, r.in} : Shape{r.steps, r.batch, r.in}};
    made.inputs[kW] = {f, {d, rows, r.in}};
    made.inputs[kR] = {f, {d, rows, r.hidden}};
    if (r.bias) made.inputs[kB] = {f, {d, 2 * rows}};
    if (r.lens) made.inputs[kLens] = {DType::kInt32, {r.batch}};
    if (r.initial) made.inputs[kInitialH] = {f, states};
    if (r.initial && lstm) made.inputs[kInitialC] = {f, states};
    if (r.peepholes) made.inputs[kP] = {f, {d, 3 * r.hidden}};
    made.fill = [steps = r.steps](size_t input, std::vector<double>& values) {
      for (size_t i = 0; input == kLens && i < values.size(); ++i) {
        values[i] = static_cast<double>((i * 2 + 1) % static_cast<size_t>(steps + 1));
      }
    };
    made.num_outputs = lstm ? 3 : 2;
    cases.push_back(made);
    made.name += "_saved";
    ++made.num_outputs;
    made.check_grad = false;
    if (r.lens || r.in == 33) cases.push_back(made);
  }
  for (DType dtype : {DType::kFloat64, DType::kFloat16}) {
    cases.push_back(cases[0]);
    cases.back().name = dtype_name(dtype);
    for (TensorDesc& desc : cases.back().inputs) {
      if (desc.present()) desc.dtype = dtype;
    }
    if (dtype == DType::kFloat16) cases.back().tolerance = 4e-3;
    if (dtype == DType::kFloat16) cases.back().check_grad = false;
  }
  return cases;
}

}  // namespace ofsdp::kernels::ops
