// Transpose(x), attribute perm: axis i of y is axis perm[i] of x; all axes reversed when absent.
// Any dtype. dx is dy under the inverse permutation.
// https://onnx.ai/onnx/operators/onnx__Transpose.html
#include <algorithm>
#include <numeric>

#include "kernels/cpu/strided_copy.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// PyTorch's older exporter leaves negative axes in it, which ONNX does not speak of.
std::vector<int64_t> perm_of(const Attributes& attributes, int rank) {
  std::vector<int64_t> reversed(static_cast<size_t>(rank));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  std::vector<int64_t> perm = attributes.ints("perm", reversed);
  for (int64_t& axis : perm) axis += axis < 0 ? rank : 0;
  return perm;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const auto perm = perm_of(c.attributes, x.shape.rank());
  std::vector<int64_t> sorted = perm;
  std::ranges::sort(sorted);
  std::vector<int64_t> all(static_cast<size_t>(x.shape.rank()));
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    return input_error("perm {} is no permutation of the {} axes of {}", Shape(perm).text(),
                       x.shape.rank(), x.text());
  }
  TensorDesc y{x.dtype, x.shape};
  for (int i = 0; i < x.shape.rank(); ++i) {
    y.shape[i] = x.shape[static_cast<int>(perm[static_cast<size_t>(i)])];
  }
  return std::vector{y};
}

void grad(GradBuilder& b) {
  const auto perm = perm_of(b.attributes(), b.desc(b.input(0)).shape.rank());
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  b.set_grad(0, b.emit1("Transpose", {b.grad_output(0)}, {{"perm", inverse}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& x = c.inputs[0];
  RefTensor y{c.output_descs[0], {}};
  const auto perm = perm_of(c.attributes, x.desc.shape.rank());
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto to = unravel(y.desc.shape, i);
    std::vector<int64_t> from(to.size());
    for (size_t axis = 0; axis < to.size(); ++axis) {
      from[static_cast<size_t>(perm[axis])] = to[axis];
    }
    y.values.push_back(x.values[ravel(x.desc.shape, from)]);
  }
  return {y};
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const TensorDesc& y = p.out(0);
  const auto perm = perm_of(p.attributes, y.shape.rank());
  const auto own = strides_of(p.in(0));
  std::vector<int64_t> from;
  for (int64_t axis : perm) from.push_back(own[static_cast<size_t>(axis)]);
  StridedCopy copy(y.shape, from, strides_of(y), dtype_size(y.dtype));
  return make_kernel([copy](const KernelArgs& a) {
    copy.run(a.inputs[0].data, a.outputs[0].data);
    return ok_status();
  });
}

SampleCase sample(const char* name, Shape shape, std::vector<int64_t> perm,
                  DType dtype = DType::kFloat32) {
  return {.name = name,
          .attributes = {{"perm", std::move(perm)}},
          .inputs = {{dtype, std::move(shape)}}};
}

std::vector<SampleCase> samples() {
  return {{.name = "reversed", .inputs = {{DType::kFloat32, {2, 3, 4}}}},
          sample("matrix", {37, 70}, {1, 0}),
          sample("large", {150, 131}, {1, 0}),
          sample("heads", {2, 5, 3, 8}, {0, 2, 1, 3}),
          sample("keys", {2, 5, 3, 8}, {0, 2, 3, 1}),
          sample("negative", {2, 5, 3, 8}, {0, -2, -1, 1}),
          sample("same", {2, 3}, {0, 1}),
          sample("longs", {3, 20}, {1, 0}, DType::kInt64),
          sample("bools", {3, 20}, {1, 0}, DType::kBool),
          sample("empty", {0, 4}, {1, 0})};
}

}  // namespace

void add_transpose(Registry& registry) {
  registry.add({.name = "Transpose",
                .infer = infer,
                .grad = grad,
                .reference = reference,
                .cpu = {{"copy", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
