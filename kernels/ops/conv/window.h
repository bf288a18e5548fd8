// The sliding window of Conv and pooling, with auto_pad resolved. It always has three spatial axes
// (if an operator has fewer, leading axes have size 1), so loops are written once.
//
// Reads kernel_shape, strides, dilations, pads, auto_pad and ceil_mode, as ONNX defines them.
// Returns kInput errors that name the attribute, expected and found.
#pragma once

#include <array>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

// Our own attribute, with the output positions per axis, for the Conv that computes a
// ConvTranspose's gradient. Strides, pads and input size do not determine the output size there:
// with a stride above 1 several input sizes of a ConvTranspose have the same output size.
inline constexpr const char* kOutputsAttribute = "ofsdp_outputs";

struct Window {
  using Axes = std::array<int64_t, 3>;

  int axes = 0;          // spatial axes that the operator has, 1 to 3
  Axes in{1, 1, 1};      // input positions
  Axes out{1, 1, 1};     // output positions
  Axes kernel{1, 1, 1};  // taps
  Axes strides{1, 1, 1};
  Axes dilations{1, 1, 1};
  Axes pads_begin{0, 0, 0};
  Axes pads_end{0, 0, 0};  // with ceil_mode the last window may reach past this padding

  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  // Returns the input position that output `o` sees through tap `k`; outside 0..in-1 is padding.
  int64_t position(size_t axis, int64_t o, int64_t k) const {
    return o * strides[axis] - pads_begin[axis] + k * dilations[axis];
  }
  // Returns `values` for the axes that the operator has.
  std::vector<int64_t> used(const Axes& values) const {
    return {values.end() - axes, values.end()};
  }
};

// Returns the attribute's values; `count` times `otherwise` if the attribute is absent. Returns
// kInput unless it has `count` values, each of at least `least`.
Result<std::vector<int64_t>> window_values(const Attributes& attributes, const char* name,
                                           size_t count, int64_t least, int64_t otherwise);

// `x` is [N, C, spatial...]; `kernel` has the taps per spatial axis.
Result<Window> resolve_window(const Attributes& attributes, const Shape& x,
                              const std::vector<int64_t>& kernel);

// As resolve_window, for kernels, which cannot return the error. REQUIRES: the operator's shape
// inference has called resolve_window with these arguments.
Window known_window(const Attributes& attributes, const Shape& x,
                    const std::vector<int64_t>& kernel);

// Returns the resolved window as the attributes strides, dilations and pads, for a gradient node.
Attributes window_attributes(const Window& window);

// Calls f(output index, tap index, input index) for all taps of all outputs in one image and
// channel, except for padding.
void for_each_tap(const Window& w, const auto& f) {
  int64_t output = 0;
  for (int64_t d = 0; d < w.out[0]; ++d) {
    for (int64_t h = 0; h < w.out[1]; ++h) {
      for (int64_t v = 0; v < w.out[2]; ++v, ++output) {
        for (int64_t tap = 0; tap < w.taps(); ++tap) {
          const int64_t id = w.position(0, d, tap / (w.kernel[1] * w.kernel[2]));
          const int64_t ih = w.position(1, h, tap / w.kernel[2] % w.kernel[1]);
          const int64_t iw = w.position(2, v, tap % w.kernel[2]);
          if (id < 0 || id >= w.in[0] || ih < 0 || ih >= w.in[1] || iw < 0 || iw >= w.in[2]) {
            continue;
          }
          f(output, tap, (id * w.in[1] + ih) * w.in[2] + iw);
        }
      }
    }
  }
}

// A convolution's sizes: x [N, C, spatial...], w [M, C/group, kernel...], y [N, M, outputs...].
struct ConvShape {
  Shape x, w, y;
  int64_t group = 1;
  Window window;
};

// Describes a ConvTranspose as the Conv from its output to its input: in the result, `x` is the
// shape of ConvTranspose's output and `y` that of the input. Reads strides, dilations, pads,
// auto_pad, output_padding, output_shape and group, as ONNX defines them. Returns kInput errors
// that name the attribute.
Result<ConvShape> infer_transposed(const Attributes& attributes, const Shape& x, const Shape& w);
// The same for kernels. REQUIRES: shape inference has called infer_transposed.
ConvShape known_transposed(const Attributes& attributes, const Shape& x, const Shape& w);

}  // namespace ofsdp::kernels::ops
