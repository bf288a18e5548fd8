// ofsdp.SumTo(dy), attribute shape: dy summed over the axes along which `shape` was broadcast to
// that of dy: axes that `shape` lacks in front and axes where it has 1. It is the gradient of
// broadcasting, and so of every bias. The gradient of SumTo is that broadcasting. The additions
// have one order, whatever the number of threads (kernels/cpu/reduce.h).
#include "kernels/core/standard_body.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/reduce.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape to(c.attributes.ints("shape"));
  OFSDP_ASSIGN_OR_RETURN(const Shape both, broadcast(to, c.inputs[0].shape));
  if (both != c.inputs[0].shape) {
    return input_error("expected a shape that broadcasts to {}, found {}", c.inputs[0].shape.text(),
                       to.text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, to}};
}

void grad(GradBuilder& b) {
  const Ref shape = b.ints(b.desc(b.input(0)).shape.axes());
  b.set_grad(0, b.emit1("Expand", {b.grad_output(0), shape}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& dy = c.inputs[0];
  RefTensor sum{c.output_descs[0], {}};
  sum.values.assign(static_cast<size_t>(sum.desc.numel()), 0.0);
  for (size_t i = 0; i < dy.values.size(); ++i) {
    const auto index = unravel(dy.desc.shape, static_cast<int64_t>(i));
    sum.values[ravel_broadcast(sum.desc.shape, index)] += dy.values[i];
  }
  return {sum};
}

Acceptance accepts(const Problem& p) {
  return accept_if(is_stored_float(p.in(0).dtype) && p.all_plain(), "not plain float32 or less");
}

// Returns, for each axis of dy, whether it is summed.
std::vector<bool> summed(const Problem& p) {
  const Shape& from = p.in(0).shape;
  const Shape& to = p.out(0).shape;
  std::vector<bool> reduced(static_cast<size_t>(from.rank()), true);
  for (int axis = 0; axis < to.rank(); ++axis) {
    const int at = from.rank() - to.rank() + axis;
    if (to[axis] == from[at]) reduced[static_cast<size_t>(at)] = false;
  }
  return reduced;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Reduction sum(p.in(0).shape, summed(p), ReduceKind::kSum);
  return with_stored_float(p.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([sum](const KernelArgs& a) {
      sum.run(a.in<T>(0), a.out<T>(0));
      return ok_status();
    });
  });
}

Acceptance accepts_numbers(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept_if(p.all_plain() && (dtype == DType::kFloat64 || is_integer(dtype)),
                   "not plain, or a type without a loop");
}

std::unique_ptr<Kernel> create_numbers(const Problem& p) {
  return create_fold(fold_of<SumFold>(p.in(0).dtype), p.in(0).dtype, p.in(0).shape, summed(p));
}

SampleCase sample(const char* name, Shape from, std::vector<int64_t> to,
                  DType dtype = DType::kFloat32, double tolerance = 2e-5) {
  return {.name = name,
          .attributes = {{"shape", std::move(to)}},
          .inputs = {{dtype, std::move(from)}},
          .check_grad = dtype == DType::kFloat32,
          .tolerance = tolerance};
}

std::vector<SampleCase> samples() {
  return {sample("bias", {64, 128}, {128}),
          sample("bias_tail", {70, 75}, {75}),
          sample("column", {9, 33}, {9, 1}),
          sample("scalar", {5, 7, 3}, {}),
          sample("channels", {2, 3, 4, 5}, {3, 1, 1}),
          sample("alternating", {2, 3, 4, 5}, {1, 3, 1, 5}),
          sample("empty_batch", {0, 6}, {6}),
          sample("float64", {2, 3, 4}, {3, 1}, DType::kFloat64, 1e-13),
          sample("float16", {2, 3, 4}, {3, 1}, DType::kFloat16, 1e-3),
          sample("bfloat16_bias", {70, 75}, {75}, DType::kBFloat16, 8e-3),
          sample("bfloat16_rows", {3, 1100}, {3, 1}, DType::kBFloat16, 8e-3),
          sample("int64", {2, 3, 4}, {3, 1}, DType::kInt64),
          sample("same", {2, 3}, {2, 3})};
}

void sum_to_body(BodyBuilder& b) {
  const Shape& from = b.desc(b.input(0)).shape;
  const Shape& to = b.output_desc(0).shape;
  const int lead = from.rank() - to.rank();
  std::vector<int64_t> axes;
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (axis < lead || (to[axis - lead] == 1 && from[axis] != 1)) axes.push_back(axis);
  }
  b.set_output(0, b.reshape(b.sum(b.input(0), axes), to));
}

}  // namespace

void add_sum_to(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "SumTo",
                .infer = infer,
                .grad = grad,
                .body = sum_to_body,
                .reference = reference,
                .cpu = {{"blocks", accepts, create}, {"loops", accepts_numbers, create_numbers}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
