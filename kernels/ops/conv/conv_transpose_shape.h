// The numbers of ConvTranspose, as those of the Conv from its y to its x: `x` of the ConvShape is
// the shape of ConvTranspose's output, `y` that of its input.
//
// Attributes read: strides, dilations, pads, auto_pad, output_padding, output_shape, group, as ONNX
// defines them. Values; any thread. Errors: kInput that names the attribute.
#pragma once

#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {

Result<ConvShape> infer_transposed(const Attributes& attributes, const Shape& x, const Shape& w);
ConvShape known_transposed(const Attributes& attributes, const Shape& x, const Shape& w);

}  // namespace ofsdp::kernels::ops
