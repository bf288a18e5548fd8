// Bernoulli(p): 1 with probability p, else 0, of attribute dtype or p's type: u < p for a uniform u
// in [0, 1). No gradient flows: dp = 0.
// https://onnx.ai/onnx/operators/onnx__Bernoulli.html
#include "kernels/ops/operators.h"
#include "kernels/ops/random/random_draw.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, c.inputs[0].dtype));
  return std::vector{TensorDesc{dtype, c.inputs[0].shape}};
}

void no_grad(GradBuilder&) {}

double element(const Problem&, const KernelArgs& a, const RandomDraw& draw, int64_t i) {
  return draw.uniform(i) < float_at(a.inputs[0], i) ? 1 : 0;
}

std::vector<RefTensor> reference(const ReferenceContext& c) { return reference_random(c, element); }

bool accepts(const Problem& p) { return is_floating(p.in(0).dtype) && p.all_plain(); }
std::unique_ptr<Kernel> create(const Problem& p) { return make_random(p, element); }

std::vector<SampleCase> samples() {
  const auto probabilities = [](size_t, std::vector<double>& values) {
    for (double& v : values) v = v < 0 ? 0.25 : (v > 1 ? 1 : 0.75);
  };
  const auto sample = [&](const char* name, DType from, Shape shape, Attributes attributes = {}) {
    return SampleCase{.name = name,
                      .attributes = std::move(attributes),
                      .inputs = {{from, std::move(shape)}},
                      .fill = probabilities,
                      .check_grad = false};
  };
  return {sample("image", DType::kFloat32, {4, 3, 5, 6}),
          sample("seed", DType::kFloat64, {8, 300}, {{"seed", 2.0f}}),
          sample("mask", DType::kFloat32, {4, 9}, {{"dtype", number_of_dtype(DType::kBool)}}),
          sample("half", DType::kFloat16, {3, 5}), sample("empty", DType::kFloat32, {0, 5})};
}

}  // namespace

void add_bernoulli(Registry& registry) {
  registry.add({.name = "Bernoulli",
                .infer = infer,
                .grad = no_grad,
                .reference = reference,
                .cpu = {{"philox", accepts, create}},
                .samples = samples,
                .random = true});
}

}  // namespace ofsdp::kernels::ops
