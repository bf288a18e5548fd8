// Where(condition, x, y): x where the condition is true, else y, broadcast; any dtype of x and y.
// dx is dy_out where it is true, else 0, and the other way round, each summed over what was
// broadcast. https://onnx.ai/onnx/operators/onnx__Where.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const auto& [condition, x, y] = std::tie(c.inputs[0], c.inputs[1], c.inputs[2]);
  if (condition.dtype != DType::kBool || x.dtype != y.dtype) {
    return input_error("expected a bool condition and two inputs of one type, found {}, {} and {}",
                       condition.text(), x.text(), y.text());
  }
  OFSDP_ASSIGN_OR_RETURN(const Shape both, broadcast(x.shape, y.shape));
  OFSDP_ASSIGN_OR_RETURN(Shape shape, broadcast(condition.shape, both));
  return std::vector{TensorDesc{x.dtype, std::move(shape)}};
}

void grad(GradBuilder& b) {
  const Ref d = b.grad_output(0);
  const Ref zero = b.like(d, 0);
  const Ref condition = b.input(0);
  if (b.needs_grad(1)) b.set_grad(1, b.sum_to(b.where(condition, d, zero), b.input(1)));
  if (b.needs_grad(2)) b.set_grad(2, b.sum_to(b.where(condition, zero, d), b.input(2)));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor out{c.output_descs[0], {}};
  for (int64_t i = 0; i < out.desc.numel(); ++i) {
    const auto index = unravel(out.desc.shape, i);
    auto at = [&](size_t k) {
      return c.inputs[k].values[ravel_broadcast(c.inputs[k].desc.shape, index)];
    };
    out.values.push_back(at(0) != 0 ? at(1) : at(2));
  }
  return {out};
}

Acceptance accepts(const Problem& p) { return accept_if(p.all_plain(), "not plain"); }

// One loop for each pattern of steps that matters: gcc vectorises those with known steps.
template <int kStepX, int kStepY, typename T>
OFSDP_MULTIARCH void choose(const uint8_t* c, const T* x, const T* y, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = c[i] != 0 ? x[i * kStepX] : y[i * kStepY];
}

template <typename T>
void where_row(const uint8_t* c, int64_t step_c, const T* x, int64_t step_x, const T* y,
               int64_t step_y, T* out, int64_t n) {
  if (step_c == 1 && step_x == 1 && step_y == 1) return choose<1, 1>(c, x, y, out, n);
  if (step_c == 1 && step_x == 1 && step_y == 0) return choose<1, 0>(c, x, y, out, n);
  if (step_c == 1 && step_x == 0 && step_y == 1) return choose<0, 1>(c, x, y, out, n);
  for (int64_t i = 0; i < n; ++i) out[i] = c[i * step_c] != 0 ? x[i * step_x] : y[i * step_y];
}

template <typename T>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const StridedLoop loop(shape,
                         {broadcast_strides(p.in(0), shape), broadcast_strides(p.in(1), shape),
                          broadcast_strides(p.in(2), shape), strides_of(p.out(0))});
  return make_kernel([loop](const KernelArgs& a) {
    auto row = [&](const StridedLoop::Offsets& at, int64_t n) {
      where_row(a.in<uint8_t>(0) + at[0], loop.inner_stride(0), a.in<T>(1) + at[1],
                loop.inner_stride(1), a.in<T>(2) + at[2], loop.inner_stride(2), a.out<T>(0) + at[3],
                n);
    };
    for_loop_rows(loop, row);
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bits(dtype_size(p.out(0).dtype),
                   [&p](auto bits) { return create_as<decltype(bits)>(p); });
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const DType b = DType::kBool;
  return {{.name = "same", .inputs = {{b, {3, 7}}, {f, {3, 7}}, {f, {3, 7}}}},
          {.name = "mask", .inputs = {{b, {1, 1, 4, 4}}, {f, {2, 3, 4, 4}}, {f, {}}}},
          {.name = "scalars", .inputs = {{b, {5}}, {f, {}}, {f, {1}}}},
          {.name = "outer", .inputs = {{b, {3, 1}}, {f, {1, 4}}, {f, {2, 1, 1}}}},
          {.name = "longs", .inputs = {{b, {4}}, {DType::kInt64, {4}}, {DType::kInt64, {1}}}},
          {.name = "empty", .inputs = {{b, {0, 3}}, {f, {3}}, {f, {}}}}};
}

}  // namespace

void add_where(Registry& registry) {
  registry.add({.name = "Where",
                .min_inputs = 3,
                .first_opset = 9,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples,
                .inplace_inputs = {1, 2}});
}

}  // namespace ofsdp::kernels::ops
