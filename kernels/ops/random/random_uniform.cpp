// RandomUniform(shape) and RandomUniformLike(x): independent draws from low .. high (attributes, 0
// and 1), high left out but for rounding. No gradient flows: dx = 0.
// https://onnx.ai/onnx/operators/onnx__RandomUniform.html
// https://onnx.ai/onnx/operators/onnx__RandomUniformLike.html
#include "kernels/ops/operators.h"
#include "kernels/ops/random/random_draw.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const std::vector<int64_t> shape = c.attributes.ints("shape");
  if (!c.attributes.has("shape")) return input_error("shape is missing");
  OFSDP_RETURN_IF_ERROR(checked_numel(shape).status());
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, DType::kFloat32));
  return std::vector{TensorDesc{dtype, Shape(shape)}};
}

Result<std::vector<TensorDesc>> infer_like(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, dtype_attribute(c.attributes, c.inputs[0].dtype));
  return std::vector{TensorDesc{dtype, c.inputs[0].shape}};
}

// Only the shape of the input matters.
void no_grad(GradBuilder&) {}

double element(const Problem& p, const KernelArgs&, const RandomDraw& draw, int64_t i) {
  const double low = static_cast<double>(p.attributes.f("low", 0.0f));
  return low + (static_cast<double>(p.attributes.f("high", 1.0f)) - low) * draw.uniform(i);
}

std::vector<RefTensor> reference(const ReferenceContext& c) { return reference_random(c, element); }

bool accepts(const Problem& p) { return is_floating(p.out(0).dtype) && p.all_plain(); }
std::unique_ptr<Kernel> create(const Problem& p) { return make_random(p, element); }

using Ints = std::vector<int64_t>;

std::vector<SampleCase> samples() {
  const Attributes given{{"low", -1.5f}, {"high", 0.5f}};
  std::vector<SampleCase> cases = {{.name = "plain", .attributes = {{"shape", Ints{4, 37}}}},
                                   {.name = "odd", .attributes = given},
                                   {.name = "seed", .attributes = given},
                                   {.name = "half", .attributes = given},
                                   {.name = "empty", .attributes = {{"shape", Ints{0, 3}}}}};
  cases[1].attributes.set("shape", Ints{3, 5, 7});
  cases[2].attributes.set("shape", Ints{8, 100});
  cases[2].attributes.set("seed", 3.25f);
  cases[3].attributes.set("shape", Ints{});
  cases[3].attributes.set("dtype", number_of_dtype(DType::kFloat16));
  cases[3].tolerance = 1e-3;
  return cases;
}

std::vector<SampleCase> like_samples() {
  std::vector<SampleCase> cases = {
      {.name = "image", .inputs = {{DType::kFloat32, {4, 3, 5, 6}}}, .check_grad = false},
      {.name = "double",
       .attributes = {{"low", -1.5f}, {"high", 0.5f}},
       .inputs = {{DType::kFloat64, {4, 3}}},
       .check_grad = false},
      {.name = "of_integers",
       .attributes = {{"dtype", number_of_dtype(DType::kFloat32)}},
       .inputs = {{DType::kInt64, {4, 3}}},
       .check_grad = false}};
  return cases;
}

}  // namespace

void add_random_uniform(Registry& registry) {
  registry.add({.name = "RandomUniform",
                .min_inputs = 0,
                .infer = infer,
                .reference = reference,
                .cpu = {{"philox", accepts, create}},
                .samples = samples,
                .random = true});
  registry.add({.name = "RandomUniformLike",
                .infer = infer_like,
                .grad = no_grad,
                .reference = reference,
                .cpu = {{"philox", accepts, create}},
                .samples = like_samples,
                .random = true});
}

}  // namespace ofsdp::kernels::ops
