// GatherND(data, indices), attribute batch_dims b: the last axis of indices holds tuples that each
// name a slice of data behind the b leading axes both have in common; negative indices count from
// the end. Any dtype. d data sums dy over the tuples that took a slice, in their order:
// ofsdp.GatherNDGrad(dy, indices), attributes shape (of data) and batch_dims.
// https://onnx.ai/onnx/operators/onnx__GatherND.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

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

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(c.attributes.ints("shape"))}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx{c.output_descs[0], {}};
  dx.values.assign(static_cast<size_t>(dx.desc.numel()), 0.0);
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
    parallel_for(places.tuples, 65536 / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        std::memcpy(a.outputs[0].data + t * bytes,
                    a.inputs[0].data + places.place(a.in<int64_t>(1), t) * size,
                    static_cast<size_t>(bytes));
      }
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

SampleCase sample(const char* name, TensorDesc data, Shape indices, int64_t batch) {
  return {.name = name,
          .attributes = {{"batch_dims", batch}},
          .inputs = {std::move(data), {DType::kInt64, std::move(indices)}},
          .fill = fill_with(1, {1, 0, -1, 1, -2, 0, 0})};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {sample("elements", {f, {3, 4}}, {5, 2}, 0),
          sample("slices", {f, {3, 4, 5}}, {2, 3, 1}, 0),
          sample("batch", {f, {2, 3, 4}}, {2, 1}, 1),
          sample("batches", {f, {2, 3, 4, 2}}, {2, 3, 5, 1}, 2),
          sample("whole", {f, {3, 4}}, {2, 0}, 0),
          sample("ints", {DType::kInt32, {2, 2}}, {2, 2}, 0),
          sample("bools", {DType::kBool, {2, 2}}, {2, 1}, 0),
          sample("empty", {f, {3, 4}}, {0, 2}, 0)};
}

std::vector<SampleCase> grad_samples() {
  auto made = [](const char* name, TensorDesc dy, Shape indices, int64_t batch,
                 std::vector<int64_t> shape) {
    SampleCase s = sample(name, std::move(dy), std::move(indices), batch);
    s.attributes.set("shape", std::move(shape));
    return s;
  };
  const DType f = DType::kFloat32;
  return {made("slices", {f, {2, 3, 4, 5}}, {2, 3, 1}, 0, {3, 4, 5}),
          made("batch", {f, {2, 4}}, {2, 1}, 1, {2, 3, 4}),
          made("doubles", {DType::kFloat64, {5}}, {5, 2}, 0, {3, 4}),
          made("empty", {f, {0}}, {0, 2}, 0, {3, 4})};
}

}  // namespace

void add_gather_nd(Registry& registry) {
  registry.add({.name = "GatherND",
                .min_inputs = 2,
                .first_opset = 11,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"slices", accepts_plain, create}},
                .samples = samples});
  registry.add(
      {.domain = kOwnDomain,
       .name = "GatherNDGrad",
       .min_inputs = 2,
       .infer = infer_grad,
       .reference = grad_reference,
       .cpu = {{"columns", accepts_grad, create_grad}, in_float32<accepts_grad, create_grad>()},
       .samples = grad_samples});
}

}  // namespace ofsdp::kernels::ops
