// Activation functions with a gradient operator, ofsdp.NAMEGrad(dy, x). Relu, Sigmoid and Tanh have
// NAMEGrad(dy, y), so x is not saved. Formulas: kernels/formulas/activation.h.
//
// NaN stays NaN. It stops Relu's gradient, as in PyTorch.
// https://onnx.ai/onnx/operators/onnx__NAME.html; QuickGelu is Swish with another default:
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QuickGelu

#include <algorithm>
#include <cmath>

#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace activations {

using A = Attributes;

// --- gradients as standard operators ---

void relu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), zero = b.like(dy, 0);
  b.set_output(0, b.where(b.emit1("Greater", {b.input(1), zero}), dy, zero));
}

void sigmoid_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1);
  b.set_output(0, b.mul(b.mul(b.input(0), y), b.sub(b.like(y, 1), y)));
}

void tanh_grad_body(BodyBuilder& b) {
  const Ref y = b.input(1);
  b.set_output(0, b.mul(b.input(0), b.sub(b.like(y, 1), b.mul(y, y))));
}

void leaky_relu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1);
  const Ref less = b.mul(dy, number(b.attributes(), "alpha", 0.01f));
  b.set_output(0, b.where(b.emit1("Greater", {x, b.like(x, 0)}), dy, less));
}

void elu_grad_body(BodyBuilder& b) {
  const Ref dy = b.input(0), x = b.input(1);
  const Ref bent = b.mul(b.mul(dy, b.emit1("Exp", {x})), number(b.attributes(), "alpha", 1));
  b.set_output(0, b.where(b.emit1("Greater", {x, b.like(x, 0)}), dy, bent));
}

void softplus_grad_body(BodyBuilder& b) {
  b.set_output(0, b.mul(b.input(0), b.emit1("Sigmoid", {b.input(1)})));
}

void swish_grad_body(BodyBuilder& b) {
  const Ref x = b.input(1);
  const Ref scaled = b.mul(x, number(b.attributes(), "alpha", 1));
  const Ref s = b.emit1("Sigmoid", {scaled});
  const Ref bend = b.mul(b.mul(scaled, s), b.sub(b.like(x, 1), s));
  b.set_output(0, b.mul(b.input(0), b.add(s, bend)));
}

// --- tables ---

std::vector<UnaryOp> rectifiers() {
  return {
      unary_op("Relu", 14, of_x<[](double x) { return x < 0 ? 0 : x; }>,
               joined_loops(chain_loops(ChainOp::kRelu),
                            unary_loops<OFSDP_X(relu_of(x)), kSignedIntegers>()),
               {.slope = {{.reference = of_ab<[](double d, double y) { return (y > 0) ? d : 0; }>,
                           .loops = chain_loops(ChainOp::kReluGrad),
                           .of_output = true,
                           .body = relu_grad_body}}}),
      unary_op("LeakyRelu", 16,
               of_x<[](double x, const A& a) { return x < 0 ? number(a, "alpha", 0.01f) * x : x; }>,
               unary_loops<OFSDP_X(leaky_relu_of(x, k.a))>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             return (x > 0) ? d : number(a, "alpha", 0.01f) * d;
                           }>,
                           .loops = binary_loops<OFSDP_DX(leaky_relu_grad(d, x, k.a))>(),
                           .body = leaky_relu_grad_body}}}),
      unary_op("ThresholdedRelu", 22,
               of_x<[](double x, const A& a) { return (x > number(a, "alpha", 1)) ? x : 0; }>,
               unary_loops<OFSDP_X(thresholded_relu_of(x, k.a)), kFloatTypes, Loops::kRare>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             return (x > number(a, "alpha", 1)) ? d : 0;
                           }>,
                           .loops = binary_loops<OFSDP_DX(thresholded_relu_grad(d, x, k.a)),
                                                 kFloatTypes, Loops::kRare>()}}}),
      // All numeric types: x + bias below -lambd, x - bias above lambd, else 0.
      unary_op("Shrink", 9, of_x<[](double x, const A& a) {
                 const double lambd = number(a, "lambd", 0.5f), bias = number(a, "bias", 0);
                 return x < -lambd ? x + bias : (x > lambd) ? x - bias : 0;
               }>,
               unary_loops<OFSDP_X(static_cast<decltype(x)>(
                               shrink_of(static_cast<decltype(k.a)>(x), k.a, k.b))),
                           kNumberTypes, Loops::kRare>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             const double lambd = number(a, "lambd", 0.5f);
                             return (x < -lambd || x > lambd) ? d : 0;
                           }>,
                           .loops = binary_loops<OFSDP_DX(shrink_grad(d, x, k.a)), kFloatTypes,
                                                 Loops::kRare>()}}}),
      unary_op("HardSigmoid", 22, of_x<[](double x, const A& a) {
                 const double line = number(a, "alpha", 0.2f) * x + number(a, "beta", 0.5f);
                 return std::max(0.0, std::min(1.0, line));
               }>,
               unary_loops<OFSDP_X(hard_sigmoid_of(x, k.a, k.b))>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             const double alpha = number(a, "alpha", 0.2f);
                             const double line = alpha * x + number(a, "beta", 0.5f);
                             return (line > 0 && line < 1) ? alpha * d : 0;
                           }>,
                           .loops = binary_loops<OFSDP_DX(hard_sigmoid_grad(d, x, k.a, k.b))>()}}}),
      unary_op("HardSwish", 22,
               of_x<[](double x) { return x * std::max(0.0, std::min(1.0, x / 6 + 0.5)); }>,
               unary_loops<OFSDP_X(hard_swish_of(x))>(),
               {.slope = {{.reference = of_ab<[](double d, double x) {
                             return (x >= 3) ? d : x <= -3 ? 0 : d * (x / 3 + 0.5);
                           }>,
                           .loops = binary_loops<OFSDP_DX(hard_swish_grad(d, x))>()}}}),
  };
}

std::vector<UnaryOp> smooth_activations() {
  return {
      unary_op("Sigmoid", 13, of_x<[](double x) { return 1 / (1 + std::exp(-x)); }>,
               chain_loops(ChainOp::kSigmoid),
               {.slope = {{.reference = of_ab<[](double d, double y) { return d * y * (1 - y); }>,
                           .loops = chain_loops(ChainOp::kSigmoidGrad),
                           .of_output = true,
                           .body = sigmoid_grad_body}}}),
      unary_op("Tanh", 13, of_x<[](double x) { return std::tanh(x); }>, chain_loops(ChainOp::kTanh),
               {.slope = {{.reference = of_ab<[](double d, double y) { return d * (1 - y * y); }>,
                           .loops = chain_loops(ChainOp::kTanhGrad),
                           .of_output = true,
                           .body = tanh_grad_body}}}),
      unary_op("Erf", 13, of_x<[](double x) { return std::erf(x); }>, chain_loops(ChainOp::kErf),
               {.slope = {{.reference = of_ab<[](double d, double x) {
                             return d * 2 / std::sqrt(M_PI) * std::exp(-x * x);
                           }>,
                           .loops = chain_loops(ChainOp::kErfGrad),
                           .body =
                               [](BodyBuilder& b) {
                                 const Ref x = b.input(1);
                                 const Ref power = b.emit1("Exp", {b.neg(b.mul(x, x))});
                                 b.set_output(0,
                                              b.mul(b.input(0), b.mul(power, 2 / std::sqrt(M_PI))));
                               }}}}),
      unary_op(
          "Softplus", 22,
          of_x<[](double x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::abs(x))); }>,
          chain_loops(ChainOp::kSoftplus),
          {.slope = {{.reference = of_ab<[](double d, double x) { return d / (1 + std::exp(-x)); }>,
                      .loops = chain_loops(ChainOp::kSoftplusGrad),
                      .body = softplus_grad_body}}}),
      unary_op("Softsign", 22, of_x<[](double x) { return x / (1 + std::abs(x)); }>,
               unary_loops<OFSDP_X(softsign_of<M>(x)), kFloatTypes, Loops::kRare>(),
               {.slope = {{.reference = of_ab<[](double d, double x) {
                             return d / ((1 + std::abs(x)) * (1 + std::abs(x)));
                           }>,
                           .loops = binary_loops<OFSDP_DX(softsign_grad<M>(d, x)), kFloatTypes,
                                                 Loops::kRare>()}}}),
      unary_op("Elu", 22, of_x<[](double x, const A& a) {
                 return (x > 0) ? x : number(a, "alpha", 1) * std::expm1(x);
               }>,
               unary_loops<OFSDP_X(elu_of<M>(x, k.a))>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             return (x > 0) ? d : d * number(a, "alpha", 1) * std::exp(x);
                           }>,
                           .loops = binary_loops<OFSDP_DX(elu_grad<M>(d, x, k.a))>(),
                           .body = elu_grad_body}}}),
      unary_op("Celu", 28, of_x<[](double x, const A& a) {
                 const double alpha = number(a, "alpha", 1);
                 return std::max(0.0, x) + std::min(0.0, alpha * std::expm1(x / alpha));
               }>,
               unary_loops<OFSDP_X(celu_of<M>(x, k.a)), kFloatTypes, Loops::kRare>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             return (x > 0) ? d : d * std::exp(x / number(a, "alpha", 1));
                           }>,
                           .loops = binary_loops<OFSDP_DX(celu_grad<M>(d, x, k.a)), kFloatTypes,
                                                 Loops::kRare>()}}}),
      unary_op("Selu", 22, of_x<[](double x, const A& a) {
                 const double alpha = number(a, "alpha", 1.67326319217681884765625f);
                 const double gamma = number(a, "gamma", 1.05070102214813232421875f);
                 return gamma * ((x > 0) ? x : alpha * std::expm1(x));
               }>,
               unary_loops<OFSDP_X(selu_of<M>(x, k.a, k.b)), kFloatTypes, Loops::kRare>(),
               {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                             const double alpha = number(a, "alpha", 1.67326319217681884765625f);
                             const double gamma = number(a, "gamma", 1.05070102214813232421875f);
                             return d * gamma * ((x > 0) ? 1.0 : alpha * std::exp(x));
                           }>,
                           .loops = binary_loops<OFSDP_DX(selu_grad<M>(d, x, k.a, k.b)),
                                                 kFloatTypes, Loops::kRare>()}}}),
      unary_op(
          "Swish", 24,
          of_x<[](double x, const A& a) { return x / (1 + std::exp(-number(a, "alpha", 1) * x)); }>,
          unary_loops<OFSDP_X(swish_of<M>(x, k.a))>(),
          {.slope = {{.reference = of_ab<[](double d, double x, const A& a) {
                        const double alpha = number(a, "alpha", 1), e = std::exp(-alpha * x);
                        return d * (1 + alpha * x * (1 - 1 / (1 + e))) / (1 + e);
                      }>,
                      .loops = binary_loops<OFSDP_DX(swish_grad<M>(d, x, k.a))>(),
                      .body = swish_grad_body}}}),
      unary_op("Mish", 22, of_x<[](double x) { return x * std::tanh(std::log1p(std::exp(x))); }>,
               unary_loops<OFSDP_X(mish_of<M>(x))>(),
               {.slope = {{.reference = of_ab<[](double d, double x) {
                             const double t = std::tanh(std::log1p(std::exp(x)));
                             return d * (t + x * (1 - t * t) / (1 + std::exp(-x)));
                           }>,
                           .loops = binary_loops<OFSDP_DX(d * mish_slope<M>(x))>()}}}),
  };
}

OpDef quick_gelu() {
  return pointwise(make_op(
      "QuickGelu",
      {nullptr,
       [](GradBuilder& b) {
         const float alpha = b.attributes().f("alpha", 1.702f);
         b.set_grad(0,
                    b.emit1("ofsdp.SwishGrad", {b.grad_output(0), b.input(0)}, {{"alpha", alpha}}));
       },
       of_x<[](double x, const A& a) {
         return x / (1 + std::exp(-number(a, "alpha", 1.702f) * x));
       }>},
      pointwise_kernels("QuickGelu", unary_loops<OFSDP_X(swish_of<M>(x, k.a))>()),
      {.domain = "com.microsoft"}));
}

}  // namespace activations

void add_activations(Registry& registry) {
  using namespace activations;
  for (const UnaryOp& op : rectifiers()) add_unary(registry, op);
  for (const UnaryOp& op : smooth_activations()) add_unary(registry, op);
  registry.add(quick_gelu());
}

// Gelu, attribute approximate ("none" or "tanh"): y = x P(X <= x) for a normal X; both forms are in
// kernels/formulas/activation.h. dx = dy times the derivative (ofsdp.GeluGrad(dy, x), same
// attribute). com.microsoft.Gelu is the erf form.
//
// com.microsoft.BiasGelu(x, bias) and FastGelu(x, bias): Gelu(x + bias) with a bias along the last
// axis, BiasGelu by erf, FastGelu by tanh; FastGelu's bias may be absent. d(x + bias) =
// ofsdp.GeluGrad(dy, x + bias), and dbias sums it. onnxruntime's optimizer writes all three.
//
// com.microsoft.BiasSplitGelu(x, bias), the gated linear unit in diffusion models: with z = x +
// bias, the first half of z's last axis times the Gelu (by erf) of the second:
//   y[.., i] = z[.., i] gelu(z[.., n + i])     x [.., 2 n], bias [2 n], y [.., n]
// dx = (dy gelu(second), ofsdp.GeluGrad(dy first, second)), and dbias sums it.
// https://onnx.ai/onnx/operators/onnx__Gelu.html
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.BiasGelu

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

namespace gelu {

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

// Returns loops for the form that the attribute names.
std::vector<Implementation> kernels_of(ChainOp erf, ChainOp tanh) {
  std::vector<Implementation> made = pointwise_kernels("Gelu", chain_loops(erf));
  for (Implementation& implementation : made) {
    implementation.create = [=](const Problem& p) {
      return create_pointwise(chain_loops(op_of(p, erf, tanh)), {}, p);
    };
  }
  return made;
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
  return pointwise_kernels("BiasGelu", binary_loops<OFSDP_AB(gelu_of<M>(a + b))>());
}

// With or without a bias.
std::vector<Implementation> fast_gelu_kernels() {
  const PointwiseLoops one = chain_loops(ChainOp::kGeluTanh);
  const PointwiseLoops two = binary_loops<OFSDP_AB(gelu_tanh_of<M>(a + b))>();
  const Implementation loops{
      "loops",
      [=](const Problem& p) {
        const Acceptance first = accepts_pointwise(one, p);
        return first && p.has_in(1) ? accepts_pointwise(two, p) : first;
      },
      [=](const Problem& p) { return create_pointwise(p.has_in(1) ? two : one, {}, p); }};
  return {loops, in_float32(loops)};
}

// --- BiasSplitGelu ---

Result<std::vector<TensorDesc>> infer_gated(const InferContext& c) {
  const TensorDesc &x = c.inputs[0], &bias = c.inputs[1];
  const int last = x.shape.rank() - 1;
  if (last < 0 || x.shape[last] % 2 != 0 || bias.dtype != x.dtype ||
      bias.shape != Shape{x.shape[last]}) {
    return input_error("expected x with an even last axis and a bias of that size, found {} and {}",
                       x.text(), bias.text());
  }
  TensorDesc y{x.dtype, x.shape};
  y.shape[last] /= 2;
  return std::vector{std::move(y)};
}

// Returns both halves of x + bias.
std::vector<Ref> halves(GraphBuilder& b) {
  return b.emit("Split", {b.add(b.input(0), b.input(1))},
                {{"axis", int64_t{-1}}, {"num_outputs", int64_t{2}}}, 2);
}

void grad_of_gated(GradBuilder& b) {
  const std::vector<Ref> z = halves(b);
  const Ref dy = b.grad_output(0);
  const Ref gate = b.emit1("Gelu", {z[1]});
  const Ref first = b.mul(dy, gate);
  const Ref second = b.emit1("ofsdp.GeluGrad", {b.mul(dy, z[0]), z[1]});
  const Ref dz = b.emit1("Concat", {first, second}, {{"axis", int64_t{-1}}});
  if (b.needs_grad(0)) b.set_grad(0, dz);
  if (b.needs_grad(1)) b.set_grad(1, b.sum_to(dz, b.input(1)));
}

void gated_body(BodyBuilder& b) {
  const std::vector<Ref> z = halves(b);
  b.set_output(0, b.mul(z[0], b.emit1("Gelu", {z[1]})));
}

std::vector<RefTensor> reference_of_gated(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const size_t n = c.inputs[1].values.size() / 2;
  const std::vector<double>&x = c.inputs[0].values, &bias = c.inputs[1].values;
  for (size_t row = 0; n > 0 && row < x.size(); row += 2 * n) {
    for (size_t i = 0; i < n; ++i) {
      const double gate = x[row + n + i] + bias[n + i];
      y.values.push_back((x[row + i] + bias[i]) * reference_gelu(gate, false));
    }
  }
  return {y};
}

template <typename T>
OFSDP_MULTIARCH void gate_row(const T* __restrict x, const T* __restrict bias, T* __restrict y,
                              int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = (x[i] + bias[i]) * gelu_of<FloatMath>(x[n + i] + bias[n + i]);
  }
}

template <typename T>
std::unique_ptr<Kernel> create_gated(const Problem& p) {
  const int64_t n = p.in(1).numel() / 2, rows = n == 0 ? 0 : p.out(0).numel() / n;
  return make_kernel([n, rows](const KernelArgs& a) {
    const T *x = a.in<T>(0), *bias = a.in<T>(1);
    T* y = a.out<T>(0);
    parallel_each(rows, 4096 / (n + 1) + 1,
                  [&](int64_t row) { gate_row(x + row * 2 * n, bias, y + row * n, n); });
  });
}

}  // namespace gelu

void add_gelu(Registry& registry) {
  using namespace gelu;
  for (const char* domain : {"", "com.microsoft"}) {
    registry.add(
        pointwise(make_op("Gelu", {nullptr, grad, reference},
                          kernels_of(ChainOp::kGelu, ChainOp::kGeluTanh), {.domain = domain})));
  }
  registry.add(pointwise_grad(make_op("GeluGrad", {nullptr, nullptr, grad_reference},
                                      kernels_of(ChainOp::kGeluGrad, ChainOp::kGeluTanhGrad),
                                      {.body = gelu_grad_body})));
  registry.add(
      pointwise(make_op("BiasGelu",
                        {infer_biased, [](GradBuilder& b) { grad_of_biased(b, "none"); },
                         [](const ReferenceContext& c) { return reference_of_biased(c, false); }},
                        bias_gelu_kernels(), {.domain = "com.microsoft", .min_inputs = 2})));
  registry.add(
      pointwise(make_op("FastGelu",
                        {infer_biased, [](GradBuilder& b) { grad_of_biased(b, "tanh"); },
                         [](const ReferenceContext& c) { return reference_of_biased(c, true); }},
                        fast_gelu_kernels(), {.domain = "com.microsoft"})));
  registry.add(make_op("BiasSplitGelu", {infer_gated, grad_of_gated, reference_of_gated},
                       plain_float_kernels<create_gated<float>, create_gated<double>>("rows"),
                       {.domain = "com.microsoft", .min_inputs = 2, .body = gated_body}));
}

}  // namespace ofsdp::kernels::ops
