// DepthToSpace(x) and SpaceToDepth(x), attributes blocksize b and mode: they move the elements
// between [N, C b b, H, W] and [N, C, H b, W b], where each b b channels are a block of b x b
// pixels. The mode is the order of the block axes in the C b b channels: DCR (block row, block
// column, channel) or CRD (channel, row, column). Any dtype. The gradient of one is the other.
// https://onnx.ai/onnx/operators/onnx__DepthToSpace.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace depth_space {

constexpr int64_t kMostBlock = 65536;  // whose square is no overflow

Status check_block(const InferContext& c) {
  const int64_t size = c.attributes.i("blocksize", 0);
  if (size < 1 || size > kMostBlock) {
    return input_error("attribute 'blocksize': expected 1..{}, found {}", kMostBlock, size);
  }
  const std::string mode = c.attributes.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") {
    return input_error("attribute 'mode': expected DCR or CRD, found '{}'", mode);
  }
  if (c.inputs[0].shape.rank() != 4) {
    return input_error("expected [N, C, H, W], found {}", c.inputs[0].text());
  }
  return ok_status();
}

// The tensors seen with 6 axes, in the order N, C, H, block row, W, block column.
struct BlockView {
  Shape shape;
  std::vector<int64_t> space;  // strides of [N, C, H b, W b]
  std::vector<int64_t> depth;  // strides of [N, C b b, H, W]
};

BlockView block_view(const Shape& space, const Attributes& attributes) {
  const int64_t b = attributes.i("blocksize", 1);
  const int64_t c = space[1], h = space[2] / b, w = space[3] / b;
  const int64_t plane = h * w;
  const bool dcr = attributes.s("mode", "DCR") == "DCR";
  const int64_t column = dcr ? c * plane : plane;
  return {{space[0], c, h, b, w, b},
          {c * plane * b * b, plane * b * b, w * b * b, w * b, b, 1},
          {c * plane * b * b, dcr ? plane : plane * b * b, w, column * b, 1, column}};
}

void block_grad(GradBuilder& b, const char* inverse) {
  b.set_grad(0, b.emit1(inverse, {b.grad_output(0)}, b.attributes()));
}

std::vector<RefTensor> block_reference(const BlockView& v, const ReferenceContext& c,
                                       const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(v.shape, i);
    size_t x_at = 0, y_at = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      x_at += static_cast<size_t>(index[axis] * from[axis]);
      y_at += static_cast<size_t>(index[axis] * to[axis]);
    }
    y.values[y_at] = c.inputs[0].values[x_at];
  }
  return {y};
}

Result<std::vector<TensorDesc>> to_space_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[1] % (b * b) != 0) {
    return input_error("{} channels are no multiple of blocksize squared {}", x[1], b * b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] / (b * b), x[2] * b, x[3] * b}}};
}

void to_space_grad(GradBuilder& b) { block_grad(b, "SpaceToDepth"); }

std::vector<RefTensor> to_space_reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.output_descs[0].shape, c.attributes);
  return block_reference(v, c, v.depth, v.space);
}

std::unique_ptr<Kernel> to_space_create(const Problem& p) {
  const BlockView v = block_view(p.out(0).shape, p.attributes);
  return make_copy_kernel(StridedCopy(v.shape, v.depth, v.space, dtype_size(p.out(0).dtype)));
}

Result<std::vector<TensorDesc>> to_depth_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_block(c));
  const Shape& x = c.inputs[0].shape;
  const int64_t b = c.attributes.i("blocksize", 1);
  if (x[2] % b != 0 || x[3] % b != 0) {
    return input_error("height {} and width {} are no multiples of blocksize {}", x[2], x[3], b);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, {x[0], x[1] * b * b, x[2] / b, x[3] / b}}};
}

void to_depth_grad(GradBuilder& b) { block_grad(b, "DepthToSpace"); }

std::vector<RefTensor> to_depth_reference(const ReferenceContext& c) {
  const BlockView v = block_view(c.inputs[0].desc.shape, c.attributes);
  return block_reference(v, c, v.space, v.depth);
}

std::unique_ptr<Kernel> to_depth_create(const Problem& p) {
  const BlockView v = block_view(p.in(0).shape, p.attributes);
  return make_copy_kernel(StridedCopy(v.shape, v.space, v.depth, dtype_size(p.out(0).dtype)));
}

}  // namespace depth_space

void add_depth_space(Registry& registry) {
  using namespace depth_space;
  registry.add(make_op("DepthToSpace", {to_space_infer, to_space_grad, to_space_reference},
                       {{"copy", accepts_plain, to_space_create}}));
  registry.add(make_op("SpaceToDepth", {to_depth_infer, to_depth_grad, to_depth_reference},
                       {{"copy", accepts_plain, to_depth_create}}));
}

}  // namespace ofsdp::kernels::ops
