// com.microsoft.FusedGemm(A, B, C): Gemm, then the operator that attribute activation names, with
// activation_alpha, activation_beta and activation_gamma as its attributes.
//
// com.microsoft.GemmFastGelu(X, W, bias): the Gelu with tanh of X W + bias; X [..., K], W [K, N].
//
// Neither has a kernel: the bodies are Gemm and MatMul in front of the activation.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/ops/fused_activation.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/gelu.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// --- FusedGemm ---

Attributes gemm_attributes(const Attributes& attributes) {
  return {{"alpha", attributes.f("alpha", 1)},
          {"beta", attributes.f("beta", 1)},
          {"transA", attributes.i("transA", 0)},
          {"transB", attributes.i("transB", 0)}};
}

FusedActivation activation_of(const Attributes& attributes) {
  FusedActivation made{attributes.s("activation", ""), {}};
  for (const char* name : {"activation_alpha", "activation_beta", "activation_gamma"}) {
    if (attributes.has(name)) made.numbers.push_back(attributes.f(name, 0));
  }
  return made;
}

Result<std::vector<TensorDesc>> fused_gemm_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_activation(activation_of(c.attributes)));
  const TensorDesc &a = c.inputs[0], &b = c.inputs[1];
  const size_t trans_a = c.attributes.i("transA", 0) != 0,
               trans_b = c.attributes.i("transB", 0) != 0;
  if (a.shape.rank() != 2 || b.shape.rank() != 2) {
    return input_error("A and B must have 2 axes, found {} and {}", a.text(), b.text());
  }
  const auto axis = [](const TensorDesc& x, size_t at) { return x.shape[static_cast<int>(at)]; };
  return std::vector{TensorDesc{a.dtype, {axis(a, trans_a), axis(b, 1 - trans_b)}}};
}

void fused_gemm_body(BodyBuilder& b) {
  std::vector<Ref> inputs{b.input(0), b.input(1)};
  if (b.input(2)) inputs.push_back(b.input(2));
  const Ref product = b.emit1("Gemm", inputs, gemm_attributes(b.attributes()));
  b.set_output(0, activated(b, product, activation_of(b.attributes())));
}

std::vector<RefTensor> fused_gemm_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const bool trans_a = c.attributes.i("transA", 0) != 0, trans_b = c.attributes.i("transB", 0) != 0;
  const RefTensor &left = c.inputs[0], &right = c.inputs[1];
  const RefTensor* addend = given(c.inputs, 2);
  const int64_t inner = left.desc.shape[trans_a ? 0 : 1];
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto at = unravel(y.desc.shape, i);
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      const std::vector<int64_t> l{trans_a ? k : at[0], trans_a ? at[0] : k};
      const std::vector<int64_t> r{trans_b ? at[1] : k, trans_b ? k : at[1]};
      sum += left.values[ravel(left.desc.shape, l)] * right.values[ravel(right.desc.shape, r)];
    }
    sum *= static_cast<double>(c.attributes.f("alpha", 1));
    if (addend != nullptr) {
      sum += static_cast<double>(c.attributes.f("beta", 1)) *
             addend->values[ravel_broadcast(addend->desc.shape, at)];
    }
    y[i] = reference_activated(activation_of(c.attributes), sum);
  }
  return {y};
}

// --- GemmFastGelu ---

Result<std::vector<TensorDesc>> gemm_gelu_infer(const InferContext& c) {
  const Shape &x = c.inputs[0].shape, &w = c.inputs[1].shape;
  if (x.rank() < 1 || w.rank() != 2 || x[x.rank() - 1] != w[0]) {
    return input_error("expected W [{}, N], found X {} and W {}",
                       x.rank() < 1 ? 0 : x[x.rank() - 1], c.inputs[0].text(), c.inputs[1].text());
  }
  if (c.has(2) && c.inputs[2].shape != Shape{w[1]}) {
    return input_error("expected a bias [{}], found {}", w[1], c.inputs[2].text());
  }
  std::vector<int64_t> axes = x.axes();
  axes.back() = w[1];
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(axes)}};
}

void gemm_gelu_body(BodyBuilder& b) {
  Ref product = b.emit1("MatMul", {b.input(0), b.input(1)});
  if (b.input(2)) product = b.add(product, b.input(2));
  b.set_output(0, b.emit1("Gelu", {product}, {{"approximate", std::string("tanh")}}));
}

std::vector<RefTensor> gemm_gelu_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[0], &w = c.inputs[1];
  const RefTensor* bias = given(c.inputs, 2);
  const int64_t inner = w.desc.shape[0], columns = w.desc.shape[1];
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t row = i / columns, column = i % columns;
    double sum = bias == nullptr ? 0 : (*bias)[column];
    for (int64_t k = 0; k < inner; ++k) sum += x[row * inner + k] * w[k * columns + column];
    y[i] = reference_gelu(sum, true);
  }
  return {y};
}

}  // namespace

void add_fused_gemm(Registry& registry) {
  registry.add(make_op("FusedGemm", {fused_gemm_infer, nullptr, fused_gemm_reference}, {},
                       {.domain = "com.microsoft", .min_inputs = 2, .body = fused_gemm_body}));
  registry.add(make_op("GemmFastGelu", {gemm_gelu_infer, nullptr, gemm_gelu_reference}, {},
                       {.domain = "com.microsoft", .min_inputs = 2, .body = gemm_gelu_body}));
}

}  // namespace ofsdp::kernels::ops
