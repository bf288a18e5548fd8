// GatherElements(data, indices), attribute axis: y has the shape of indices, and each element is
// that of data at the same place but for the axis, where the index says; a negative one counts from
// the end. Any dtype. d data sums dy where it was taken: a ScatterElements that adds.
// https://onnx.ai/onnx/operators/onnx__GatherElements.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_element_indices(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[1].shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(
      0, b.emit1("ScatterElements", {zeros(b, b.desc(b.input(0))), b.input(1), b.grad_output(0)},
                 {{"axis", b.attributes().i("axis", 0)}, {"reduction", std::string("add")}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const size_t at =
        element_place(c.inputs[0].desc.shape, c.inputs[1], i, c.attributes.i("axis", 0));
    y.values.push_back(c.inputs[0].values[at]);
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.all_plain() && is_index(p.in(1).dtype),
                   "not plain, or indices of another type");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bits(dtype_size(p.in(0).dtype), [&]<typename T>(T) {
    const ElementPlaces places(p.in(0).shape, p.in(1).shape, p.attributes.i("axis", 0));
    return make_kernel([places, count = p.in(1).numel()](const KernelArgs& a) {
      const Indices indices(a.inputs[1]);
      OFSDP_RETURN_IF_ERROR(check_indices(indices, count, places.n));
      const T* data = a.in<T>(0);
      T* y = a.out<T>(0);
      places.for_each(indices, [&](int64_t from, int64_t to) { y[to] = data[from]; });
      return ok_status();
    });
  });
}

SampleCase sample(const char* name, TensorDesc data, TensorDesc indices, int64_t axis) {
  return {.name = name,
          .attributes = {{"axis", axis}},
          .inputs = {std::move(data), std::move(indices)},
          .fill = fill_with(1, {2, 0, -1, 2, 1})};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const DType i = DType::kInt64;
  return {sample("rows", {f, {3, 4}}, {i, {5, 4}}, 0),
          sample("columns", {f, {3, 4}}, {DType::kInt32, {3, 2}}, -1),
          sample("smaller", {f, {4, 3, 5}}, {i, {2, 6, 3}}, 1),
          sample("longs", {i, {3, 3}}, {i, {3, 3}}, 1),
          sample("bools", {DType::kBool, {3, 3}}, {i, {3, 3}}, 0),
          sample("empty", {f, {3, 4}}, {i, {0, 4}}, 0)};
}

}  // namespace

void add_gather_elements(Registry& registry) {
  registry.add({.name = "GatherElements",
                .min_inputs = 2,
                .first_opset = 11,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"lines", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
