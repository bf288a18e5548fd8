// ofsdp.FoundIndices(x): NonZero with as many columns as x has elements, for an x that only the run
// computes: [rank, numel], the indices of the elements that are not 0, then that of the last one
// again (0 when there is none), so that what reads rows by them meets nothing it would not meet
// anyway; and how many there are, int64[1]. No gradient. importer/passes/bounded_axes.h says who uses it.
#include "kernels/core/element_types.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  return std::vector{TensorDesc{DType::kInt64, {std::max(x.rank(), 1), x.numel()}},
                     TensorDesc{DType::kInt64, {1}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const RefTensor& x = c.inputs[0];
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.desc.numel(); ++i) {
    if (x.values[static_cast<size_t>(i)] != 0) found.push_back(i);
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
std::unique_ptr<Kernel> create(const Problem& p) {
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
      return ok_status();
    });
  });
}

SampleCase sample(const char* name, TensorDesc x, std::vector<double> values = {}) {
  SampleCase made{.name = name, .inputs = {std::move(x)}, .fill = {}, .num_outputs = 2};
  if (!values.empty()) made.fill = fill_with(0, std::move(values));
  return made;
}

std::vector<SampleCase> samples() {
  return {sample("bools", {DType::kBool, {3, 4}}, {0, 1, 0, 0, 1}),
          sample("nothing", {DType::kBool, {2, 3}}, {0}),
          sample("longs", {DType::kInt64, {2, 3, 2}}, {2, 0, -1, 0, 0}),
          sample("floats", {DType::kFloat32, {5}}, {0, 0.5, -0.0}),
          sample("halves", {DType::kFloat16, {5}}, {0, 1, -0.0, 2}),
          sample("scalar", {DType::kInt32, {}}, {3}),
          sample("empty", {DType::kFloat32, {0, 3}})};
}

}  // namespace

void add_found_indices(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "FoundIndices",
                .infer = infer,
                .reference = reference,
                .cpu = {{"loops", accepts_plain, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
