// ofsdp.ScatterIndices(indices, count), attributes axis, factor (kernels/ops/indexing/counted.h) and dims:
// the indices of a scatter into data that has got one more slice at the end of its first addressed
// axis. Tuples of dims.size() components lie in the last axis of indices (one component: any
// shape, each element is a tuple). What is there stays, counted from the front; padding goes to
// that slice: (dims[0], 0, ...). No gradient.
#include "kernels/ops/indexing/counted.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const auto components = static_cast<int64_t>(c.attributes.ints("dims").size());
  const Shape& shape = c.inputs[0].shape;
  const bool fits = components == 1 || (shape.rank() > 0 && shape[shape.rank() - 1] == components);
  if (c.inputs[0].dtype != DType::kInt64 || !fits) {
    return input_error("expected int64 tuples of {}, found {}", components, c.inputs[0].text());
  }
  return infer_counted(c);
}

// Of element i: its component in the tuple, and whether its slice is there.
struct Rule {
  Lines lines;
  std::vector<int64_t> dims;
  int64_t rows;

  int64_t operator()(int64_t i, int64_t index) const {
    const size_t component = static_cast<size_t>(i) % dims.size();
    if (i / lines.inner % lines.n >= rows) return component == 0 ? dims[0] : 0;
    return index < 0 ? index + dims[component] : index;
  }
};

Rule rule(const Shape& shape, const Attributes& attributes, int64_t count) {
  const Lines lines = counted_lines(shape, attributes);
  return {lines, attributes.ints("dims"), counted_rows(lines, attributes, count)};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const auto dims = c.attributes.ints("dims");
  const auto axis = static_cast<size_t>(c.attributes.i("axis", 0));
  const double rows = c.inputs[1].values[0] * static_cast<double>(c.attributes.i("factor", 1));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    const size_t component = dims.size() == 1 ? 0 : static_cast<size_t>(index.back());
    double& v = y.values[static_cast<size_t>(i)];
    if (v < 0) v += static_cast<double>(dims[component]);
    if (static_cast<double>(index[axis]) >= rows) {
      v = component == 0 ? static_cast<double>(dims[0]) : 0;
    }
  }
  return {y};
}

bool accepts(const Problem& p) { return p.all_plain(); }

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([made = rule(p.in(0).shape, p.attributes, 0), n = p.in(0).numel(),
                      factor = p.attributes.i("factor", 1)](const KernelArgs& a) mutable {
    made.rows = *a.in<int64_t>(1) * factor;
    for (int64_t i = 0; i < n; ++i) a.out<int64_t>(0)[i] = made(i, a.in<int64_t>(0)[i]);
    return ok_status();
  });
}

SampleCase sample(const char* name, Shape indices, std::vector<int64_t> dims, double count,
                  const std::vector<double>& index) {
  return {.name = name,
          .attributes = {{"axis", int64_t{0}}, {"dims", std::move(dims)}},
          .inputs = {{DType::kInt64, std::move(indices)}, {DType::kInt64, {1}}},
          .fill = [=](size_t i, std::vector<double>& values) {
            for (size_t k = 0; k < values.size(); ++k) {
              values[k] = i == 1 ? count : index[k % index.size()];
            }
          }};
}

std::vector<SampleCase> samples() {
  return {sample("tuples", {4, 2}, {5, 7}, 2, {1, -1, -2, 3}),
          sample("elements", {4, 3}, {5}, 3, {1, -1, 0}), sample("nothing", {3, 1}, {4}, 0, {1}),
          sample("empty", {0, 2}, {4, 3}, 0, {1})};
}

}  // namespace

void add_scatter_indices(Registry& registry) {
  registry.add({.domain = kOwnDomain,
                .name = "ScatterIndices",
                .min_inputs = 2,
                .infer = infer,
                .reference = reference,
                .cpu = {{"loops", accepts, create}},
                .samples = samples});
}

}  // namespace ofsdp::kernels::ops
