// Shape(x), attributes start, end: the axes of x as int64. Size(x): the number of its elements, an
// int64 scalar. Both are known as soon as the shape of x is, so the importer folds them. No gradient.
// https://onnx.ai/onnx/operators/onnx__Shape.html
#include <algorithm>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// --- shape ---

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

Result<std::vector<TensorDesc>> shape_infer(const InferContext& c) {
  const auto count = static_cast<int64_t>(dims_of(c.inputs[0].shape, c.attributes).size());
  return std::vector{TensorDesc{DType::kInt64, {count}}};
}

std::vector<RefTensor> shape_reference(const ReferenceContext& c) {
  const auto dims = dims_of(c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0], std::vector<double>(dims.begin(), dims.end())}};
}

std::unique_ptr<Kernel> shape_create(const Problem& p) {
  return make_kernel([dims = dims_of(p.in(0).shape, p.attributes)](const KernelArgs& a) {
    std::ranges::copy(dims, a.out<int64_t>(0));
    return ok_status();
  });
}

std::vector<SampleCase> shape_samples() {
  const TensorDesc x{DType::kFloat32, {2, 0, 4, 5}};
  return {
      {.name = "all", .inputs = {x}},
      {.name = "middle",
       .attributes = {{"start", int64_t{1}}, {"end", int64_t{-1}}},
       .inputs = {x}},
      {.name = "none", .attributes = {{"start", int64_t{3}}, {"end", int64_t{1}}}, .inputs = {x}},
      {.name = "clamped", .attributes = {{"end", int64_t{9}}}, .inputs = {x}}};
}

// --- size ---

Result<std::vector<TensorDesc>> size_infer(const InferContext&) {
  return std::vector{TensorDesc{DType::kInt64, {}}};
}

std::vector<RefTensor> size_reference(const ReferenceContext& c) {
  return {{c.output_descs[0], {static_cast<double>(c.inputs[0].desc.numel())}}};
}

std::unique_ptr<Kernel> size_create(const Problem& p) {
  return make_kernel([n = p.in(0).numel()](const KernelArgs& a) {
    *a.out<int64_t>(0) = n;
    return ok_status();
  });
}

std::vector<SampleCase> size_samples() { return unary_samples(); }

}  // namespace

void add_sizes(Registry& registry) {
  registry.add({.name = "Shape",
                .infer = shape_infer,
                .reference = shape_reference,
                .cpu = {{"copy", accepts_always, shape_create}},
                .samples = shape_samples,
                .shape_only = true});
  registry.add({.name = "Size",
                .infer = size_infer,
                .reference = size_reference,
                .cpu = {{"count", accepts_always, size_create}},
                .samples = size_samples,
                .shape_only = true});
}

}  // namespace ofsdp::kernels::ops
