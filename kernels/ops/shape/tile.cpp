// Tile(x, repeats): x repeated repeats[i] times along axis i. Any dtype. dx is the sum of dy over
// the repetitions. https://onnx.ai/onnx/operators/onnx__Tile.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const auto repeats, known_ints(c, 1, "repeats"));
  std::vector<int64_t> axes = c.inputs[0].shape.axes();
  if (repeats.size() != axes.size()) {
    return input_error("expected {} repeats, one for each axis, found {}", axes.size(),
                       repeats.size());
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (repeats[i] < 0) return input_error("repeat {} of axis {} is negative", repeats[i], i);
    OFSDP_ASSIGN_OR_RETURN(axes[i], checked_numel({axes[i], repeats[i]}));
  }
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(axes)}};
}

// y with two axes, repetition and element, for each axis of x that is repeated.
struct Split {
  Shape tiled;                   // y
  Shape once;                    // the same with every repetition 1, which is x
  std::vector<int64_t> strides;  // of x in `tiled`: 0 along repetitions
};

Split split(const TensorDesc& x, const Shape& y) {
  const auto own = strides_of(x);
  std::vector<int64_t> tiled, once, strides;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const int64_t repeats = x.shape[i] == 0 ? 1 : y[i] / x.shape[i];
    if (repeats != 1) {
      tiled.push_back(repeats);
      once.push_back(1);
      strides.push_back(0);
    }
    tiled.push_back(x.shape[i]);
    once.push_back(x.shape[i]);
    strides.push_back(own[static_cast<size_t>(i)]);
  }
  return {Shape(tiled), Shape(once), strides};
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  const Ref x = b.input(0);
  const Split s = split(b.desc(x), b.desc(dy).shape);
  const Attributes allow{{"allowzero", int64_t{1}}};
  const Ref tiled = b.emit1("Reshape", {dy, b.ints(s.tiled.axes())}, allow);
  if (s.tiled == s.once) return b.set_grad(0, reshape_like(b, dy, x));
  const Ref sum = b.emit1("ofsdp.SumTo", {tiled}, {{"shape", s.once.axes()}});
  b.set_grad(0, reshape_like(b, sum, x));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    auto index = unravel(y.desc.shape, i);
    for (size_t axis = 0; axis < index.size(); ++axis) {
      index[axis] %= x.desc.shape[static_cast<int>(axis)];
    }
    y.values.push_back(x.values[ravel(x.desc.shape, index)]);
  }
  return {y};
}

bool accepts(const Problem& p) {
  return p.all_plain() && split(p.in(0), p.out(0).shape).tiled.rank() <= kMaxLoopAxes;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Split s = split(p.in(0), p.out(0).shape);
  const StridedCopy copy(s.tiled, s.strides, strides_of({p.out(0).dtype, s.tiled}),
                         dtype_size(p.out(0).dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc x, std::vector<double> repeats) {
  const auto rank = static_cast<int64_t>(repeats.size());
  return {.name = name,
          .inputs = {std::move(x), {DType::kInt64, {rank}}},
          .fill = fill_with(1, std::move(repeats)),
          .constant_inputs = {1}};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {sample("both", {f, {3, 5}}, {2, 3}),
          sample("middle", {f, {2, 3, 4}}, {1, 2, 1}),
          sample("one_element", {f, {1}}, {4}),
          sample("once", {f, {2, 3}}, {1, 1}),
          sample("longs", {DType::kInt64, {2, 2}}, {2, 1}),
          sample("bools", {DType::kBool, {3}}, {2}),
          sample("scalar", {f, {}}, {}),
          sample("never", {f, {2, 3}}, {0, 2}),
          sample("empty", {f, {0, 3}}, {2, 2})};
}

}  // namespace

void add_tile(Registry& registry) {
  registry.add({.name = "Tile",
                .min_inputs = 2,
                .first_opset = 6,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
