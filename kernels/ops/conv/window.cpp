#include "kernels/ops/conv/window.h"

namespace ofsdp::kernels::ops {
namespace {

using Ints = std::vector<int64_t>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// out and pads of one axis; `span` is the reach of the dilated kernel.
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
  const int64_t last = room + (ceil_mode ? stride - 1 : 0);  // ceil_mode: a window may reach out
  w.out[axis] = last < 0 ? 0 : last / stride + 1;
  // A window that would start in the padding after the input is left out.
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

}  // namespace ofsdp::kernels::ops
