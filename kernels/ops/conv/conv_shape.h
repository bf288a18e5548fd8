// Conv and the two gradients: sizes and kernels.
//
// x [N, C, spatial...], w [M, C/group, kernel...], bias [M], y [N, M, outputs...]; 1 to 3 spatial
// axes.
#pragma once

#include "kernels/core/kernel.h"
#include "kernels/cpu/products.h"
#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

// Returns the sizes, or kInput if attributes and shapes do not fit.
Result<ConvShape> infer_conv(const Attributes& attributes, const Shape& x, const Shape& w);
// The same. REQUIRES: infer_conv returns no error.
ConvShape known_conv(const Attributes& attributes, const Shape& x, const Shape& w);
ConvShape conv_of(const Problem& problem);  // for a Conv node

// Converts sizes to the attributes of a gradient node, and back.
Attributes conv_attributes(const ConvShape& shape);
ConvShape conv_of_grad(const Attributes& attributes);

// Returns whether an operand is empty: the gradients are then zeros. The gradients' kernels below
// see to it; oneDNN's and columns use make_conv_zeros. Without products y is the bias.
bool sums_nothing(const ConvShape& shape);
std::unique_ptr<Kernel> make_conv_zeros();

// Calls f(index in x, index in w, index in y) for each product in the definition.
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

// --- kernels ---
//
// For Conv (x, w, optional b -> y), ofsdp.ConvGradInput (dy, w -> dx) and ofsdp.ConvGradWeights (x,
// dy -> dw, optional db), in any layout. A problem has the attributes of the node. A make_ function
// REQUIRES that the accepts_ or accept_ function above it accepts the problem.
//
// Plain loops: float64, which nothing else takes, and float32 if all others refuse.

Acceptance accepts_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_input_loops(const Problem& problem);
std::unique_ptr<Kernel> make_conv_grad_weights_loops(const Problem& problem);

// oneDNN's kernels.
Acceptance onednn_accepts_conv(const Problem& problem);
std::unique_ptr<Kernel> make_onednn_conv(const Problem& problem);
Acceptance onednn_accepts_conv_grad_input(const Problem& problem);
std::unique_ptr<Kernel> make_onednn_conv_grad_input(const Problem& problem);
Acceptance onednn_accepts_conv_grad_weights(const Problem& problem);
std::unique_ptr<Kernel> make_onednn_conv_grad_weights(const Problem& problem);

// Matrix products ([Note: columns] in columns.cpp): float32.
Acceptance columns_accept_conv(const Problem& problem);
std::unique_ptr<Kernel> make_columns_conv(const Problem& problem);
Acceptance columns_accept_conv_grad(const Problem& problem);
std::unique_ptr<Kernel> make_columns_conv_grad_input(const Problem& problem);
std::unique_ptr<Kernel> make_columns_conv_grad_weights(const Problem& problem);

// Winograd's filtering ([Note: Winograd] in winograd.cpp): 3 x 3 taps, channels last, float32;
// 16-bit floats if oneDNN has no instructions for them on this processor.
Acceptance winograd_accepts_conv(const Problem& problem);
std::unique_ptr<Kernel> make_winograd_conv(const Problem& problem);
Acceptance winograd_accepts_conv_grad_input(const Problem& problem);
std::unique_ptr<Kernel> make_winograd_conv_grad_input(const Problem& problem);
Acceptance winograd_accepts_conv_grad_weights(const Problem& problem);
std::unique_ptr<Kernel> make_winograd_conv_grad_weights(const Problem& problem);

// oneDNN's kernel, or columns if oneDNN has none, for operators that wrap a convolution.
template <auto onednn_accepts, auto onednn_create, auto else_accepts, auto else_create>
struct LibraryConv {
  static Acceptance accepts(const Problem& p) {
    const Acceptance library = onednn_accepts(p);
    return library ? library : else_accepts(p);
  }
  static std::unique_ptr<Kernel> create(const Problem& p) {
    return onednn_accepts(p) ? onednn_create(p) : else_create(p);
  }
};
using LibraryConvForward =
    LibraryConv<onednn_accepts_conv, make_onednn_conv, columns_accept_conv, make_columns_conv>;
using LibraryConvGradInput =
    LibraryConv<onednn_accepts_conv_grad_input, make_onednn_conv_grad_input,
                columns_accept_conv_grad, make_columns_conv_grad_input>;
using LibraryConvGradWeights =
    LibraryConv<onednn_accepts_conv_grad_weights, make_onednn_conv_grad_weights,
                columns_accept_conv_grad, make_columns_conv_grad_weights>;

}  // namespace ofsdp::kernels::ops
