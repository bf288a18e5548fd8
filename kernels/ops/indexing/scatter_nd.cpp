// ScatterND(data, indices, updates), attribute reduction: data with updates put on the slices that
// the tuples in the last axis of indices name; negative indices count from the end. reduction none
// takes the last update, add, mul, max and min combine in the order of the tuples. Gradients:
// gather_scatter.h. https://onnx.ai/onnx/operators/onnx__ScatterND.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Shape shape, tuple_slices(c, 0));
  OFSDP_RETURN_IF_ERROR(reduction_of(c.attributes).status());
  const TensorDesc updates{c.inputs[0].dtype, shape};
  if (c.inputs[2].dtype != updates.dtype || c.inputs[2].shape != updates.shape) {
    return input_error("expected updates {}, found {}", updates.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void grad(GradBuilder& b) { scatter_grad(b, "ScatterND", "GatherND", {}); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const ScatterKind kind = *reduction_of(c.attributes);
  for_tuple_elements(y.desc.shape, c.inputs[1], 0, [&](size_t to, size_t from) {
    y.values[to] = reduce_doubles(kind, y.values[to], c.inputs[2].values[from]);
  });
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.all_plain() && is_number(p.in(0).dtype), "not plain, or a 16-bit float");
}

// Updates columns begin .. end-1 of the slices; threads share columns, so the order of updates is that
// of the tuples.
using Columns = void (*)(const TuplePlaces&, const KernelArgs&, int64_t begin, int64_t end);

template <ScatterKind kind, typename T>
void scatter_columns(const TuplePlaces& places, const KernelArgs& a, int64_t begin, int64_t end) {
  const auto* indices = a.in<int64_t>(1);
  for (int64_t t = 0; t < places.tuples; ++t) {
    T* to = a.out<T>(0) + places.place(indices, t);
    const T* from = a.in<T>(2) + t * places.slice;
    for (int64_t j = begin; j < end; ++j) to[j] = combined<kind>(to[j], from[j]);
  }
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Columns columns = with_reduction(
      *reduction_of(p.attributes), p.in(0).dtype,
      []<ScatterKind kind, typename T>() -> Columns { return scatter_columns<kind, T>; });
  return make_kernel([places = TuplePlaces(p.in(0).shape, p.in(1).shape, 0), columns,
                      bytes = p.in(0).bytes()](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(places.check(a.in<int64_t>(1)));
    std::byte* y = a.outputs[0].data;
    if (bytes > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, bytes);
    const int64_t grain = std::max<int64_t>(16, 65536 / std::max<int64_t>(places.tuples, 1));
    parallel_for(places.slice, grain,
                 [&](int64_t begin, int64_t end) { columns(places, a, begin, end); });
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc data, Shape indices, Shape updates,
                  const char* reduction, const std::vector<double>& index) {
  const TensorDesc put{data.dtype, std::move(updates)};
  return {.name = name,
          .attributes = {{"reduction", std::string(reduction)}},
          .inputs = {std::move(data), {DType::kInt64, std::move(indices)}, put},
          .fill = fill_with(1, index)};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const std::vector<double> once = {2, 0, -3};
  const std::vector<double> often = {1, 0, -1, 1, 0, 0, 1};
  return {sample("none", {f, {4, 3}}, {3, 1}, {3, 3}, "none", once),
          sample("elements", {f, {4, 3}}, {1, 2}, {1}, "none", {-1, 2}),
          sample("add", {f, {2, 3, 4}}, {5, 1}, {5, 3, 4}, "add", often),
          sample("add_elements", {f, {2, 2}}, {2, 3, 2}, {2, 3}, "add", often),
          sample("mul", {f, {3, 4}}, {3, 1}, {3, 4}, "mul", often),
          sample("max", {f, {3, 4}}, {3, 1}, {3, 4}, "max", often),
          sample("min", {f, {3, 2}}, {5, 2}, {5}, "min", often),
          sample("longs", {DType::kInt64, {3, 2}}, {3, 1}, {3, 2}, "add", often),
          sample("doubles", {DType::kFloat64, {3, 2}}, {3, 1}, {3, 2}, "mul", often),
          sample("empty", {f, {3, 4}}, {0, 1}, {0, 4}, "add", often)};
}

}  // namespace

void add_scatter_nd(Registry& registry) {
  registry.add({.name = "ScatterND",
                .min_inputs = 3,
                .first_opset = 11,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"columns", accepts, create}, in_float32<accepts, create>()},
                .samples = samples,
                .inplace_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
