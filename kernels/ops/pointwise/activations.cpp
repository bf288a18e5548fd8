// Activation functions with a gradient operator, ofsdp.NAMEGrad(dy, x); for Relu, Sigmoid and Tanh
// of dy and y, so that x need not be kept. Formulas: kernels/formulas/activation.h.
//
// NaN stays NaN. It stops the gradient of Relu, as in PyTorch.
// https://onnx.ai/onnx/operators/onnx__NAME.html; QuickGelu is Swish with another default:
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QuickGelu
#include <algorithm>
#include <cmath>

#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace activations {

using A = Attributes;

// --- gradients in operators of the standard ---

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
      // Numbers of every type: x + bias below -lambd, x - bias above lambd, else 0.
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

}  // namespace ofsdp::kernels::ops
