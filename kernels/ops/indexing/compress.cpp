// Compress(x, condition), attribute axis: the slices of x along the axis (the elements of x laid
// flat when it is absent) for which the condition, which may be shorter, is true. Its shape depends
// on the condition, which must be known while planning. Any dtype. dx is dy put back, zeros
// elsewhere. https://onnx.ai/onnx/operators/onnx__Compress.html
#include "kernels/cpu/lines.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace compress {

std::vector<int64_t> kept_by(const Constant& condition) {
  std::vector<int64_t> kept;
  const auto flags = condition.as<uint8_t>();
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0) kept.push_back(static_cast<int64_t>(i));
  }
  return kept;
}

// x along the axis, flat without one.
Lines lines_of_x(const Shape& shape, const Attributes& attributes) {
  if (!attributes.has("axis")) return {1, shape.numel(), 1};
  return lines_along(shape, attributes.i("axis", 0));
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const Constant* condition = c.constant(1);
  if (condition == nullptr) {
    return input_error(
        "input 'condition' must be known before the run, found a computed value: the number of its "
        "true elements is the shape of the output");
  }
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", 0), std::max(x.shape.rank(), 1)));
  const bool flat = !c.attributes.has("axis");
  const int64_t n = flat ? x.numel() : x.shape[axis];
  const auto kept = kept_by(*condition);
  if (condition->desc.dtype != DType::kBool || (!kept.empty() && kept.back() >= n)) {
    return input_error("expected a bool condition for {} elements, found {}", n,
                       condition->desc.text());
  }
  const auto count = static_cast<int64_t>(kept.size());
  if (flat) return std::vector{TensorDesc{x.dtype, {count}}};
  TensorDesc y{x.dtype, x.shape};
  y.shape[axis] = count;
  return std::vector{y};
}

void grad(GradBuilder& b) {
  const Ref x = b.input(0);
  const auto kept = kept_by(*b.constant_value(b.input(1)));
  const bool flat = !b.attributes().has("axis");
  std::vector<int64_t> shape = b.desc(x).shape.axes();
  if (flat) shape = {b.desc(x).numel()};
  const Ref dx = b.emit1("ofsdp.GatherGrad", {b.grad_output(0), b.ints(kept)},
                         {{"axis", b.attributes().i("axis", 0)}, {"shape", shape}});
  b.set_grad(0, reshape_like(b, dx, x));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_of_x(c.inputs[0].desc.shape, c.attributes);
  for (int64_t i = 0; i < c.inputs[0].desc.numel(); ++i) {
    const auto k = static_cast<size_t>(i / lines.inner % lines.n);
    const auto& condition = c.inputs[1].values;
    if (k < condition.size() && condition[k] != 0) y.values.push_back(c.inputs[0][i]);
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.all_plain() && p.constant(1) != nullptr, "not plain, or a computed condition");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = lines_of_x(p.in(0).shape, p.attributes);
  const auto bytes = lines.inner * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([lines, bytes, kept = kept_by(*p.constant(1))](const KernelArgs& a) {
    std::byte* to = a.outputs[0].data;
    for (int64_t o = 0; o < lines.outer && bytes > 0; ++o) {
      for (int64_t k : kept) {
        std::memcpy(to, a.inputs[0].data + (o * lines.n + k) * bytes, static_cast<size_t>(bytes));
        to += bytes;
      }
    }
  });
}

}  // namespace compress

void add_compress(Registry& registry) {
  using namespace compress;
  registry.add(make_op("Compress", {infer, grad, reference}, {{"copies", accepts, create}},
                       {.min_inputs = 2, .first_opset = 9, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
