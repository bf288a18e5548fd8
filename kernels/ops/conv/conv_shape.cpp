#include "kernels/ops/conv/conv_shape.h"

namespace ofsdp::kernels::ops {

Result<ConvShape> infer_conv(const Attributes& attributes, const Shape& x, const Shape& w) {
  if (w.rank() < 3) return input_error("expected weights of 3 to 5 axes, found {}", w.text());
  const std::vector<int64_t> kernel(w.axes().begin() + 2, w.axes().end());
  if (attributes.ints("kernel_shape", kernel) != kernel) {
    return input_error("kernel_shape: expected that of the weights {}, found [{}]", w.text(),
                       joined(attributes.ints("kernel_shape"), ", "));
  }
  OFSDP_ASSIGN_OR_RETURN(Window window, resolve_window(attributes, x, kernel));
  const int64_t group = attributes.i("group", 1);
  if (group < 1 || w[0] % group != 0) {
    return input_error("group: expected a divisor of {} output channels, found {}", w[0], group);
  }
  if (x[1] != w[1] * group) {
    return input_error("expected {} input channels (weights {}, group {}), found {}", w[1] * group,
                       w.text(), group, x[1]);
  }
  std::vector<int64_t> y = {x[0], w[0]};
  for (int64_t axis : window.used(window.out)) y.push_back(axis);
  return ConvShape{x, w, Shape(std::move(y)), group, window};
}

ConvShape known_conv(const Attributes& attributes, const Shape& x, const Shape& w) {
  Result<ConvShape> shape = infer_conv(attributes, x, w);
  OFSDP_CHECK(shape.ok(), "{}", shape.error().message());
  return *shape;
}

Attributes conv_attributes(const ConvShape& shape) {
  Attributes made = window_attributes(shape.window);
  made.set("group", shape.group);
  made.set("x_shape", shape.x.axes());
  made.set("w_shape", shape.w.axes());
  return made;
}

ConvNumbers conv_numbers(const Window& w) {
  onednn::Dims dilations = w.used(w.dilations);
  for (int64_t& dilation : dilations) --dilation;
  // oneDNN wants pads that fit the output exactly; what no window reaches at the end may be
  // negative.
  onednn::Dims pads_end;
  for (size_t axis = 3 - static_cast<size_t>(w.axes); axis < 3; ++axis) {
    const int64_t last = w.position(axis, w.out[axis] - 1, w.kernel[axis] - 1);
    pads_end.push_back(last - (w.in[axis] - 1));
  }
  return {w.used(w.strides), dilations, w.used(w.pads_begin), pads_end};
}

onednn::Desc wished(Wish wish, DType dtype, const Shape& shape) {
  return wish == Wish::kAny ? onednn::any(dtype, shape.axes())
                            : onednn::channels_last(dtype, shape.axes());
}

onednn::Dims weights_dims(const ConvShape& s) {
  onednn::Dims dims = s.w.axes();
  if (s.group > 1) {
    dims[0] /= s.group;
    dims.insert(dims.begin(), s.group);
  }
  return dims;
}

dnnl::convolution_forward::primitive_desc conv_forward(const ConvShape& s, DType dtype, Wish wish,
                                                       const onednn::Desc& bias) {
  const ConvNumbers n = conv_numbers(s.window);
  return {onednn::engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          wished(wish, dtype, s.x),
          onednn::any(dtype, weights_dims(s)),
          bias,
          wished(wish, dtype, s.y),
          n.strides,
          n.dilations,
          n.pads_begin,
          n.pads_end,
          onednn::attributes(),
          /*allow_empty=*/true};
}

}  // namespace ofsdp::kernels::ops
