// Unique(x), attributes axis, sorted: the different slices of x along the axis (its elements, laid
// flat, when it is absent), in rising order or, with sorted = 0, in that of their first appearance;
// and for each of them the index of its first appearance, for each slice of x the number of its
// like among the different ones, and for each of these how often it appears. The shapes depend on
// the values, so x must be known while planning; of an x that only the run knows the importer makes
// ofsdp.FoundUnique. No gradient.
// https://onnx.ai/onnx/operators/onnx__Unique.html
#include <algorithm>

#include "kernels/ops/indexing/unique_groups.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

struct Groups {
  std::vector<int64_t> first, inverse, counts;
};

Groups groups_of(const Constant& x, const Attributes& attributes) {
  const Lines lines = unique_lines(x.desc.shape, attributes);
  const auto n = static_cast<size_t>(lines.n);
  Groups found{std::vector<int64_t>(n), std::vector<int64_t>(n), std::vector<int64_t>(n)};
  std::vector<int64_t> order(n);
  const int64_t count =
      find_groups(x.desc.dtype, x.bytes.data(), lines, attributes.i("sorted", 1) != 0, order.data(),
                  {found.first.data(), found.inverse.data(), found.counts.data()});
  found.first.resize(static_cast<size_t>(count));
  found.counts.resize(static_cast<size_t>(count));
  return found;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Constant* x = c.constant(0);
  if (x == nullptr) {
    return input_error(
        "input 'X' must be known before the run, found a computed value: the number of its "
        "different elements is the shape of the outputs");
  }
  Shape shape{x->desc.numel()};
  int axis = 0;
  if (c.attributes.has("axis")) {
    shape = x->desc.shape;
    OFSDP_ASSIGN_OR_RETURN(axis, normalize_axis(c.attributes.i("axis", 0), shape.rank()));
  }
  const int64_t n = shape[axis];
  shape[axis] = static_cast<int64_t>(groups_of(*x, c.attributes).first.size());
  const TensorDesc each{DType::kInt64, {shape[axis]}};
  return std::vector{TensorDesc{x->desc.dtype, shape}, each, {DType::kInt64, {n}}, each};
}

// By comparing every slice with every other.
std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Lines lines = unique_lines(c.inputs[0].desc.shape, c.attributes);
  auto slice = [&](int64_t i) {
    std::vector<double> values;
    for (int64_t o = 0; o < lines.outer; ++o) {
      for (int64_t j = 0; j < lines.inner; ++j) {
        values.push_back(c.inputs[0].values[static_cast<size_t>(lines.at(o, i, j))]);
      }
    }
    return values;
  };
  std::vector<std::vector<double>> different;
  std::vector<double> first, inverse, counts;
  for (int64_t i = 0; i < lines.n; ++i) {
    if (std::ranges::find(different, slice(i)) == different.end()) different.push_back(slice(i));
  }
  if (c.attributes.i("sorted", 1) != 0) std::ranges::sort(different);
  first.assign(different.size(), -1);
  counts.assign(different.size(), 0);
  for (int64_t i = 0; i < lines.n; ++i) {
    const auto g = static_cast<size_t>(std::ranges::find(different, slice(i)) - different.begin());
    if (first[g] < 0) first[g] = static_cast<double>(i);
    inverse.push_back(static_cast<double>(g));
    ++counts[g];
  }
  RefTensor y{c.output_descs[0], {}};
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (const auto& values : different) {
      const auto begin = values.begin() + o * lines.inner;
      y.values.insert(y.values.end(), begin, begin + lines.inner);
    }
  }
  std::vector<RefTensor> all{y};
  for (const auto& values : {first, inverse, counts}) {
    if (all.size() < c.output_descs.size()) all.push_back({c.output_descs[all.size()], values});
  }
  return all;
}

bool accepts(const Problem& p) { return p.constant(0) != nullptr; }

// Folded by the importer, so it may take its time: the groups are made while planning.
std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = unique_lines(p.in(0).shape, p.attributes);
  const auto bytes = static_cast<size_t>(lines.inner) * dtype_size(p.in(0).dtype);
  return make_kernel(
      [lines, bytes, g = groups_of(*p.constant(0), p.attributes)](const KernelArgs& a) {
        std::byte* to = a.outputs[0].data;
        for (int64_t o = 0; o < lines.outer && to != nullptr && bytes > 0; ++o) {
          for (int64_t i : g.first) {
            std::memcpy(to, a.inputs[0].data + static_cast<size_t>(o * lines.n + i) * bytes, bytes);
            to += bytes;
          }
        }
        const std::vector<int64_t>* numbers[] = {&g.first, &g.inverse, &g.counts};
        for (size_t i = 1; i < a.outputs.size(); ++i) {
          if (a.outputs[i].data == nullptr) continue;
          std::copy(numbers[i - 1]->begin(), numbers[i - 1]->end(), a.out<int64_t>(i));
        }
        return ok_status();
      });
}

SampleCase sample(const char* name, TensorDesc x, Attributes attributes, size_t outputs = 4) {
  return {.name = name,
          .attributes = std::move(attributes),
          .inputs = {std::move(x)},
          .fill = {},
          .constant_inputs = {0},
          .num_outputs = outputs};
}

std::vector<SampleCase> samples() {
  const Attributes rows{{"axis", int64_t{0}}};
  const Attributes columns{{"axis", int64_t{-1}}, {"sorted", int64_t{0}}};
  return {sample("flat", {DType::kInt64, {4, 5}}, {}),
          sample("in_order", {DType::kInt32, {20}}, {{"sorted", int64_t{0}}}),
          sample("rows", {DType::kBool, {9, 3}}, rows),
          sample("columns", {DType::kUInt8, {2, 30}}, columns),
          sample("floats", {DType::kFloat32, {7}}, {}, 1),
          sample("halves", {DType::kBFloat16, {7}}, {}, 2),
          sample("empty", {DType::kFloat32, {0}}, {})};
}

}  // namespace

void add_unique(Registry& registry) {
  registry.add({.name = "Unique",
                .first_opset = 11,
                .infer = infer,
                .reference = reference,
                .cpu = {{"groups", accepts, create}},
                .samples = samples,
                .constant_inputs = {0}});
}

}  // namespace ofsdp::kernels::ops
