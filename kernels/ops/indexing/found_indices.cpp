// ofsdp.FoundIndices(x): NonZero with as many columns as x has elements, for an x that only the run
// computes: [rank, numel], the indices of the elements that are not 0, then that of the last one
// again (0 when there is none), so that what reads rows by them meets nothing it would not meet
// anyway; and how many there are, int64[1]. No gradient. importer/passes/bounded_axes.h says who uses it.
#include "kernels/cpu/element_types.h"
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

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

bool accepts(const Problem& p) {
  const DType x = p.in(0).dtype;
  return p.all_plain() && (is_number(x) || is_half(x) || x == DType::kBool);
}

// The flat indices go to row 0 first and are taken apart there.
template <typename T, typename Kept>
std::unique_ptr<Kernel> create_as(const Problem& p, const Kept& kept) {
  const Shape shape = p.in(0).shape.rank() == 0 ? Shape{1} : p.in(0).shape;
  return make_kernel([shape, n = shape.numel(), kept](const KernelArgs& a) {
    const T* x = a.in<T>(0);
    int64_t* y = a.out<int64_t>(0);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (kept(x[i])) y[count++] = i;
    }
    *a.out<int64_t>(1) = count;
    std::fill(y + count, y + n, count == 0 ? 0 : y[count - 1]);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const int64_t step = shape.numel(axis + 1, shape.rank());
      for (int64_t i = 0; i < n; ++i) y[axis * n + i] = y[i] / step % shape[axis];
    }
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  if (p.in(0).dtype == DType::kBool) {
    return create_as<uint8_t>(p, [](uint8_t x) { return x != 0; });
  }
  if (is_half(p.in(0).dtype)) {
    return create_as<uint16_t>(p, [](uint16_t x) { return (x & 0x7fff) != 0; });
  }
  return with_number(p.in(0).dtype, [&](auto zero) {
    return create_as<decltype(zero)>(p, [](decltype(zero) x) { return x != decltype(zero){0}; });
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
                .cpu = {{"loops", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
