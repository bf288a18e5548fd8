// DepthToSpace(x), attributes blocksize b, mode: [N, C b b, H, W] -> [N, C, H b, W b], each b b
// channels becoming a block of b x b pixels; see depth_space.h for the modes. Any dtype. dx is the
// SpaceToDepth of dy. https://onnx.ai/onnx/operators/onnx__DepthToSpace.html
#include "kernels/ops/operators.h"
#include "kernels/ops/shape/depth_space.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[1] % (b * b) != 0) {
    return input_error("{} channels are no multiple of blocksize squared {}", x[1], b * b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] / (b * b), x[2] * b, x[3] * b}}};
}

void grad(GradBuilder& b) { block_grad(b, "SpaceToDepth"); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.output_descs[0].shape, c.attributes);
  return block_reference(v, c, v.depth, v.space);
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const BlockView v = block_view(p.out(0).shape, p.attributes);
  const StridedCopy copy(v.shape, v.depth, v.space, dtype_size(p.out(0).dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

std::vector<SampleCase> samples() { return block_samples({{2, 12, 3, 5}, {0, 4, 2, 2}}); }

}  // namespace

void add_depth_to_space(Registry& registry) {
  registry.add({.name = "DepthToSpace",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
