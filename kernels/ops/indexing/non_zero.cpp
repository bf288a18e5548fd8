// NonZero(x): the indices of the elements that are not 0, as [rank, count], in row-major order; of
// a scalar [1, count]. Its shape depends on the values, so x must be known while planning. No
// gradient. https://onnx.ai/onnx/operators/onnx__NonZero.html
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

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
    return ok_status();
  });
}

SampleCase sample(const char* name, TensorDesc x) {
  return {.name = name, .inputs = {std::move(x)}, .fill = {}, .constant_inputs = {0}};
}

std::vector<SampleCase> samples() {
  return {sample("bools", {DType::kBool, {3, 4}}), sample("longs", {DType::kInt64, {2, 3, 2}}),
          sample("floats", {DType::kFloat32, {5}}), sample("scalar", {DType::kInt32, {}}),
          sample("empty", {DType::kFloat32, {0, 3}})};
}

}  // namespace

void add_non_zero(Registry& registry) {
  registry.add({.name = "NonZero",
                .first_opset = 9,
                .infer = infer,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples,
                .constant_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
