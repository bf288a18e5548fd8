// Concat(x0, x1, ...), attribute axis: the inputs behind each other along `axis`. Any dtype.
// dx_k is the slice of dy that x_k filled.
// https://onnx.ai/onnx/operators/onnx__Concat.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// The axis; its attribute is required, so it is always there.
int axis_of(const Attributes& attributes, int rank) {
  const int64_t axis = attributes.i("axis", 0);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  TensorDesc y{c.inputs[0].dtype, c.inputs[0].shape};
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(c.attributes.i("axis", 0), y.shape.rank()));
  for (size_t k = 1; k < c.inputs.size(); ++k) {
    Shape like = c.inputs[k].shape;
    if (like.rank() == y.shape.rank()) like[axis] = y.shape[axis];
    if (like != y.shape || c.inputs[k].dtype != y.dtype) {
      return input_error("input {} is {}, expected {} but for axis {}", k, c.inputs[k].text(),
                         c.inputs[0].text(), axis);
    }
    y.shape[axis] += c.inputs[k].shape[axis];
  }
  return std::vector{y};
}

void grad(GradBuilder& b) {
  const int axis = axis_of(b.attributes(), b.desc(b.input(0)).shape.rank());
  int64_t begin = 0;
  for (size_t k = 0; k < b.num_inputs(); ++k) {
    const int64_t end = begin + b.desc(b.input(k)).shape[axis];
    if (b.needs_grad(k)) {
      b.set_grad(
          k, b.emit1("Slice", {b.grad_output(0), b.ints({begin}), b.ints({end}), b.ints({axis})}));
    }
    begin = end;
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0],
              std::vector<double>(static_cast<size_t>(c.output_descs[0].numel()))};
  const int axis = axis_of(c.attributes, y.desc.shape.rank());
  int64_t begin = 0;
  for (const RefTensor& x : c.inputs) {
    for (int64_t i = 0; i < x.desc.numel(); ++i) {
      auto index = unravel(x.desc.shape, i);
      index[static_cast<size_t>(axis)] += begin;
      y.values[ravel(y.desc.shape, index)] = x.values[static_cast<size_t>(i)];
    }
    begin += x.desc.shape[axis];
  }
  return {y};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  struct Part {
    StridedCopy copy;
    int64_t offset;  // bytes into the output
  };
  const TensorDesc& y = p.out(0);
  const int axis = axis_of(p.attributes, y.shape.rank());
  const auto strides = strides_of(y);
  const size_t size = dtype_size(y.dtype);
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const TensorDesc& x : p.inputs) {
    const int64_t step = strides[static_cast<size_t>(axis)] * static_cast<int64_t>(size);
    parts.push_back({StridedCopy(x.shape, strides_of(x), strides, size), begin * step});
    begin += x.shape[axis];
  }
  return make_kernel([parts = std::move(parts)](const KernelArgs& a) {
    for (size_t k = 0; k < parts.size(); ++k) {
      parts[k].copy.run(a.inputs[k].data, a.outputs[0].data + parts[k].offset);
    }
    return ok_status();
  });
}

SampleCase sample(const char* name, int64_t axis, std::vector<TensorDesc> inputs) {
  return {.name = name, .attributes = {{"axis", axis}}, .inputs = std::move(inputs)};
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  const DType i = DType::kInt64;
  return {sample("rows", 0, {{f, {2, 5}}, {f, {3, 5}}}),
          sample("columns", -1, {{f, {2, 5}}, {f, {2, 1}}, {f, {2, 3}}}),
          sample("channels", 1, {{f, {2, 3, 4}}, {f, {2, 2, 4}}}),
          sample("shapes", 0, {{i, {1}}, {i, {2}}}),
          sample("one", 0, {{f, {3}}}),
          sample("empty_part", 0, {{f, {0, 5}}, {f, {3, 5}}}),
          sample("empty", 1, {{f, {0, 5}}, {f, {0, 2}}})};
}

}  // namespace

void add_concat(Registry& registry) {
  registry.add({.name = "Concat",
                .first_opset = 4,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copies", accepts_plain, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
