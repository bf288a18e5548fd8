// Shared by Conv implementations (conv_operators.cpp, cudnn/conv_operators.cpp): shapes of one
// group, acceptance checks, copies of one group's activations and weights in channels last.
#pragma once

#include <algorithm>

#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {

// Converts a Window of kernels/ops.
inline WindowParams window_params(const ops::Window& w, int64_t images, int64_t channels,
                                  DType dtype, bool channels_last) {
  WindowParams e;
  e.dtype = dtype;
  e.images = images;
  e.channels = channels;
  e.channels_last = channels_last;
  std::ranges::copy(w.in, e.in);
  std::ranges::copy(w.out, e.out);
  std::ranges::copy(w.kernel, e.kernel);
  std::ranges::copy(w.strides, e.strides);
  std::ranges::copy(w.dilations, e.dilations);
  std::ranges::copy(w.pads_begin, e.pads_begin);
  std::ranges::copy(w.pads_end, e.pads_end);
  return e;
}

struct ConvParams {
  WindowParams window;             // for one group
  int64_t group = 1, outputs = 0;  // outputs: output channels per group
  size_t size = 0;                 // bytes per element

  int64_t in_positions() const { return window.in[0] * window.in[1] * window.in[2]; }
  int64_t out_positions() const { return window.out[0] * window.out[1] * window.out[2]; }
  int64_t taps() const { return window.kernel[0] * window.kernel[1] * window.kernel[2]; }
  int64_t rows() const { return window.images * out_positions(); }
  int64_t columns() const { return taps() * window.channels; }
  int64_t weights() const { return outputs * columns(); }
};

// Checks for Conv (x, w, b), and for the gradients with (dy, w) and (x, dy): one float type, at
// most three spatial axes, no empty operand.
Acceptance accepts_conv(const Problem& p);
Acceptance accepts_conv_grad(const Problem& p);
bool has_relu(const Problem& p);  // for Conv and pooling
// Shapes that a gradient has as attributes.
Shape conv_x_shape(const Problem& p);
Shape conv_w_shape(const Problem& p);

ConvParams conv_params(const Problem& p, const Shape& x, const Shape& w);

// One group's channels in an activation [images, channels, positions...], as [images, positions,
// channels]. Copied only if the tensor is plain or has several groups.
class GroupPart {
 public:
  GroupPart(const TensorDesc& desc, int64_t group, int64_t positions, Places& places);

  // Stores the address of group `g` in `part`, after copying it if necessary.
  cudaError_t read(void* whole, int64_t g, void* workspace, void*& part, cudaStream_t stream) const;
  // `place` returns the buffer for computing a group; `write` copies it back to the tensor.
  void* place(void* whole, void* workspace) const {
    return copied_ ? at(workspace, offset_) : whole;
  }
  cudaError_t write(void* whole, int64_t g, void* workspace, cudaStream_t stream) const;

 private:
  std::vector<int64_t> shape() const { return {images_, positions_, channels_}; }
  std::vector<int64_t> strides() const;
  size_t skip(int64_t g) const;

  int64_t images_, all_, channels_, positions_;
  size_t size_;
  bool plain_, copied_;
  size_t offset_ = 0;
};

// Transposes one group's weights from [outputs, channels, taps] to [outputs, taps, channels], or
// back.
cudaError_t transpose_weights(const ConvParams& e, const void* from, void* to, bool back,
                              cudaStream_t stream);

// Describes a product [rows, inner] x [inner, columns].
ProductShape conv_product(const ConvParams& e, int64_t rows, int64_t inner, int64_t columns);

}  // namespace ofsdp::kernels::cuda
