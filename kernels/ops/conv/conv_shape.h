// Shared by Conv and its two gradients: the numbers of the problem, and its operands for oneDNN.
//
// x [N, C, spatial...], w [M, C/group, kernel...], bias [M], y [N, M, outputs...]; 1 to 3 spatial
// axes. [Note: layouts of convolutions] oneDNN is given channels-last activations, whose kernels
// are the fastest here and call no malloc; plain operands are reordered in the workspace. Gradients
// of weights let oneDNN choose (it takes its blocked layout: reorders of 0.2 ms against 3 ms won at
// 64 x 64 x 24 x 24). With AVX2 alone gradients of inputs do so too (64 x 32 x 26 x 26: 88 GFLOP/s
// with the reorders against 63), and those of weights do not for one channel (54 against 6).
// Weights stay plain outside; a reorder of them costs microseconds.
//
// Values; any thread.
#pragma once

#include "kernels/cpu/onednn.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

Result<ConvShape> infer_conv(const Attributes& attributes, const Shape& x, const Shape& w);
ConvShape known_conv(const Attributes& attributes, const Shape& x, const Shape& w);

// The attributes that a gradient node of this convolution carries.
Attributes conv_attributes(const ConvShape& shape);

// strides, dilations and pads in oneDNN's terms (dilation 0 is dense).
struct ConvNumbers {
  onednn::Dims strides, dilations, pads_begin, pads_end;
};
ConvNumbers conv_numbers(const Window& window);

enum class Wish { kChannelsLast, kAny };
onednn::Desc wished(Wish wish, DType dtype, const Shape& shape);
onednn::Dims weights_dims(const ConvShape& shape);  // with a leading axis of groups when group > 1

// The forward; the primitive_desc of a gradient asks for it, as a hint. Empty where oneDNN has
// none.
dnnl::convolution_forward::primitive_desc conv_forward(const ConvShape& s, DType dtype, Wish wish,
                                                       const onednn::Desc& bias);

// Calls f(index in x, index in w, index in y) for every product of the definition.
void for_each_product(const ConvShape& s, const auto& f) {
  const int64_t channels = s.x[1] / s.group;
  const int64_t outputs = s.y[1] / s.group;
  for_each_tap(s.window, [&](int64_t out, int64_t tap, int64_t in) {
    for (int64_t n = 0; n < s.x[0]; ++n) {
      for (int64_t m = 0; m < s.y[1]; ++m) {
        for (int64_t c = 0; c < channels; ++c) {
          f((n * s.x[1] + m / outputs * channels + c) * s.window.in_size() + in,
            (m * channels + c) * s.window.taps() + tap,
            (n * s.y[1] + m) * s.window.out_size() + out);
        }
      }
    }
  });
}

// --- kernels that other operators use as well, and plain loops for types that oneDNN lacks ---
//
// Operands are those of Conv (x, w, optional b -> y), ofsdp.ConvGradInput (dy, w -> dx) and
// ofsdp.ConvGradWeights (x, dy -> dw, optional db), with the attributes these nodes carry. The
// loops take float32 and float64.

Acceptance accepts_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_input_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_weights_loops(const Problem& problem);

// oneDNN's.
Acceptance accepts_conv_grad_input(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_input(const Problem& problem);

}  // namespace ofsdp::kernels::ops
