#include "kernels/ops/conv/window.h"

#include <algorithm>

namespace ofsdp::kernels::ops {
namespace {

using Ints = std::vector<int64_t>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sets out and pads for one axis. `span` is how far the dilated kernel reaches.
void resolve_axis(Window& w, size_t axis, const std::string& auto_pad, bool ceil_mode) {
  const int64_t stride = w.strides[axis];
  const int64_t span = (w.kernel[axis] - 1) * w.dilations[axis] + 1;
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    w.out[axis] = ceil_div(w.in[axis], stride);
    const int64_t pad = std::max<int64_t>(0, (w.out[axis] - 1) * stride + span - w.in[axis]);
    w.pads_begin[axis] = auto_pad == "SAME_UPPER" ? pad / 2 : pad - pad / 2;
    w.pads_end[axis] = pad - w.pads_begin[axis];
    return;
  }
  const int64_t room = w.in[axis] + w.pads_begin[axis] + w.pads_end[axis] - span;
  // With ceil_mode, the last window may reach past the padding.
  const int64_t last = room + (ceil_mode ? stride - 1 : 0);
  w.out[axis] = last < 0 ? 0 : last / stride + 1;
  // Drops a window that would start in the padding after the input.
  if (ceil_mode && (w.out[axis] - 1) * stride >= w.in[axis] + w.pads_begin[axis]) --w.out[axis];
}

Status check_auto_pad(const std::string& auto_pad) {
  for (const char* known : {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}) {
    if (auto_pad == known) return ok_status();
  }
  return input_error("auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {}",
                     auto_pad);
}

}  // namespace

Result<Ints> window_values(const Attributes& attributes, const char* name, size_t count,
                           int64_t least, int64_t otherwise) {
  const Ints values = attributes.ints(name, Ints(count, otherwise));
  if (values.size() != count) {
    return input_error("{}: expected {} values, found {}", name, count, values.size());
  }
  for (int64_t value : values) {
    if (value < least || value > INT32_MAX) {
      return input_error("{}: expected values from {} on, found [{}]", name, least,
                         joined(values, ", "));
    }
  }
  return values;
}

Result<Window> resolve_window(const Attributes& attributes, const Shape& x, const Ints& kernel) {
  const size_t count = kernel.size();
  if (count < 1 || count > 3 || x.rank() != static_cast<int>(count) + 2) {
    return input_error("expected an input of {} axes for a kernel of {} (1 to 3), found {}",
                       count + 2, count, x.text());
  }
  const std::string auto_pad = attributes.s("auto_pad", "NOTSET");
  OFSDP_RETURN_IF_ERROR(check_auto_pad(auto_pad));
  OFSDP_ASSIGN_OR_RETURN(const Ints strides, window_values(attributes, "strides", count, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const Ints dilations, window_values(attributes, "dilations", count, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(const Ints pads, window_values(attributes, "pads", 2 * count, 0, 0));
  Window w;
  w.axes = static_cast<int>(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t axis = 3 - count + i;
    if (kernel[i] < 1 || kernel[i] > INT32_MAX) {
      return input_error("kernel: expected sizes from 1 on, found [{}]", joined(kernel, ", "));
    }
    w.in[axis] = x[static_cast<int>(i) + 2];
    w.kernel[axis] = kernel[i];
    w.strides[axis] = strides[i];
    w.dilations[axis] = dilations[i];
    if (auto_pad == "NOTSET") {
      w.pads_begin[axis] = pads[i];
      w.pads_end[axis] = pads[count + i];
    }
    resolve_axis(w, axis, auto_pad, attributes.i("ceil_mode", 0) != 0);
    if (attributes.has(kOutputsAttribute)) w.out[axis] = attributes.ints(kOutputsAttribute)[i];
    if (w.out[axis] < 1 && w.in[axis] > 0) {
      return input_error("the window does not fit: spatial axis {} has {} positions, kernel {}", i,
                         w.in[axis], w.kernel[axis]);
    }
  }
  return w;
}

Window known_window(const Attributes& attributes, const Shape& x, const Ints& kernel) {
  Result<Window> window = resolve_window(attributes, x, kernel);
  OFSDP_CHECK(window.ok(), "{}", window.error().message());
  return *window;
}

Attributes window_attributes(const Window& w) {
  Ints pads = w.used(w.pads_begin);
  const Ints end = w.used(w.pads_end);
  pads.insert(pads.end(), end.begin(), end.end());
  return {{"strides", w.used(w.strides)}, {"dilations", w.used(w.dilations)}, {"pads", pads}};
}

// --- ConvTranspose ---

namespace {

// One spatial axis: y's size and the padding in front.
struct Axis {
  int64_t size = 0, pad = 0;
};

struct Given {
  Ints kernel, strides, dilations, pads, output_padding, output_shape;
  std::string auto_pad;
};

Result<Given> given(const Attributes& attributes, const Shape& x, const Shape& w) {
  if (w.rank() < 3 || w.rank() > 5 || x.rank() != w.rank()) {
    return input_error("expected X and W of 3 to 5 axes, found {} and {}", x.text(), w.text());
  }
  Given g;
  g.kernel.assign(w.axes().begin() + 2, w.axes().end());
  const size_t count = g.kernel.size();
  if (attributes.ints("kernel_shape", g.kernel) != g.kernel) {
    return input_error("kernel_shape: expected that of the weights {}, found [{}]", w.text(),
                       joined(attributes.ints("kernel_shape"), ", "));
  }
  if (std::ranges::any_of(g.kernel, [](int64_t size) { return size < 1; })) {
    return input_error("expected W with at least one element a spatial axis, found {}", w.text());
  }
  OFSDP_ASSIGN_OR_RETURN(g.strides, window_values(attributes, "strides", count, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(g.dilations, window_values(attributes, "dilations", count, 1, 1));
  OFSDP_ASSIGN_OR_RETURN(g.pads, window_values(attributes, "pads", 2 * count, 0, 0));
  OFSDP_ASSIGN_OR_RETURN(g.output_padding,
                         window_values(attributes, "output_padding", count, 0, 0));
  g.output_shape = attributes.ints("output_shape");
  if (g.output_shape.size() == count + 2) {  // N and C may come first
    g.output_shape.erase(g.output_shape.begin(), g.output_shape.begin() + 2);
  }
  if (!g.output_shape.empty() && g.output_shape.size() != count) {
    return input_error("output_shape: expected {} values, found {}", count, g.output_shape.size());
  }
  g.auto_pad = attributes.s("auto_pad", "NOTSET");
  return g;
}

Axis resolve(const Given& g, size_t i, int64_t in) {
  const int64_t span = (g.kernel[i] - 1) * g.dilations[i] + 1;
  const int64_t whole = (in - 1) * g.strides[i] + g.output_padding[i] + span;
  const bool same = g.auto_pad == "SAME_UPPER" || g.auto_pad == "SAME_LOWER";
  const int64_t count = static_cast<int64_t>(g.kernel.size());
  if (g.output_shape.empty() && !same) {
    const bool valid = g.auto_pad == "VALID";
    const int64_t begin = valid ? 0 : g.pads[i];
    return {whole - begin - (valid ? 0 : g.pads[i + static_cast<size_t>(count)]), begin};
  }
  const int64_t size = g.output_shape.empty() ? in * g.strides[i] : g.output_shape[i];
  const int64_t total = std::max<int64_t>(0, whole - size);
  return {size, g.auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2};
}

}  // namespace

Result<ConvShape> infer_transposed(const Attributes& attributes, const Shape& x, const Shape& w) {
  OFSDP_ASSIGN_OR_RETURN(const Given g, given(attributes, x, w));
  const int64_t group = attributes.i("group", 1);
  if (group < 1 || w[0] % group != 0 || x[1] != w[0]) {
    return input_error("expected {} input channels in {} groups (weights {}), found {}", w[0],
                       group, w.text(), x[1]);
  }
  ConvShape s{Shape{x[0], w[1] * group}, w, x, group, {}};
  std::vector<int64_t> y = s.x.axes();
  s.window.axes = static_cast<int>(g.kernel.size());
  for (size_t i = 0; i < g.kernel.size(); ++i) {
    const int64_t in = x[static_cast<int>(i) + 2];
    const Axis made = resolve(g, i, in);
    if (made.size < 1 && in > 0) {
      return input_error("spatial axis {} of the output would have {} positions", i, made.size);
    }
    if (made.size > 0 && in == 0) {
      return input_error("expected X with at least one element a spatial axis, found {}", x.text());
    }
    const size_t axis = 3 - g.kernel.size() + i;
    y.push_back(std::max<int64_t>(made.size, 0));
    s.window.in[axis] = y.back();
    s.window.out[axis] = in;
    s.window.kernel[axis] = g.kernel[i];
    s.window.strides[axis] = g.strides[i];
    s.window.dilations[axis] = g.dilations[i];
    s.window.pads_begin[axis] = made.pad;
    const int64_t last = s.window.position(axis, in - 1, g.kernel[i] - 1);
    s.window.pads_end[axis] = std::max<int64_t>(0, last - (y.back() - 1));
  }
  s.x = Shape(std::move(y));
  return s;
}

ConvShape known_transposed(const Attributes& attributes, const Shape& x, const Shape& w) {
  Result<ConvShape> shape = infer_transposed(attributes, x, w);
  OFSDP_CHECK(shape.ok(), "{}", shape.error().message());
  return *shape;
}

}  // namespace ofsdp::kernels::ops
