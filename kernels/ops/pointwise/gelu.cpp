// Gelu, attribute approximate ("none" or "tanh"): y = x P(X <= x) of a normal X; both forms are in
// kernels/formulas/gelu.h. dx = dy times the derivative (ofsdp.GeluGrad(dy, x), the same attribute).
// com.microsoft's Gelu is the form with erf.
//
// com.microsoft.BiasGelu(x, bias) and FastGelu(x, bias): Gelu of x + bias with a bias of the last
// axis, in the form with erf and in that with tanh; the bias of FastGelu may be absent. d(x + bias)
// is ofsdp.GeluGrad(dy, x + bias), dbias its sum. onnxruntime's optimizer writes these three.
// https://onnx.ai/onnx/operators/onnx__Gelu.html
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.BiasGelu
#include "kernels/ops/pointwise/gelu.h"

#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/formulas/gelu.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {

double reference_gelu(double x, bool tanh) {
  if (!tanh) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double reference_gelu_slope(double x, bool tanh) {
  if (!tanh) {
    return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) +
           x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
  }
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
}

namespace {

bool is_tanh(const Attributes& a) { return a.s("approximate", "none") == "tanh"; }

void grad(GradBuilder& b) { grad_of_input(b, "GeluGrad"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  return unary_reference(
      c, [tanh = is_tanh(c.attributes)](double x) { return reference_gelu(x, tanh); });
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  return binary_reference(c, [tanh = is_tanh(c.attributes)](double d, double x) {
    return d * reference_gelu_slope(x, tanh);
  });
}

ChainOp op_of(const Problem& p, ChainOp erf, ChainOp tanh) {
  return is_tanh(p.attributes) ? tanh : erf;
}

// Loops for both forms, by the attribute.
std::vector<Implementation> kernels_of(ChainOp erf, ChainOp tanh) {
  std::vector<Implementation> made = pointwise_kernels("Gelu", chain_loops(erf));
  for (Implementation& implementation : made) {
    implementation.create = [=](const Problem& p) {
      return create_pointwise(chain_loops(op_of(p, erf, tanh)), {}, p);
    };
  }
  return made;
}

std::vector<SampleCase> both_forms(std::vector<SampleCase> list) {
  std::vector<SampleCase> tanh = list;
  for (SampleCase& s : tanh) {
    s.name += "_tanh";
    s.attributes.set("approximate", std::string("tanh"));
  }
  append(list, std::move(tanh));
  return list;
}

void gelu_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1), one = b.like(x, 1), square = b.mul(x, x);
  Ref slope;
  if (b.attributes().s("approximate", "none") == "tanh") {
    const Ref inner = b.mul(b.add(x, b.mul(b.mul(square, x), 0.044715)), std::sqrt(2 / M_PI));
    const Ref t = b.emit1("Tanh", {inner});
    const Ref steep = b.mul(b.add(one, b.mul(square, 3 * 0.044715)), std::sqrt(2 / M_PI));
    const Ref tail = b.mul(b.mul(x, b.sub(one, b.mul(t, t))), steep);
    slope = b.mul(b.add(b.add(one, t), tail), 0.5);
  } else {
    const Ref below = b.add(one, b.emit1("Erf", {b.mul(x, 1 / std::sqrt(2.0))}));
    const Ref density = b.mul(b.emit1("Exp", {b.mul(square, -0.5)}), 1 / std::sqrt(2 * M_PI));
    slope = b.add(b.mul(below, 0.5), b.mul(x, density));
  }
  b.set_output(0, b.mul(b.input(0), slope));
}

// --- BiasGelu and FastGelu ---

Result<std::vector<TensorDesc>> infer_biased(const InferContext& c) {
  if (!c.has(1)) return infer_same(c);
  OFSDP_ASSIGN_OR_RETURN(TensorDesc desc, infer_broadcast(c));
  if (desc.shape != c.inputs[0].shape) {
    return input_error("expected a bias that broadcasts to {}, found {}", c.inputs[0].text(),
                       c.inputs[1].text());
  }
  return std::vector{std::move(desc)};
}

void grad_of_biased(GradBuilder& b, const char* approximate) {
  const bool biased = b.num_inputs() > 1 && b.input(1);
  const Ref x = biased ? b.add(b.input(0), b.input(1)) : b.input(0);
  const Ref dx =
      b.emit1("ofsdp.GeluGrad", {b.grad_output(0), x}, {{"approximate", std::string(approximate)}});
  if (b.needs_grad(0)) b.set_grad(0, dx);
  if (biased && b.needs_grad(1)) b.set_grad(1, b.sum_to(dx, b.input(1)));
}

std::vector<RefTensor> reference_of_biased(const ReferenceContext& c, bool tanh) {
  if (c.inputs.size() > 1) {
    return binary_reference(c, [tanh](double x, double b) { return reference_gelu(x + b, tanh); });
  }
  return unary_reference(c, [tanh](double x) { return reference_gelu(x, tanh); });
}

std::vector<Implementation> bias_gelu_kernels() {
  return pointwise_kernels("BiasGelu", binary_loops<OFSDP_AB(gelu_of<FloatMath>(a + b))>());
}

// With or without a bias.
std::vector<Implementation> fast_gelu_kernels() {
  const PointwiseLoops one = chain_loops(ChainOp::kGeluTanh);
  const PointwiseLoops two = binary_loops<OFSDP_AB(gelu_tanh_of<FloatMath>(a + b))>();
  const Implementation loops{
      "loops",
      [=](const Problem& p) {
        const Acceptance first = accepts_pointwise(one, p);
        return first && p.has_in(1) ? accepts_pointwise(two, p) : first;
      },
      [=](const Problem& p) { return create_pointwise(p.has_in(1) ? two : one, {}, p); }};
  return {loops, in_float32(loops)};
}

std::vector<SampleCase> biased_samples() {
  const DType f = DType::kFloat32;
  return {{.name = "bias", .inputs = {{f, {2, 3, 37}}, {f, {37}}}},
          {.name = "one", .inputs = {{f, {5, 1}}, {f, {1}}}},
          {.name = "empty", .inputs = {{f, {0, 4}}, {f, {4}}}},
          sample_of(DType::kFloat64, "same", {{9}, {9}}),
          sample_of(DType::kFloat16, "same", {{9}, {9}})};
}

std::vector<SampleCase> fast_samples() {
  std::vector<SampleCase> list = float_samples();
  append(list, biased_samples());
  return list;
}

}  // namespace

void add_gelu(Registry& registry) {
  for (const char* domain : {"", "com.microsoft"}) {
    registry.add(pointwise({.domain = domain,
                            .name = "Gelu",
                            .grad = grad,
                            .reference = reference,
                            .cpu = kernels_of(ChainOp::kGelu, ChainOp::kGeluTanh),
                            .samples = [] { return both_forms(float_samples(scaled(3))); }}));
  }
  registry.add(
      pointwise_grad({.name = "GeluGrad",
                      .body = gelu_grad_body,
                      .reference = grad_reference,
                      .cpu = kernels_of(ChainOp::kGeluGrad, ChainOp::kGeluTanhGrad),
                      .samples = [] { return both_forms(float_pair_samples(scaled(3))); }}));
  registry.add(pointwise(
      {.domain = "com.microsoft",
       .name = "BiasGelu",
       .min_inputs = 2,
       .infer = infer_biased,
       .grad = [](GradBuilder& b) { grad_of_biased(b, "none"); },
       .reference = [](const ReferenceContext& c) { return reference_of_biased(c, false); },
       .cpu = bias_gelu_kernels(),
       .samples = biased_samples}));
  registry.add(pointwise(
      {.domain = "com.microsoft",
       .name = "FastGelu",
       .infer = infer_biased,
       .grad = [](GradBuilder& b) { grad_of_biased(b, "tanh"); },
       .reference = [](const ReferenceContext& c) { return reference_of_biased(c, true); },
       .cpu = fast_gelu_kernels(),
       .samples = fast_samples}));
}

}  // namespace ofsdp::kernels::ops
