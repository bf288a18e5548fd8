// What the two gradients of Conv share, for y = conv(x, w) + b: the problem from the attributes that
// both nodes carry (those of Conv, explicit pads, x_shape and w_shape), oneDNN's descriptions, and
// sample cases.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "kernels/ops/conv/conv_shape.h"

namespace ofsdp::kernels::ops {

ConvShape conv_of_grad(const Attributes& attributes);

// A gradient's primitive_desc asks for one of the forward it belongs to, as a hint.
dnnl::convolution_forward::primitive_desc conv_forward_hint(const ConvShape& s, DType dtype,
                                                            Wish wish, const onednn::Desc& bias);

// The first wish that gets more than plain loops and no malloc; else whatever there is.
template <typename Describe>
auto best_description(const Describe& describe, const Problem& p, const ConvShape& s, Wish first,
                      Wish second) {
  auto pd = describe(p, s, first);
  if (pd.get(true) != nullptr && !onednn::is_reference(pd.impl_info_str()) &&
      !onednn::is_noisy(pd.impl_info_str())) {
    return pd;
  }
  auto other = describe(p, s, second);
  return other.get(true) != nullptr ? other : pd;
}

bool has_onednn_dtype(const Problem& p);
// Some operand is empty: the gradients are zeros.
bool sums_nothing(const ConvShape& s);
std::unique_ptr<Kernel> make_conv_zeros();

// ONNX's pads: all begins, then all ends.
std::vector<int64_t> onnx_pads(const Window& w);

// `first` and `second` are the operands by name: x, w or y of the convolution.
std::vector<SampleCase> conv_grad_samples(Shape ConvShape::*first, Shape ConvShape::*second,
                                          size_t outputs);

}  // namespace ofsdp::kernels::ops
