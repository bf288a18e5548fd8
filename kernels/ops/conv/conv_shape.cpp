#include "kernels/ops/conv/conv_shape.h"

#include <cstring>

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

ConvShape conv_of(const Problem& p) {
  return known_conv(p.attributes, p.in(0).shape, p.in(1).shape);
}

Attributes conv_attributes(const ConvShape& shape) {
  Attributes made = window_attributes(shape.window);
  made.set("group", shape.group);
  made.set("x_shape", shape.x.axes());
  made.set("w_shape", shape.w.axes());
  return made;
}

ConvShape conv_of_grad(const Attributes& attributes) {
  return known_conv(attributes, Shape(attributes.ints("x_shape")),
                    Shape(attributes.ints("w_shape")));
}

bool sums_nothing(const ConvShape& s) {
  return s.x.numel() == 0 || s.y.numel() == 0 || s.w.numel() == 0;
}

std::unique_ptr<Kernel> make_conv_zeros() {
  return make_kernel([](const KernelArgs& a) {
    for (const TensorView& view : a.outputs) {
      if (view.data != nullptr) std::memset(view.data, 0, view.desc.bytes());
    }
  });
}

}  // namespace ofsdp::kernels::ops
