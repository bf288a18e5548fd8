#include "kernels/cuda/conv/conv_parts.h"

#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {

Acceptance accepts_conv_grad(const Problem& p) {
  return accept({floats(p.in(0).dtype),
                 alike(p.all_dtype(p.in(0).dtype)),
                 some(p.in(0)),
                 some(p.in(1)),
                 {p.in(0).shape.rank() <= 5, "there are more than three spatial axes"}});
}

Acceptance accepts_conv(const Problem& p) {
  const bool known_activation = has_relu(p) || p.attributes.s("ofsdp_activation", "").empty();
  return accept(accepts_conv_grad(p), {{known_activation, "the fused activation is not relu"}});
}

bool has_relu(const Problem& p) { return p.attributes.s("ofsdp_activation", "") == "relu"; }

Shape conv_x_shape(const Problem& p) { return Shape(p.attributes.ints("x_shape")); }
Shape conv_w_shape(const Problem& p) { return Shape(p.attributes.ints("w_shape")); }

ConvParams conv_params(const Problem& p, const Shape& x, const Shape& w) {
  const std::vector<int64_t> kernel(w.axes().begin() + 2, w.axes().end());
  const ops::Window window = ops::known_window(p.attributes, x, kernel);
  ConvParams e;
  e.group = p.attributes.i("group", 1);
  e.outputs = w[0] / e.group;
  e.size = dtype_size(p.in(0).dtype);
  e.window = window_params(window, x[0], w[1], p.in(0).dtype, true);
  return e;
}

GroupPart::GroupPart(const TensorDesc& desc, int64_t group, int64_t positions, Places& places)
    : images_(desc.shape[0]),
      all_(desc.shape[1]),
      channels_(desc.shape[1] / group),
      positions_(positions),
      size_(dtype_size(desc.dtype)),
      plain_(desc.layout == Layout::kPlain && desc.shape[1] > 1 && positions > 1),
      copied_(plain_ || group > 1) {
  if (copied_) offset_ = places.take(images_ * positions_ * channels_, size_);
}

cudaError_t GroupPart::read(void* whole, int64_t g, void* workspace, void*& part,
                            cudaStream_t stream) const {
  part = place(whole, workspace);
  if (!copied_) return cudaSuccess;
  return strided_copy(size_, shape(), strides(), dense_strides(shape()), at(whole, skip(g)), part,
                      stream);
}

cudaError_t GroupPart::write(void* whole, int64_t g, void* workspace, cudaStream_t stream) const {
  if (!copied_) return cudaSuccess;
  return strided_copy(size_, shape(), dense_strides(shape()), strides(), at(workspace, offset_),
                      at(whole, skip(g)), stream);
}

std::vector<int64_t> GroupPart::strides() const {
  if (plain_) return {all_ * positions_, 1, positions_};
  return {all_ * positions_, all_, 1};
}

size_t GroupPart::skip(int64_t g) const {
  return static_cast<size_t>(g * channels_ * (plain_ ? positions_ : 1)) * size_;
}

cudaError_t transpose_weights(const ConvParams& e, const void* from, void* to, bool back,
                              cudaStream_t stream) {
  const int64_t taps = e.taps(), channels = e.window.channels;
  const std::vector<int64_t> shape{e.outputs, taps, channels};
  const std::vector<int64_t> file{taps * channels, 1, taps}, turned = dense_strides(shape);
  return strided_copy(e.size, shape, back ? turned : file, back ? file : turned, from, to, stream);
}

ProductShape conv_product(const ConvParams& e, int64_t rows, int64_t inner, int64_t columns) {
  ProductShape s;
  s.dtype = e.window.dtype;
  s.rows = rows;
  s.inner = inner;
  s.columns = columns;
  return s;
}

}  // namespace ofsdp::kernels::cuda
