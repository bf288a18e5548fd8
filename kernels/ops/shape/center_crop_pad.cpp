// CenterCropPad(x, shape): each axis of attribute axes (all) gets the size that input shape says:
// cut on both sides or zeros added there, floor(difference / 2) of it in front. So the gradient is
// CenterCropPad(dy, shape of x).
// https://onnx.ai/onnx/operators/onnx__CenterCropPad.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, known_ints(c, 1, "shape"));
  TensorDesc y = c.inputs[0];
  std::vector<int64_t> axes = c.attributes.ints("axes");
  for (int i = 0; i < y.shape.rank() && !c.attributes.has("axes"); ++i) axes.push_back(i);
  if (axes.size() != sizes.size()) {
    return input_error("shape: expected {} sizes, found {}", axes.size(), sizes.size());
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(axes[i], y.shape.rank()));
    if (sizes[i] < 0) return input_error("shape: expected sizes from 0 on, found {}", sizes[i]);
    y.shape[axis] = sizes[i];
  }
  return std::vector{y};
}

void grad(GradBuilder& b) {
  b.set_grad(0,
             b.emit1("CenterCropPad", {b.grad_output(0), b.ints(b.desc(b.input(0)).shape.axes())}));
}

// Of one axis, where x begins in y: negative when cut.
int64_t shift(int64_t in, int64_t out) { return out >= in ? (out - in) / 2 : -((in - out) / 2); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    std::vector<int64_t> at = unravel(y.desc.shape, i);
    bool inside = true;
    for (size_t k = 0; k < at.size(); ++k) {
      const int64_t in = x.desc.shape.axes()[k];
      at[k] -= shift(in, y.desc.shape.axes()[k]);
      inside = inside && at[k] >= 0 && at[k] < in;
    }
    y.values.push_back(inside ? x.values[ravel(x.desc.shape, at)] : 0);
  }
  return {y};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const TensorDesc &x = p.in(0), &y = p.out(0);
  Shape common = x.shape;
  const std::vector<int64_t> src = strides_of(x), dst = strides_of(y);
  int64_t from = 0, to = 0;
  for (int i = 0; i < common.rank(); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t s = shift(x.shape[i], y.shape[i]);
    common[i] = std::min(x.shape[i], y.shape[i]);
    (s < 0 ? from : to) += (s < 0 ? -s * src[at] : s * dst[at]);
  }
  const size_t size = dtype_size(x.dtype);
  const StridedCopy copy(common, src, dst, size);
  return make_kernel([copy, from = static_cast<size_t>(from) * size,
                      to = static_cast<size_t>(to) * size, bytes = y.bytes(),
                      count = common.numel(), covers = common == y.shape](const KernelArgs& a) {
    if (!covers && bytes > 0) std::memset(a.outputs[0].data, 0, bytes);
    if (count > 0) copy.run(a.inputs[0].data + from, a.outputs[0].data + to);
    return ok_status();
  });
}

std::vector<SampleCase> samples() {
  using Ints = std::vector<int64_t>;
  const DType f = DType::kFloat32;
  return {known_sample("crop", {f, {7, 8, 3}}, {4, 3, 3}),
          known_sample("pad", {f, {3, 4}}, {6, 9}),
          known_sample("both", {f, {7, 3, 5}}, {4, 6, 5}),
          known_sample("axes", {f, {2, 7, 8}}, {9, 3}, {{"axes", Ints{-1, 1}}}),
          known_sample("bytes", {DType::kUInt8, {5, 4}}, {3, 7}),
          known_sample("half", {DType::kFloat16, {5, 4}}, {3, 7}),
          known_sample("double", {DType::kFloat64, {5, 4}}, {3, 7}),
          known_sample("to_nothing", {f, {5, 4}}, {0, 7}),
          known_sample("from_nothing", {f, {0, 4}}, {2, 3})};
}

}  // namespace

void add_center_crop_pad(Registry& registry) {
  registry.add({.name = "CenterCropPad",
                .min_inputs = 2,
                .first_opset = 18,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts_plain, create}},
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
