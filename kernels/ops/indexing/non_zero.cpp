// NonZero(x): the indices of the elements that are not 0, as [rank, count], in row-major order; of
// a scalar [1, count]. Its shape depends on the values, so x must be known while planning. No
// gradient. https://onnx.ai/onnx/operators/onnx__NonZero.html
//
// ofsdp.FoundIndices(x): NonZero with as many columns as x has elements, for an x that only the run
// computes: [rank, numel], the indices of the elements that are not 0, then that of the last one
// again (0 when there is none), so that what reads rows by them meets nothing it would not meet
// anyway; and how many there are, int64[1]. No gradient. importer/passes/bounded_axes.h says who
// uses it.
#include "kernels/core/element_types.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace non_zero {

// The flat indices, in order.
std::vector<int64_t> found_in(const std::vector<double>& values) {
  std::vector<int64_t> found;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

std::vector<int64_t> found_in(const Constant& x) {
  return found_in(to_doubles(x.desc, x.bytes.data()));
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Constant* x = c.constant(0);
  if (x == nullptr) {
    return input_error(
        "input 'X' must be known before the run, found a computed value: the number of its "
        "elements that are not 0 is the shape of the output");
  }
  const int64_t rank = std::max(x->desc.shape.rank(), 1);
  const auto count = static_cast<int64_t>(found_in(*x).size());
  return std::vector{TensorDesc{DType::kInt64, {rank, count}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Shape& shape = c.inputs[0].desc.shape;
  for (int axis = 0; axis < y.desc.shape[0]; ++axis) {
    for (size_t i = 0; i < c.inputs[0].values.size(); ++i) {
      if (c.inputs[0].values[i] == 0) continue;
      const auto index = unravel(shape, static_cast<int64_t>(i));
      y.values.push_back(shape.rank() == 0 ? 0
                                           : static_cast<double>(index[static_cast<size_t>(axis)]));
    }
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.constant(0) != nullptr, "a computed input");
}

// Folded by the importer, so it may take its time: the values are made while planning.
std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape shape = p.in(0).shape.rank() == 0 ? Shape{1} : p.in(0).shape;
  std::vector<int64_t> values;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t step = shape.numel(axis + 1, shape.rank());
    for (int64_t flat : found_in(*p.constant(0))) values.push_back(flat / step % shape[axis]);
  }
  return make_kernel([values](const KernelArgs& a) {
    std::copy(values.begin(), values.end(), a.out<int64_t>(0));
  });
}

Result<std::vector<TensorDesc>> found_infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  return std::vector{TensorDesc{DType::kInt64, {std::max(x.rank(), 1), x.numel()}},
                     TensorDesc{DType::kInt64, {1}}};
}

std::vector<RefTensor> found_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const RefTensor& x = c.inputs[0];
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.desc.numel(); ++i) {
    if (x[i] != 0) found.push_back(i);
  }
  const auto count = static_cast<double>(found.size());
  found.resize(x.values.size(), found.empty() ? 0 : found.back());
  for (int axis = 0; axis < y.desc.shape[0]; ++axis) {
    for (int64_t flat : found) {
      const auto index = unravel(x.desc.shape, flat);
      y.values.push_back(index.empty() ? 0 : static_cast<double>(index[static_cast<size_t>(axis)]));
    }
  }
  return {y, {c.output_descs[1], {count}}};
}

// The bits of x that tell whether it is 0: -0.0 is 0, so the sign of a float does not count.
uint64_t value_bits(DType dtype) {
  const uint64_t all = ~uint64_t{0} >> (64 - 8 * dtype_size(dtype));
  return is_floating(dtype) ? all >> 1 : all;
}

// The flat indices go to row 0 first and are taken apart there.
std::unique_ptr<Kernel> found_create(const Problem& p) {
  const Shape shape = p.in(0).shape.rank() == 0 ? Shape{1} : p.in(0).shape;
  return with_bits(dtype_size(p.in(0).dtype), [&]<typename T>(T) {
    const T mask = static_cast<T>(value_bits(p.in(0).dtype));
    return make_kernel([shape, n = shape.numel(), mask](const KernelArgs& a) {
      const T* x = a.in<T>(0);
      int64_t* y = a.out<int64_t>(0);
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i) {
        if ((x[i] & mask) != 0) y[count++] = i;
      }
      *a.out<int64_t>(1) = count;
      std::fill(y + count, y + n, count == 0 ? 0 : y[count - 1]);
      for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        const int64_t step = shape.numel(axis + 1, shape.rank());
        for (int64_t i = 0; i < n; ++i) y[axis * n + i] = y[i] / step % shape[axis];
      }
    });
  });
}

}  // namespace non_zero

void add_non_zero(Registry& registry) {
  using namespace non_zero;
  registry.add(make_op("NonZero", {infer, nullptr, reference}, {{"copy", accepts, create}},
                       {.first_opset = 9, .constant_inputs = {0}}));
  registry.add_own(make_op("FoundIndices", {found_infer, nullptr, found_reference},
                           {{"loops", accepts_plain, found_create}}));
}

}  // namespace ofsdp::kernels::ops
