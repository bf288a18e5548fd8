// Shape(x), attributes start, end: the axes of x as int64. Known as soon as the shape of x is, so
// the importer folds it. No gradient. https://onnx.ai/onnx/operators/onnx__Shape.html
#include <algorithm>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// The part of `axes` between start and end, which count from the end when negative and are clamped.
std::vector<int64_t> dims_of(const Shape& shape, const Attributes& attributes) {
  const int64_t rank = shape.rank();
  auto clamped = [rank](int64_t at) {
    return std::clamp(at < 0 ? at + rank : at, int64_t{0}, rank);
  };
  const int64_t start = clamped(attributes.i("start", 0));
  const int64_t end = std::max(start, clamped(attributes.i("end", rank)));
  return {shape.axes().begin() + start, shape.axes().begin() + end};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const auto count = static_cast<int64_t>(dims_of(c.inputs[0].shape, c.attributes).size());
  return std::vector{TensorDesc{DType::kInt64, {count}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto dims = dims_of(c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0], std::vector<double>(dims.begin(), dims.end())}};
}

bool accepts(const Problem&) { return true; }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([dims = dims_of(p.in(0).shape, p.attributes)](const KernelArgs& a) {
    std::ranges::copy(dims, a.out<int64_t>(0));
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  const TensorDesc x{DType::kFloat32, {2, 0, 4, 5}};
  return {
      {.name = "all", .inputs = {x}},
      {.name = "middle",
       .attributes = {{"start", int64_t{1}}, {"end", int64_t{-1}}},
       .inputs = {x}},
      {.name = "none", .attributes = {{"start", int64_t{3}}, {"end", int64_t{1}}}, .inputs = {x}},
      {.name = "clamped", .attributes = {{"end", int64_t{9}}}, .inputs = {x}}};
}

}  // namespace

void add_shape(Registry& registry) {
  registry.add({.name = "Shape",
                .infer = infer,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .shape_only = true});
}

}  // namespace ofsdp::kernels::ops
