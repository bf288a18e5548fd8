// The parts of Conv and its gradients on a device (conv_operators.cpp): the numbers of one
// group, places in the workspace, and activations whose channels of one group are wanted dense and
// channels last.
//
// Ownership: values; addresses are the launch's. Threads: one a stream. Errors: what launches say.
#pragma once

#include <algorithm>

#include "kernels/cuda/conv/window.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::cuda {

// A Window of kernels/ops as the kernels of window.h take it.
inline WindowExtent window_extent(const ops::Window& w, int64_t images, int64_t channels,
                                  DType dtype, bool channels_last) {
  WindowExtent e;
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

struct ConvExtent {
  WindowExtent window;             // of one group: its channels
  int64_t group = 1, outputs = 0;  // outputs: of one group
  size_t size = 0;                 // of an element

  int64_t in_positions() const { return window.in[0] * window.in[1] * window.in[2]; }
  int64_t out_positions() const { return window.out[0] * window.out[1] * window.out[2]; }
  int64_t taps() const { return window.kernel[0] * window.kernel[1] * window.kernel[2]; }
  int64_t rows() const { return window.images * out_positions(); }
  int64_t columns() const { return taps() * window.channels; }
  int64_t weights() const { return outputs * columns(); }
};

// Required by every implementation of Conv (x, w, b) and of its gradients, with (dy, w) and (x,
// dy): one floating type, at most three spatial axes, something to add up.
Acceptance accepts_conv(const Problem& p);
Acceptance accepts_conv_grad(const Problem& p);
bool has_relu(const Problem& p);  // after a Conv or a pool
// For a gradient, from its attributes.
Shape conv_x_shape(const Problem& p);
Shape conv_w_shape(const Problem& p);

ConvExtent conv_extent(const Problem& p, const Shape& x, const Shape& w);

// [images, channels of all groups, positions...]: it lies as wanted already, or is copied.
class GroupPart {
 public:
  GroupPart(const TensorDesc& desc, int64_t group, int64_t positions, Places& places);

  // The part of group `g`, copied if need be.
  cudaError_t read(void* whole, int64_t g, void* workspace, void*& part, cudaStream_t stream) const;
  // The buffer that a part is written to, and its way from there to its own place.
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

// [outputs, channels, taps] of a group to [outputs, taps, channels], or back.
cudaError_t turn_weights(const ConvExtent& e, const void* from, void* to, bool back,
                         cudaStream_t stream);

ProductShape conv_product(const ConvExtent& e, int64_t rows, int64_t inner, int64_t columns);

}  // namespace ofsdp::kernels::cuda
