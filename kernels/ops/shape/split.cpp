// Split(x, split), attributes axis, num_outputs: x cut along the axis into parts of the sizes in
// `split`, or without it into num_outputs parts of equal size, the last smaller when it does not
// come out even. Any dtype. dx is the Concat of the dy, with zeros where none arrives.
// https://onnx.ai/onnx/operators/onnx__Split.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kMostParts = 65536;  // of a file that means it

Result<std::vector<int64_t>> part_sizes(const InferContext& c, int64_t n) {
  if (c.has(1)) return known_ints(c, 1, "split");
  const int64_t count = c.attributes.i("num_outputs", 0);
  if (count < 1 || count > kMostParts) {
    return input_error(
        "expected the input 'split' or the attribute 'num_outputs' in 1..{}, found {}", kMostParts,
        c.attributes.has("num_outputs") ? std::to_string(count) : "neither");
  }
  const int64_t size = (n + count - 1) / count;
  std::vector<int64_t> sizes(static_cast<size_t>(count), size);
  sizes.back() = n - size * (count - 1);
  return sizes;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(c.attributes.i("axis", 0), x.shape.rank()));
  OFSDP_ASSIGN_OR_RETURN(const auto sizes, part_sizes(c, x.shape[axis]));
  std::vector<TensorDesc> parts;
  int64_t sum = 0;
  bool negative = false;
  for (int64_t size : sizes) {
    parts.push_back({x.dtype, x.shape});
    parts.back().shape[axis] = size;
    negative |= size < 0;
    sum += size;
  }
  if (negative || sum != x.shape[axis] || sizes.size() < c.wanted.size()) {
    return input_error("axis {} of {} cannot be cut into {} parts of the sizes {}", axis, x.text(),
                       c.wanted.size(), Shape(sizes).text());
  }
  return parts;
}

void grad(GradBuilder& b) {
  const auto parts = *infer(context_of(b));
  std::vector<Ref> diffs;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Ref dy = b.grad_output(i);
    diffs.push_back(dy ? dy : zeros(b, parts[i]));
  }
  b.set_grad(0, b.emit1("Concat", diffs, {{"axis", b.attributes().i("axis", 0)}}));
}

int normal_axis(const Attributes& attributes, int rank) {
  return *normalize_axis(attributes.i("axis", 0), rank);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  std::vector<RefTensor> parts;
  const Shape& shape = c.inputs[0].desc.shape;
  const auto axis = static_cast<size_t>(normal_axis(c.attributes, shape.rank()));
  int64_t begin = 0;
  for (const TensorDesc& desc : c.output_descs) {
    RefTensor part{desc, {}};
    for (int64_t i = 0; i < desc.numel(); ++i) {
      auto index = unravel(desc.shape, i);
      index[axis] += begin;
      part.values.push_back(c.inputs[0].values[ravel(shape, index)]);
    }
    begin += desc.shape[static_cast<int>(axis)];
    parts.push_back(std::move(part));
  }
  return parts;
}

struct Part {
  size_t output;
  int64_t offset;  // bytes into x
  StridedCopy copy;
};

std::unique_ptr<Kernel> create(const Problem& p) {
  const TensorDesc& x = p.in(0);
  const int axis = normal_axis(p.attributes, x.shape.rank());
  const auto strides = strides_of(x);
  const size_t size = dtype_size(x.dtype);
  // The sizes again: the problem has no shape of an output that nobody wants.
  const auto descs = *infer(context_of(p));
  std::vector<Part> parts;
  int64_t offset = 0;
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    const Shape& shape = descs[i].shape;
    if (p.has_out(i)) {
      parts.push_back({i, offset, StridedCopy(shape, strides, strides_of(p.out(i)), size)});
    }
    offset += shape[axis] * strides[static_cast<size_t>(axis)] * static_cast<int64_t>(size);
  }
  return make_kernel([parts = std::move(parts)](const KernelArgs& a) {
    for (const Part& part : parts) {
      part.copy.run(a.inputs[0].data + part.offset, a.outputs[part.output].data);
    }
    return ok_status();
  });
}

SampleCase equal(const char* name, TensorDesc x, int64_t axis, size_t count) {
  return {.name = name,
          .attributes = {{"axis", axis}, {"num_outputs", static_cast<int64_t>(count)}},
          .inputs = {std::move(x)},
          .num_outputs = count};
}

SampleCase sizes(const char* name, TensorDesc x, int64_t axis, std::vector<double> split) {
  const size_t count = split.size();
  SampleCase made = known_sample(name, std::move(x), std::move(split), {{"axis", axis}});
  made.num_outputs = count;
  return made;
}

std::vector<SampleCase> samples() {
  const DType f = DType::kFloat32;
  return {equal("rows", {f, {6, 5}}, 0, 3),
          equal("columns", {f, {2, 3, 8}}, -1, 2),
          equal("uneven", {f, {7}}, 0, 4),
          sizes("sizes", {f, {2, 6}}, 1, {1, 3, 2}),
          sizes("with_nothing", {f, {2, 3}}, 1, {0, 3}),
          sizes("longs", {DType::kInt64, {4}}, 0, {3, 1}),
          sizes("halves", {DType::kFloat16, {4}}, 0, {3, 1}),
          equal("one", {f, {4}}, 0, 1),
          equal("empty", {f, {0, 4}}, 1, 2)};
}

}  // namespace

void add_split(Registry& registry) {
  registry.add({.name = "Split",
                .first_opset = 13,
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copies", accepts_plain, create}},
                .samples = samples,
                .constant_inputs = {1}});
}

}  // namespace ofsdp::kernels::ops
