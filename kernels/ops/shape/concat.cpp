// Concat(x0, x1, ...), attribute axis: the inputs one after the other along `axis`. Any dtype.
// dx_k is the slice of dy that x_k filled.
// https://onnx.ai/onnx/operators/onnx__Concat.html
//
// Split(x, split), attributes axis, num_outputs: x cut along the axis into parts of the sizes in
// `split`, or without it into num_outputs parts of equal size, the last smaller when it does not
// come out even. Any dtype. dx is the Concat of the dy, with zeros where none arrives.
// https://onnx.ai/onnx/operators/onnx__Split.html
#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace concat {

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
  RefTensor y = zeros(c.output_descs[0]);
  const int axis = axis_of(c.attributes, y.desc.shape.rank());
  int64_t begin = 0;
  for (const RefTensor& x : c.inputs) {
    for (int64_t i = 0; i < x.desc.numel(); ++i) {
      auto index = unravel(x.desc.shape, i);
      index[static_cast<size_t>(axis)] += begin;
      y.values[ravel(y.desc.shape, index)] = x[i];
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
  });
}

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

Result<std::vector<TensorDesc>> split_infer(const InferContext& c) {
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

void split_grad(GradBuilder& b) {
  const auto parts = *split_infer(context_of(b));
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

std::vector<RefTensor> split_reference(const ReferenceContext& c) {
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

std::unique_ptr<Kernel> split_create(const Problem& p) {
  const TensorDesc& x = p.in(0);
  const int axis = normal_axis(p.attributes, x.shape.rank());
  const auto strides = strides_of(x);
  const size_t size = dtype_size(x.dtype);
  // The sizes again: the problem has no shape of an output that nobody wants.
  const auto descs = *split_infer(context_of(p));
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
  });
}

}  // namespace concat

void add_concat(Registry& registry) {
  using namespace concat;
  registry.add(make_op("Concat", {infer, grad, reference}, {{"copies", accepts_plain, create}},
                       {.first_opset = 4}));
  registry.add(make_op("Split", {split_infer, split_grad, split_reference},
                       {{"copies", accepts_plain, split_create}},
                       {.first_opset = 13, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
