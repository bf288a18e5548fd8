// SpaceToDepth(x), attributes blocksize b, mode: [N, C, H b, W b] -> [N, C b b, H, W], each block
// of b x b pixels becoming b b channels; see depth_space.h for the modes. Any dtype. dx is the
// DepthToSpace of dy. https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html
#include "kernels/ops/operators.h"
#include "kernels/ops/shape/depth_space.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[2] % b != 0 || x[3] % b != 0) {
    return input_error("height {} and width {} are no multiples of blocksize {}", x[2], x[3], b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] * b * b, x[2] / b, x[3] / b}}};
}

void grad(GradBuilder& b) { block_grad(b, "DepthToSpace"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.inputs[0].desc.shape, c.attributes);
  return block_reference(v, c, v.space, v.depth);
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const BlockView v = block_view(p.in(0).shape, p.attributes);
  const StridedCopy copy(v.shape, v.space, v.depth, dtype_size(p.out(0).dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

std::vector<SampleCase> samples() { return block_samples({{2, 3, 6, 10}, {0, 1, 4, 4}}); }

}  // namespace

void add_space_to_depth(Registry& registry) {
  registry.add({.name = "SpaceToDepth",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
