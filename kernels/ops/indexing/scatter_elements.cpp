// ScatterElements(data, indices, updates), attributes axis, reduction: data with each update put on
// the element at the same place but for the axis, where the index says; a negative one counts from
// the end. reduction none takes the last update, add, mul, max and min combine in the order of the
// indices. Gradients: gather_scatter.h. https://onnx.ai/onnx/operators/onnx__ScatterElements.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_element_indices(c));
  OFSDP_RETURN_IF_ERROR(reduction_of(c.attributes).status());
  const TensorDesc updates{c.inputs[0].dtype, c.inputs[1].shape};
  if (c.inputs[2].dtype != updates.dtype || c.inputs[2].shape != updates.shape) {
    return input_error("expected updates {}, found {}", updates.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void grad(GradBuilder& b) {
  scatter_grad(b, "ScatterElements", "GatherElements", {{"axis", b.attributes().i("axis", 0)}});
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const ScatterKind kind = *reduction_of(c.attributes);
  for (size_t i = 0; i < c.inputs[2].values.size(); ++i) {
    double& v = y.values[element_place(y.desc.shape, c.inputs[1], static_cast<int64_t>(i),
                                       c.attributes.i("axis", 0))];
    v = reduce_doubles(kind, v, c.inputs[2].values[i]);
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.all_plain() && is_index(p.in(1).dtype) && is_number(p.in(0).dtype),
                   "not plain, or a type without a loop");
}

struct Extent {
  ElementPlaces places;
  int64_t count;  // of updates
  size_t bytes;   // of the data
};

using Scatter = void (*)(const Extent&, const KernelArgs&);

template <ScatterKind kind, typename T>
void scatter(const Extent& e, const KernelArgs& a) {
  const T* updates = a.in<T>(2);
  T* y = a.out<T>(0);
  e.places.for_each(Indices(a.inputs[1]), [&](int64_t to, int64_t from) {
    y[to] = combined<kind>(y[to], updates[from]);
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Extent extent{
      {p.in(0).shape, p.in(1).shape, p.attributes.i("axis", 0)}, p.in(1).numel(), p.in(0).bytes()};
  const Scatter run =
      with_reduction(*reduction_of(p.attributes), p.in(0).dtype,
                     []<ScatterKind kind, typename T>() -> Scatter { return scatter<kind, T>; });
  return make_kernel([extent, run](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(check_indices(Indices(a.inputs[1]), extent.count, extent.places.n));
    std::byte* y = a.outputs[0].data;
    if (extent.bytes > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, extent.bytes);
    run(extent, a);
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc data, TensorDesc indices, int64_t axis,
                  const char* reduction, const std::vector<double>& index) {
  const TensorDesc updates{data.dtype, indices.shape};
  return {.name = name,
          .attributes = {{"axis", axis}, {"reduction", std::string(reduction)}},
          .inputs = {std::move(data), std::move(indices), updates},
          .fill = fill_with(1, index)};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const DType i = DType::kInt64;
  const std::vector<double> once = {2, 0, -1};  // no place twice
  const std::vector<double> often = {2, 0, -1, 2, 1, 1};
  return {sample("none", {f, {4, 3}}, {i, {3, 1}}, 0, "none", once),
          sample("columns", {f, {4, 5}}, {DType::kInt32, {2, 3}}, -1, "none", once),
          sample("add", {f, {3, 4}}, {i, {5, 4}}, 0, "add", often),
          sample("add_inside", {f, {4, 3, 5}}, {i, {2, 6, 3}}, 1, "add", often),
          sample("mul", {f, {3, 4}}, {i, {3, 6}}, 1, "mul", often),
          sample("max", {f, {3, 4}}, {i, {3, 6}}, 1, "max", often),
          sample("min", {f, {3, 4}}, {i, {5, 2}}, 0, "min", often),
          sample("longs", {i, {3, 3}}, {i, {3, 3}}, 1, "mul", often),
          sample("bools", {DType::kBool, {3, 3}}, {i, {3, 3}}, 0, "add", often),
          sample("doubles", {DType::kFloat64, {3, 3}}, {i, {3, 3}}, 0, "max", often),
          sample("empty", {f, {3, 4}}, {i, {0, 4}}, 0, "add", often)};
}

std::vector<SampleCase> all_samples() {
  std::vector<SampleCase> list = samples();
  SampleCase half =
      sample("halves", {DType::kFloat16, {4, 3}}, {DType::kInt64, {3, 3}}, 0, "none", {2, 0, -2});
  half.check_grad = false;
  list.push_back(half);
  SampleCase zeros = sample("mul_of_zeros", {DType::kFloat32, {4}}, {DType::kInt64, {6}}, 0, "mul",
                            {0, 0, 1, 1, 2, 3});
  zeros.fill = [](size_t i, std::vector<double>& v) {
    if (i == 1) v = {0, 0, 1, 1, 2, 3};
    if (i == 2) v = {0, 2, 0, 0, 3, 0};
  };
  list.push_back(zeros);
  return list;
}

}  // namespace

void add_scatter_elements(Registry& registry) {
  registry.add({.name = "ScatterElements",
                .min_inputs = 3,
                .first_opset = 11,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"lines", accepts, create}, in_float32<accepts, create>()},
                .samples = all_samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
