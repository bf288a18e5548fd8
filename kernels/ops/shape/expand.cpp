// Expand(x, shape): x broadcast to shape and its own (an axis of 1 in `shape` keeps that of x). Any
// dtype. dx = dy summed over what was broadcast. https://onnx.ai/onnx/operators/onnx__Expand.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto axes, known_ints(c, 1, "shape"));
  OFSDP_ASSIGN_OR_RETURN(const int64_t most, checked_numel(axes));
  OFSDP_ASSIGN_OR_RETURN(Shape shape, broadcast(c.inputs[0].shape, Shape(axes)));
  (void)most;
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(shape)}};
}

void grad(GradBuilder& b) { b.set_grad(0, b.sum_to(b.grad_output(0), b.input(0))); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    y.values.push_back(c.inputs[0].values[ravel_broadcast(c.inputs[0].desc.shape, index)]);
  }
  return {y};
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  StridedCopy copy(y.shape, broadcast_strides(p.in(0), y.shape), strides_of(y),
                   dtype_size(y.dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

SampleCase sample(const char* name, Shape from, std::vector<double> to) {
  const auto count = static_cast<int64_t>(to.size());
  return {.name = name,
          .inputs = {{DType::kFloat32, std::move(from)}, {DType::kInt64, {count}}},
          .fill = fill_with(1, std::move(to)),
          .constant_inputs = {1}};
}

std::vector<SampleCase> samples() {
  return {sample("rows", {1, 5}, {4, 5}),    sample("columns", {4, 1}, {4, 5}),
          sample("scalar", {}, {2, 3}),      sample("keeps_own", {4, 5}, {1, 1}),
          sample("both", {3, 1}, {2, 1, 4}), sample("empty", {1, 3}, {0, 3})};
}

}  // namespace

void add_expand(Registry& registry) {
  registry.add({.name = "Expand",
                .min_inputs = 2,
                .first_opset = 8,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
