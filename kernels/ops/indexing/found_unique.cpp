// ofsdp.FoundUnique(x), attributes axis, sorted: Unique of an x that only the run computes, with
// room for as many different slices as x has. For each of them the index of its first appearance,
// for each slice of x the number of its like, for each different one how often it appears, and how
// many there are, int64[1]. Behind that number the first and third output repeat their last element
// (0 when there is none), so that what reads slices by them meets nothing it would not meet anyway.
// The slices themselves are a Gather by the first output. No gradient. importer/passes/bounded_axes.h says
// who uses it.
#include <algorithm>

#include "kernels/ops/indexing/unique_groups.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  if (c.attributes.has("axis")) {
    OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", 0), x.rank()).status());
  }
  const TensorDesc each{DType::kInt64, {unique_lines(x, c.attributes).n}};
  return std::vector{each, each, each, TensorDesc{DType::kInt64, {1}}};
}

// By comparing every slice with every other.
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Lines lines = unique_lines(c.inputs[0].desc.shape, c.attributes);
  std::vector<std::vector<double>> slices, different;
  for (int64_t i = 0; i < lines.n; ++i) {
    auto& slice = slices.emplace_back();
    for (int64_t o = 0; o < lines.outer; ++o) {
      for (int64_t k = 0; k < lines.inner; ++k) {
        slice.push_back(c.inputs[0].values[static_cast<size_t>(lines.at(o, i, k))]);
      }
    }
    if (std::ranges::find(different, slice) == different.end()) different.push_back(slice);
  }
  if (c.attributes.i("sorted", 1) != 0) std::ranges::sort(different);
  std::vector<double> first, inverse, counts;
  for (const auto& one : different) {
    first.push_back(static_cast<double>(std::ranges::find(slices, one) - slices.begin()));
    counts.push_back(static_cast<double>(std::ranges::count(slices, one)));
  }
  for (const auto& one : slices) {
    inverse.push_back(static_cast<double>(std::ranges::find(different, one) - different.begin()));
  }
  const auto count = static_cast<double>(different.size());
  first.resize(slices.size(), first.empty() ? 0 : first.back());
  counts.resize(slices.size(), counts.empty() ? 0 : counts.back());
  return {{c.output_descs[0], first},
          {c.output_descs[1], inverse},
          {c.output_descs[2], counts},
          {c.output_descs[3], {count}}};
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = unique_lines(p.in(0).shape, p.attributes);
  const bool sorted = p.attributes.i("sorted", 1) != 0;
  return make_kernel(
      [lines, sorted, dtype = p.in(0).dtype](const KernelArgs& a) {
        const UniqueGroups groups{a.out<int64_t>(0), a.out<int64_t>(1), a.out<int64_t>(2)};
        auto* order = reinterpret_cast<int64_t*>(a.workspace);
        const int64_t count = find_groups(dtype, a.inputs[0].data, lines, sorted, order, groups);
        for (int64_t* of_each : {groups.first, groups.counts}) {
          std::fill(of_each + count, of_each + lines.n, count == 0 ? 0 : of_each[count - 1]);
        }
        *a.out<int64_t>(3) = count;
        return ok_status();
      },
      static_cast<size_t>(lines.n) * sizeof(int64_t));
}

SampleCase sample(const char* name, TensorDesc x, Attributes attributes,
                  std::vector<double> values = {}) {
  SampleCase made{.name = name,
                  .attributes = std::move(attributes),
                  .inputs = {std::move(x)},
                  .fill = {},
                  .num_outputs = 4};
  if (!values.empty()) made.fill = fill_with(0, std::move(values));
  return made;
}

std::vector<SampleCase> samples() {
  const Attributes rows{{"axis", int64_t{0}}};
  const Attributes columns{{"axis", int64_t{-1}}, {"sorted", int64_t{0}}};
  const Attributes in_order{{"sorted", int64_t{0}}};
  return {sample("flat", {DType::kInt64, {4, 5}}, {}),
          sample("in_order", {DType::kInt32, {20}}, in_order),
          sample("rows", {DType::kBool, {9, 3}}, rows),
          sample("columns", {DType::kUInt8, {2, 30}}, columns),
          sample("middle", {DType::kInt8, {2, 5, 3}}, {{"axis", int64_t{1}}}, {1, 2, 3}),
          sample("floats", {DType::kFloat32, {7}}, {}, {0.5, -0.0, 2, 0, 0.5}),
          sample("doubles", {DType::kFloat64, {7}}, in_order, {2, -1, 2}),
          sample("halves", {DType::kFloat16, {6}}, {}, {1, -2, 1, 0, -0.0}),
          sample("short_floats", {DType::kBFloat16, {6}}, in_order, {1, -2, 1, 0, -0.0}),
          sample("alike", {DType::kInt64, {5}}, {}, {3}),
          sample("scalar", {DType::kInt64, {}}, {}, {3}),
          sample("empty", {DType::kFloat32, {0}}, {}),
          sample("no_rows", {DType::kFloat32, {0, 3}}, rows)};
}

}  // namespace

void add_found_unique(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "FoundUnique",
                .infer = infer,
                .reference = reference,
                .cpu = {{"groups", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
