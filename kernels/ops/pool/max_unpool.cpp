// MaxUnpool(x, I): zeros but for x[i] at flat place I[i] of the shape that the pooling had: of each
// spatial axis (in - 1) stride - pads + kernel. A larger output_shape has that shape in its corner.
// dx = dy at those places: Gather(flat dy, I). Where places repeat, the last x stays.
// https://onnx.ai/onnx/operators/onnx__MaxUnpool.html
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

using Ints = std::vector<int64_t>;

// The shape that the indices count in.
Result<Shape> counted(const Attributes& attributes, const Shape& x) {
  const Ints kernel = attributes.ints("kernel_shape");
  const size_t count = kernel.size();
  const Ints strides = attributes.ints("strides", Ints(count, 1));
  const Ints pads = attributes.ints("pads", Ints(2 * count, 0));
  if (count == 0 || x.rank() != static_cast<int>(count) + 2 || strides.size() != count ||
      pads.size() != 2 * count) {
    return input_error("kernel_shape [{}], {} strides and {} pads do not fit {}",
                       joined(kernel, ", "), strides.size(), pads.size(), x.text());
  }
  Shape y = x;
  for (size_t i = 0; i < count; ++i) {
    const int axis = static_cast<int>(i) + 2;
    y[axis] = (x[axis] - 1) * strides[i] - pads[i] - pads[count + i] + kernel[i];
    if (y[axis] < 0) return input_error("spatial axis {} would have {} positions", i, y[axis]);
  }
  return y;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape y, counted(c.attributes, c.inputs[0].shape));
  if (c.inputs[1].shape != c.inputs[0].shape || c.inputs[1].dtype != DType::kInt64) {
    return input_error("I: expected int64{}, found {}", c.inputs[0].shape.text(),
                       c.inputs[1].text());
  }
  if (c.has(2)) {
    OFSDP_ASSIGN_OR_RETURN(const Ints given, known_ints(c, 2, "output_shape"));
    if (given.size() != y.axes().size()) {
      return input_error("output_shape: expected {} sizes, found {}", y.rank(), given.size());
    }
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] >= y.axes()[i]) continue;
      return input_error("output_shape: expected at least {}, found {}", y.text(),
                         Shape(given).text());
    }
    y = Shape(given);
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, y}};
}

void grad(GradBuilder& b) {
  const Shape shape = *counted(b.attributes(), b.desc(b.input(0)).shape);
  Ref dy = b.grad_output(0);
  if (b.desc(dy).shape != shape) {
    dy = b.emit1("Slice", {dy, b.ints(Ints(shape.axes().size(), 0)), b.ints(shape.axes())});
  }
  const Ref flat = b.emit1("Reshape", {dy, b.ints({shape.numel()})});
  b.set_grad(0, b.emit1("Gather", {flat, b.input(1)}, {{"axis", int64_t{0}}}));
}

// Returns the place in `to` of place `at` of `from`.
int64_t moved(const Shape& from, const Shape& to, int64_t at) {
  int64_t place = 0, step = 1;
  for (int axis = from.rank(); axis-- > 0;) {
    place += at % from[axis] * step;
    at /= from[axis];
    step *= to[axis];
  }
  return place;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Shape shape = *counted(c.attributes, c.inputs[0].desc.shape);
  RefTensor y{c.output_descs[0],
              std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()))};
  for (size_t i = 0; i < c.inputs[0].values.size(); ++i) {
    const auto at = static_cast<int64_t>(c.inputs[1].values[i]);
    y.values[ravel(y.desc.shape, unravel(shape, at))] = c.inputs[0].values[i];
  }
  return {y};
}

Acceptance accepts(const Problem& p) { return accept_if(p.all_plain(), "not the plain layout"); }

template <typename T>
std::unique_ptr<Kernel> create_for(const Problem& p) {
  return make_kernel([shape = *counted(p.attributes, p.in(0).shape), to = p.out(0).shape,
                      n = p.in(0).numel()](const KernelArgs& a) -> Status {
    std::fill_n(a.out<T>(0), to.numel(), T{0});
    const int64_t count = shape.numel();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = a.in<int64_t>(1)[i];
      if (at < 0 || at >= count) return input_error("index {} is outside 0..{}", at, count - 1);
      a.out<T>(0)[shape == to ? at : moved(shape, to, at)] = a.in<T>(0)[i];
    }
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  switch (dtype_size(p.in(0).dtype)) {
    case 2:
      return create_for<uint16_t>(p);
    case 4:
      return create_for<uint32_t>(p);
    default:
      return create_for<uint64_t>(p);
  }
}

std::vector<SampleCase> samples() {
  const auto sample = [](const char* name, Shape x, Attributes attributes,
                         DType dtype = DType::kFloat32) {
    const int64_t step = counted(attributes, x)->numel() / std::max<int64_t>(x.numel(), 1);
    return SampleCase{.name = name,
                      .attributes = std::move(attributes),
                      .inputs = {{dtype, x}, {DType::kInt64, x}},
                      .fill = [step](size_t input, std::vector<double>& values) {
                        for (size_t i = 0; input == 1 && i < values.size(); ++i) {
                          values[i] = static_cast<double>(static_cast<int64_t>(i) * step + i % 2);
                        }
                      }};
  };
  const Attributes halves{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  std::vector<SampleCase> cases = {
      sample("halves", {2, 3, 3, 2}, halves),
      sample("padded", {1, 2, 4, 4},
             {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}),
      sample("line", {2, 3, 5}, {{"kernel_shape", Ints{3}}, {"strides", Ints{3}}}),
      sample("half", {2, 3, 3, 2}, halves, DType::kFloat16),
      sample("double", {2, 3, 3, 2}, halves, DType::kFloat64),
      sample("empty", {0, 3, 3, 2}, halves),
      sample("corner", {2, 3, 3, 2}, halves)};
  for (SampleCase& s : cases) s.check_grad = s.inputs[0].dtype == DType::kFloat32;
  SampleCase& corner = cases.back();
  corner.inputs.push_back({DType::kInt64, {4}});
  corner.constant_inputs = {2};
  corner.fill = [fill = corner.fill](size_t input, std::vector<double>& values) {
    fill(input, values);
    if (input == 2) values = {2, 4, 7, 6};
  };
  return cases;
}

}  // namespace

void add_max_unpool(Registry& registry) {
  registry.add({.name = "MaxUnpool",
                .min_inputs = 2,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"scatter", accepts, create}},
                .samples = samples,
                .constant_inputs = {2}});
}

}  // namespace ofsdp::kernels::ops
