// Slice(data, starts, ends, axes, steps): every steps-th element from starts up to, not including,
// ends, which count from the end when negative and are clamped. Any dtype. d data is 0 outside of
// the slice: ofsdp.SliceGrad(dy), attributes shape (of data), starts and steps (one for each axis,
// as resolved here). https://onnx.ai/onnx/operators/onnx__Slice.html
#include <algorithm>
#include <limits>

#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/standard_bodies.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace slice {

// The cut from each axis: `count` elements from `start` on, `step` apart.
struct Cut {
  std::vector<int64_t> starts;
  std::vector<int64_t> steps;
  Shape counts;
};

Status cut_axis(Cut& cut, const Shape& shape, int axis, int64_t start, int64_t end, int64_t step) {
  if (step == 0) return input_error("the step of axis {} is 0", axis);
  const int64_t n = shape[axis];
  start = start < 0 ? start + n : start;
  end = end < 0 ? std::max<int64_t>(end, -n - 1) + n : end;
  start = std::clamp<int64_t>(start, 0, step > 0 ? n : std::max<int64_t>(n - 1, 0));
  end = std::clamp<int64_t>(end, step > 0 ? 0 : -1, n);
  const int64_t span = step > 0 ? end - start : start - end;
  const int64_t stride = step > 0 ? step : (step == INT64_MIN ? INT64_MAX : -step);
  cut.starts[static_cast<size_t>(axis)] = start;
  cut.steps[static_cast<size_t>(axis)] = step;
  // Not (span + stride - 1) / stride: exporters write huge steps and ends.
  cut.counts[axis] = n == 0 || span <= 0 ? 0 : (span - 1) / stride + 1;
  return ok_status();
}

Result<Cut> resolve(const Shape& shape, const std::vector<std::vector<int64_t>>& inputs) {
  const auto& [starts, ends, named, steps] = std::tie(inputs[0], inputs[1], inputs[2], inputs[3]);
  if (starts.size() != ends.size() || (!steps.empty() && steps.size() != starts.size()) ||
      (!named.empty() && named.size() != starts.size())) {
    return input_error("expected as many ends, axes and steps as starts ({}), found {}, {}, {}",
                       starts.size(), ends.size(), named.size(), steps.size());
  }
  Cut cut{std::vector<int64_t>(static_cast<size_t>(shape.rank()), 0),
          std::vector<int64_t>(static_cast<size_t>(shape.rank()), 1), shape};
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t which = named.empty() ? static_cast<int64_t>(i) : named[i];
    OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(which, shape.rank()));
    OFSDP_RETURN_IF_ERROR(
        cut_axis(cut, shape, axis, starts[i], ends[i], steps.empty() ? 1 : steps[i]));
  }
  return cut;
}

Result<Cut> resolve(const InferContext& c) {
  constexpr std::array<const char*, 4> kNames = {"starts", "ends", "axes", "steps"};
  std::vector<std::vector<int64_t>> inputs(4);
  for (size_t i = 0; i < 4; ++i) {
    if (!c.has(i + 1)) continue;
    OFSDP_ASSIGN_OR_RETURN(inputs[i], known_ints(c, i + 1, kNames[i]));
  }
  return resolve(c.inputs[0].shape, inputs);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Cut cut, resolve(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, cut.counts}};
}

void grad(GradBuilder& b) {
  const InferContext c = context_of(b);
  const Cut cut = *resolve(c);
  b.set_grad(
      0,
      b.emit1("ofsdp.SliceGrad", {b.grad_output(0)},
              {{"shape", c.inputs[0].shape.axes()}, {"starts", cut.starts}, {"steps", cut.steps}}));
}

// The place in the data of element `i` of the slice.
size_t place(const Shape& data, const Shape& slice, const std::vector<int64_t>& starts,
             const std::vector<int64_t>& steps, int64_t i) {
  auto index = unravel(slice, i);
  for (size_t axis = 0; axis < index.size(); ++axis) {
    index[axis] = starts[axis] + index[axis] * steps[axis];
  }
  return ravel(data, index);
}

// The largest int64, which exporters write for "to the end", is 2^63 in double.
int64_t saturated(double v) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return v >= 0x1p63 ? kMost : static_cast<int64_t>(v);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<std::vector<int64_t>> inputs(4);
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    for (const double v : c.inputs[i].values) inputs[i - 1].push_back(saturated(v));
  }
  const Shape& shape = c.inputs[0].desc.shape;
  const Cut cut = *resolve(shape, inputs);
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    y.values.push_back(c.inputs[0].values[place(shape, cut.counts, cut.starts, cut.steps, i)]);
  }
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for (int64_t i = 0; i < c.inputs[0].desc.numel(); ++i) {
    dx.values[place(dx.desc.shape, c.inputs[0].desc.shape, c.attributes.ints("starts"),
                    c.attributes.ints("steps"), i)] = c.inputs[0][i];
  }
  return {dx};
}

// Offset of the first element and strides of a slice inside plain `data`.
struct Window {
  int64_t offset = 0;  // bytes
  std::vector<int64_t> strides;
};

Window window(const TensorDesc& data, const std::vector<int64_t>& starts,
              const std::vector<int64_t>& steps) {
  Window w{0, strides_of(data)};
  for (size_t axis = 0; axis < starts.size(); ++axis) {
    w.offset += starts[axis] * w.strides[axis] * static_cast<int64_t>(dtype_size(data.dtype));
    w.strides[axis] *= steps[axis];
  }
  return w;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Cut cut = *resolve(context_of(p));
  const Window from = window(p.in(0), cut.starts, cut.steps);
  StridedCopy copy(cut.counts, from.strides, strides_of(p.out(0)), dtype_size(p.out(0).dtype));
  return make_copy_kernel(copy, from.offset);
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const Window to = window(p.out(0), p.attributes.ints("starts"), p.attributes.ints("steps"));
  StridedCopy copy(p.in(0).shape, strides_of(p.in(0)), to.strides, dtype_size(p.out(0).dtype));
  return make_kernel([copy, offset = to.offset, bytes = p.out(0).bytes()](const KernelArgs& a) {
    if (bytes > 0) std::memset(a.outputs[0].data, 0, bytes);
    copy.run(a.inputs[0].data, a.outputs[0].data + offset);
  });
}

void slice_grad_body(BodyBuilder& b) {
  const Shape shape(b.attributes().ints("shape"));
  const auto starts = b.attributes().ints("starts"), steps = b.attributes().ints("steps");
  Ref made = b.input(0);
  std::vector<int64_t> pads(2 * starts.size(), 0);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int axis = static_cast<int>(i);
    const int64_t count = b.desc(made).shape[axis];
    if (steps[i] == 1) {
      pads[i] = starts[i];
      pads[i + starts.size()] = shape[axis] - starts[i] - count;
      continue;
    }
    std::vector<int64_t> places;
    for (int64_t k = 0; k < count; ++k) places.push_back(starts[i] + k * steps[i]);
    made = scatter_along(b, made, b.ints(places), axis, shape[axis]);
  }
  b.set_output(0, b.emit1("Pad", {made, b.ints(pads)}));
}

}  // namespace slice

void add_slice(Registry& registry) {
  using namespace slice;
  registry.add(make_op("Slice", {infer, grad, reference}, {{"copy", accepts_plain, create}},
                       {.min_inputs = 3, .first_opset = 10, .constant_inputs = {1, 2, 3, 4}}));
  registry.add_own(make_op("SliceGrad", {infer_shape_of("shape"), nullptr, grad_reference},
                           {{"copy", accepts_plain, create_grad}}, {.body = slice_grad_body}));
}

}  // namespace ofsdp::kernels::ops
