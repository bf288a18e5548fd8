// Windows and output shapes for pooling kernels on every device. The CUDA library compiles this
// file too, so it must not need the CPU kernels.
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {

DType winner_dtype(int64_t taps) { return taps <= 255 ? DType::kUInt8 : DType::kInt32; }

Result<Window> infer_pool(const Attributes& attributes, const Shape& x) {
  if (!attributes.has("kernel_shape")) return input_error("kernel_shape is missing");
  return resolve_window(attributes, x, attributes.ints("kernel_shape"));
}

Window known_pool(const Attributes& attributes, const Shape& x) {
  return known_window(attributes, x, attributes.ints("kernel_shape"));
}

Shape pool_output(const Window& window, const Shape& x) {
  std::vector<int64_t> axes = {x[0], x[1]};
  for (int64_t axis : window.used(window.out)) axes.push_back(axis);
  return Shape(std::move(axes));
}

Attributes global_window(const Shape& x) {
  return {{"kernel_shape", std::vector<int64_t>(x.axes().begin() + 2, x.axes().end())}};
}

Result<Shape> infer_global_pool(const InferContext& c) {
  Shape shape = c.inputs[0].shape;
  if (shape.rank() < 3 || shape.rank() > 5 || shape.numel(2, shape.rank()) == 0) {
    return input_error("expected [N, C, 1 to 3 spatial axes], found {}", c.inputs[0].text());
  }
  for (int axis = 2; axis < shape.rank(); ++axis) shape[axis] = 1;
  return shape;
}

Attributes pool_attributes(const Attributes& attributes, const Window& window, const Shape& x) {
  Attributes made = window_attributes(window);
  made.set("kernel_shape", attributes.ints("kernel_shape"));
  made.set("ceil_mode", attributes.i("ceil_mode", 0));
  made.set("x_shape", x.axes());
  return made;
}

std::pair<int64_t, int64_t> tap_range(const Window& w, size_t axis, int64_t o) {
  const int64_t start = w.position(axis, o, 0);
  const int64_t dilation = w.dilations[axis];
  if (dilation == 1) {  // the same without divisions
    return {std::max<int64_t>(0, -start), std::min(w.in[axis] - start, w.kernel[axis])};
  }
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = w.in[axis] > start ? (w.in[axis] - start + dilation - 1) / dilation : 0;
  return {begin, std::min(end, w.kernel[axis])};
}

int64_t stored_place(const Window& w, int64_t at, bool column_major) {
  if (!column_major) return at;
  const int64_t d = at / (w.in[1] * w.in[2]);
  const int64_t h = at / w.in[2] % w.in[1];
  const int64_t v = at % w.in[2];
  // The operator's first spatial axis is the innermost one here.
  return w.axes == 3 ? (v * w.in[1] + h) * w.in[0] + d : v * w.in[1] + h;
}

}  // namespace ofsdp::kernels::ops
