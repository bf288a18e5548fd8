// GatherND(data, indices), attribute batch_dims b: the last axis of indices holds tuples that each
// name a slice of data after the b leading axes both have in common; negative indices count from
// the end. Any dtype. d data sums dy over the tuples that took a slice, in their order:
// ofsdp.GatherNDGrad(dy, indices), attributes shape (of data) and batch_dims.
// https://onnx.ai/onnx/operators/onnx__GatherND.html
//
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
namespace tuples {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape shape, tuple_slices(c, c.attributes.i("batch_dims", 0)));
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(shape)}};
}

int batch_dims(const Attributes& attributes) {
  return static_cast<int>(attributes.i("batch_dims", 0));
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.GatherNDGrad", {b.grad_output(0), b.input(1)},
                        {{"shape", b.desc(b.input(0)).shape.axes()},
                         {"batch_dims", b.attributes().i("batch_dims", 0)}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for_tuple_elements(c.inputs[0].desc.shape, c.inputs[1], batch_dims(c.attributes),
                     [&](size_t from, size_t) { y.values.push_back(c.inputs[0].values[from]); });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for_tuple_elements(dx.desc.shape, c.inputs[1], batch_dims(c.attributes),
                     [&](size_t to, size_t from) { dx.values[to] += c.inputs[0].values[from]; });
  return {dx};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const TuplePlaces places(p.in(0).shape, p.in(1).shape, batch_dims(p.attributes));
  const auto size = static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([places, size](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(places.check(a.in<int64_t>(1)));
    const int64_t bytes = places.slice * size;
    parallel_each(places.tuples, 65536 / (bytes + 1) + 1, [&](int64_t t) {
      std::memcpy(a.outputs[0].data + t * bytes,
                  a.inputs[0].data + places.place(a.in<int64_t>(1), t) * size,
                  static_cast<size_t>(bytes));
    });
    return ok_status();
  });
}

Acceptance accepts_grad(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept_if(p.all_plain() && (dtype == DType::kFloat32 || dtype == DType::kFloat64),
                   "not plain float32 or float64");
}

template <typename T>
std::unique_ptr<Kernel> create_grad_as(const Problem& p) {
  const TuplePlaces places(p.out(0).shape, p.in(1).shape, batch_dims(p.attributes));
  return make_kernel([places, bytes = p.out(0).bytes()](const KernelArgs& a) {
    const auto* indices = a.in<int64_t>(1);
    OFSDP_RETURN_IF_ERROR(places.check(indices));
    T* dx = a.out<T>(0);
    if (bytes > 0) std::memset(dx, 0, bytes);
    // Threads share columns of the slices, so the order of each sum is that of the tuples.
    const int64_t grain = std::max<int64_t>(16, 65536 / std::max<int64_t>(places.tuples, 1));
    parallel_for(places.slice, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < places.tuples; ++t) {
        T* to = dx + places.place(indices, t);
        const T* from = a.in<T>(0) + t * places.slice;
        for (int64_t j = begin; j < end; ++j) to[j] += from[j];
      }
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 ? create_grad_as<float>(p) : create_grad_as<double>(p);
}

Result<std::vector<TensorDesc>> scatter_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Shape shape, tuple_slices(c, 0));
  OFSDP_RETURN_IF_ERROR(reduction_of(c.attributes).status());
  const TensorDesc updates{c.inputs[0].dtype, shape};
  if (c.inputs[2].dtype != updates.dtype || c.inputs[2].shape != updates.shape) {
    return input_error("expected updates {}, found {}", updates.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void tuples_grad(GradBuilder& b) { scatter_grad(b, "ScatterND", "GatherND", {}); }

std::vector<RefTensor> scatter_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const ScatterKind kind = *reduction_of(c.attributes);
  for_tuple_elements(y.desc.shape, c.inputs[1], 0, [&](size_t to, size_t from) {
    y.values[to] = reduce_doubles(kind, y.values[to], c.inputs[2].values[from]);
  });
  return {y};
}

// Updates columns begin .. end-1 of the slices; threads share columns, so the order of updates is
// that of the tuples.
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

std::unique_ptr<Kernel> scatter_create(const Problem& p) {
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

}  // namespace tuples

void add_tuples(Registry& registry) {
  using namespace tuples;
  registry.add(make_op("GatherND", {infer, grad, reference}, {{"slices", accepts_plain, create}},
                       {.min_inputs = 2, .first_opset = 11}));
  registry.add_own(make_op("GatherNDGrad", {infer_shape_of("shape"), nullptr, grad_reference},
                           with_half_floats<accepts_grad, create_grad>("columns"),
                           {.min_inputs = 2}));
  registry.add(make_op("ScatterND", {scatter_infer, tuples_grad, scatter_reference},
                       with_half_floats<accepts_plain_numbers, scatter_create>("columns"),
                       {.min_inputs = 3, .first_opset = 11, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
