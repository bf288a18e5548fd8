// Operators over a bounded axis (importer/passes/bounded_axes.h): attribute axis, and attribute
// factor f: the first f * count slices along it exist, the others are padding. Input 1 is the
// count, int64[1], known at run time.
//
//   ofsdp.KeepCounted(x, count)      the slices of x that exist, zeros for the padding; dx is the
//                                    same of dy
//   ofsdp.RequireCount(x, count)     x, when exactly `expected` (an attribute) of its slices exist,
//                                    for a graph into which its exporter has written that number;
//                                    another number ends the run. dx = dy
//   ofsdp.ScatterIndices(indices, count)
//                                    attribute dims: the indices of a scatter into data with one
//                                    more slice at the end of its first addressed axis. Tuples of
//                                    dims.size() components are in the last axis of indices (one
//                                    component: any shape, each element is a tuple). Existing
//                                    slices keep theirs, counted from the front; padding goes to
//                                    the extra slice: (dims[0], 0, ...). No gradient
#include <algorithm>

#include "kernels/cpu/lines.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace counted {

Lines counted_lines(const Shape& shape, const Attributes& attributes) {
  return lines_along(shape, attributes.i("axis", 0));
}

int64_t counted_rows(const Lines& lines, const Attributes& attributes, int64_t count) {
  return std::min(lines.n, attributes.i("factor", 1) * count);
}

Result<std::vector<TensorDesc>> infer_counted(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(
      normalize_axis(c.attributes.i("axis", 0), c.inputs[0].shape.rank()).status());
  if (c.inputs[1] != TensorDesc{DType::kInt64, {1}}) {
    return input_error("expected a count int64[1], found {}", c.inputs[1].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

// --- keep_counted ---

void keep_counted_grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.KeepCounted", {b.grad_output(0), b.input(1)}, b.attributes()));
}

std::vector<RefTensor> keep_counted_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const Lines lines = counted_lines(y.desc.shape, c.attributes);
  const double rows = c.inputs[1].values[0] * static_cast<double>(c.attributes.i("factor", 1));
  for (size_t i = 0; i < y.values.size(); ++i) {
    if (static_cast<double>(static_cast<int64_t>(i) / lines.inner % lines.n) >= rows) {
      y.values[i] = 0;
    }
  }
  return {y};
}

std::unique_ptr<Kernel> keep_counted_create(const Problem& p) {
  const Lines lines = counted_lines(p.in(0).shape, p.attributes);
  const int64_t bytes = lines.inner * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([lines, bytes, attributes = p.attributes](const KernelArgs& a) {
    const int64_t kept = counted_rows(lines, attributes, *a.in<int64_t>(1)) * bytes;
    const int64_t all = lines.n * bytes;
    for (int64_t o = 0; o < lines.outer && bytes > 0; ++o) {
      const std::byte* x = a.inputs[0].data + o * all;
      std::byte* y = a.outputs[0].data + o * all;
      if (x != y) std::copy(x, x + kept, y);
      std::fill(y + kept, y + all, std::byte{0});
    }
  });
}

// --- require_count ---

std::unique_ptr<Kernel> require_count_create(const Problem& p) {
  const int64_t factor = p.attributes.i("factor", 1);
  const int64_t expected = p.attributes.i("expected", 0);
  return make_kernel([factor, expected, bytes = p.in(0).bytes()](const KernelArgs& a) {
    const int64_t found = *a.in<int64_t>(1) * factor;
    if (found != expected) {
      return input_error("the file was written for {} elements that are not 0, this batch has {}",
                         expected, found);
    }
    if (bytes > 0 && a.outputs[0].data != a.inputs[0].data) {
      std::memcpy(a.outputs[0].data, a.inputs[0].data, bytes);
    }
    return ok_status();
  });
}

// --- scatter_indices ---

Result<std::vector<TensorDesc>> scatter_indices_infer(const InferContext& c) {
  const auto components = static_cast<int64_t>(c.attributes.ints("dims").size());
  const Shape& shape = c.inputs[0].shape;
  const bool fits = components == 1 || (shape.rank() > 0 && shape[shape.rank() - 1] == components);
  if (c.inputs[0].dtype != DType::kInt64 || !fits) {
    return input_error("expected int64 tuples of {}, found {}", components, c.inputs[0].text());
  }
  return infer_counted(c);
}

// Maps element i by its component in the tuple and by whether its slice exists.
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

std::vector<RefTensor> scatter_indices_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const auto dims = c.attributes.ints("dims");
  const auto axis = static_cast<size_t>(c.attributes.i("axis", 0));
  const double rows = c.inputs[1].values[0] * static_cast<double>(c.attributes.i("factor", 1));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    const size_t component = dims.size() == 1 ? 0 : static_cast<size_t>(index.back());
    double& v = y[i];
    if (v < 0) v += static_cast<double>(dims[component]);
    if (static_cast<double>(index[axis]) >= rows) {
      v = component == 0 ? static_cast<double>(dims[0]) : 0;
    }
  }
  return {y};
}

std::unique_ptr<Kernel> scatter_indices_create(const Problem& p) {
  return make_kernel([made = rule(p.in(0).shape, p.attributes, 0), n = p.in(0).numel(),
                      factor = p.attributes.i("factor", 1)](const KernelArgs& a) mutable {
    made.rows = *a.in<int64_t>(1) * factor;
    for (int64_t i = 0; i < n; ++i) a.out<int64_t>(0)[i] = made(i, a.in<int64_t>(0)[i]);
  });
}

}  // namespace counted

void add_counted(Registry& registry) {
  using namespace counted;
  registry.add_own(make_op(
      "KeepCounted", {infer_counted, keep_counted_grad, keep_counted_reference},
      {{"copy", accepts_plain, keep_counted_create}}, {.min_inputs = 2, .inplace_inputs = {0}}));
  registry.add_own(make_op("RequireCount", {infer_counted, grad_of_copy, reference_of_view},
                           {{"copy", accepts_plain, require_count_create}},
                           {.min_inputs = 2, .inplace_inputs = {0}}));
  registry.add_own(make_op("ScatterIndices",
                           {scatter_indices_infer, nullptr, scatter_indices_reference},
                           {{"loops", accepts_plain, scatter_indices_create}}, {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
