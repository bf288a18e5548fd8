// Multinomial(x [B, C] of unnormalised log-probabilities): [B, sample_size] draws of a class each,
// with replacement: the first class c whose sum of e^x_0 .. e^x_c passes u times that of all. No
// gradient flows: dx = 0.
// https://onnx.ai/onnx/operators/onnx__Multinomial.html
#include <cmath>

#include "kernels/ops/operators.h"
#include "kernels/ops/random/random_draw.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  const int64_t count = c.attributes.i("sample_size", 1);
  if (x.rank() != 2 || x[1] < 1)
    return input_error("expected [batch, classes], found {}", x.text());
  if (count < 0) return input_error("sample_size: expected 0 or more, found {}", count);
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, DType::kInt32));
  if (dtype != DType::kInt32 && dtype != DType::kInt64) {
    return input_error("dtype: expected int32 or int64, found {}", dtype_name(dtype));
  }
  return std::vector{TensorDesc{dtype, {x[0], count}}};
}

void no_grad(GradBuilder&) {}

double element(const Problem& p, const KernelArgs& a, const RandomDraw& draw, int64_t i) {
  const TensorView& x = a.inputs[0];
  const int64_t classes = x.desc.shape[1], row = i / p.out(0).shape[1] * classes;
  double max = -INFINITY, sum = 0;
  for (int64_t k = 0; k < classes; ++k) max = std::max(max, float_at(x, row + k));
  for (int64_t k = 0; k < classes; ++k) sum += std::exp(float_at(x, row + k) - max);
  double rest = draw.uniform(i) * sum;
  for (int64_t k = 0; k < classes - 1; ++k) {
    rest -= std::exp(float_at(x, row + k) - max);
    if (rest < 0) return static_cast<double>(k);
  }
  return static_cast<double>(classes - 1);
}

std::vector<RefTensor> reference(const ReferenceContext& c) { return reference_random(c, element); }

bool accepts(const Problem& p) { return is_floating(p.in(0).dtype) && p.all_plain(); }
std::unique_ptr<Kernel> create(const Problem& p) { return make_random(p, element); }

std::vector<SampleCase> samples() {
  return {{.name = "classes",
           .attributes = {{"sample_size", int64_t{9}}},
           .inputs = {{DType::kFloat32, {4, 7}}},
           .check_grad = false},
          {.name = "wide",
           .attributes = {{"sample_size", int64_t{50}}, {"dtype", number_of_dtype(DType::kInt64)}},
           .inputs = {{DType::kFloat64, {3, 40}}},
           .check_grad = false},
          {.name = "one", .inputs = {{DType::kFloat16, {5, 1}}}, .check_grad = false}};
}

}  // namespace

void add_multinomial(Registry& registry) {
  registry.add({.name = "Multinomial",
                .infer = infer,
                .grad = no_grad,
                .reference = reference,
                .cpu = {{"philox", accepts, create}},
                .samples = samples,
                .random = true});
}

}  // namespace ofsdp::kernels::ops
