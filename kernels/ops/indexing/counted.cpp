// Operators with a result count that depends on the data: counted slices, Compress, NonZero.
//
// Operators over a bounded axis (importer/passes/specialize.h): along attribute axis, the first
// factor * count slices exist (factor is an attribute too); the others are padding. Input 1 is the
// count, int64[1], known at run time.
//
//   ofsdp.KeepCounted(x, count)      returns x with zeros in the padding; dx does the same to dy
//   ofsdp.RequireCount(x, count)     returns x if exactly `expected` (an attribute) slices exist,
//                                    for a graph in which the exporter fixed that number; another
//                                    number ends the run. dx = dy
//   ofsdp.ScatterIndices(indices, count)
//                                    returns the indices for a scatter into data that has one more
//                                    slice at the end of the first addressed axis. Attribute dims.
//                                    The last axis of indices holds tuples of dims.size()
//                                    components (one component: any shape, each element is a
//                                    tuple). Indices of existing slices stay, counted from the
//                                    front; padding goes to the extra slice: (dims[0], 0, ...).
//                                    No gradient

#include <algorithm>

#include "kernels/core/element_types.h"
#include "kernels/cpu/loops.h"
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

// Maps element i by the component in its tuple and by whether its slice exists.
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

// Compress(x, condition), attribute axis: keeps the slices of x along the axis (without it, the
// elements of x laid flat) where the condition is true; the condition may be shorter. It decides
// the shape, so it must be known while planning. Any dtype. dx is dy put back, zeros elsewhere.
// https://onnx.ai/onnx/operators/onnx__Compress.html

namespace compress {

std::vector<int64_t> kept_by(const Constant& condition) {
  std::vector<int64_t> kept;
  const auto flags = condition.as<uint8_t>();
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0) kept.push_back(static_cast<int64_t>(i));
  }
  return kept;
}

// Splits x along the axis; flat without one.
Lines lines_of_x(const Shape& shape, const Attributes& attributes) {
  if (!attributes.has("axis")) return {1, shape.numel(), 1};
  return lines_along(shape, attributes.i("axis", 0));
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const Constant* condition = c.constant(1);
  if (condition == nullptr) {
    return input_error(
        "input 'condition' must be known before the run, found a computed value: the number of its "
        "true elements is the shape of the output");
  }
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", 0), std::max(x.shape.rank(), 1)));
  const bool flat = !c.attributes.has("axis");
  const int64_t n = flat ? x.numel() : x.shape[axis];
  const auto kept = kept_by(*condition);
  if (condition->desc.dtype != DType::kBool || (!kept.empty() && kept.back() >= n)) {
    return input_error("expected a bool condition for {} elements, found {}", n,
                       condition->desc.text());
  }
  const auto count = static_cast<int64_t>(kept.size());
  if (flat) return std::vector{TensorDesc{x.dtype, {count}}};
  TensorDesc y{x.dtype, x.shape};
  y.shape[axis] = count;
  return std::vector{y};
}

void grad(GradBuilder& b) {
  const Ref x = b.input(0);
  const auto kept = kept_by(*b.constant_value(b.input(1)));
  const bool flat = !b.attributes().has("axis");
  std::vector<int64_t> shape = b.desc(x).shape.axes();
  if (flat) shape = {b.desc(x).numel()};
  const Ref dx = b.emit1("ofsdp.GatherGrad", {b.grad_output(0), b.ints(kept)},
                         {{"axis", b.attributes().i("axis", 0)}, {"shape", shape}});
  b.set_grad(0, reshape_like(b, dx, x));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_of_x(c.inputs[0].desc.shape, c.attributes);
  for (int64_t i = 0; i < c.inputs[0].desc.numel(); ++i) {
    const auto k = static_cast<size_t>(i / lines.inner % lines.n);
    const auto& condition = c.inputs[1].values;
    if (k < condition.size() && condition[k] != 0) y.values.push_back(c.inputs[0][i]);
  }
  return {y};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.all_plain() && p.constant(1) != nullptr, "not plain, or a computed condition");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = lines_of_x(p.in(0).shape, p.attributes);
  const auto bytes = lines.inner * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([lines, bytes, kept = kept_by(*p.constant(1))](const KernelArgs& a) {
    std::byte* to = a.outputs[0].data;
    for (int64_t o = 0; o < lines.outer && bytes > 0; ++o) {
      for (int64_t k : kept) {
        std::memcpy(to, a.inputs[0].data + (o * lines.n + k) * bytes, static_cast<size_t>(bytes));
        to += bytes;
      }
    }
  });
}

}  // namespace compress

void add_compress(Registry& registry) {
  using namespace compress;
  registry.add(make_op("Compress", {infer, grad, reference}, {{"copies", accepts, create}},
                       {.min_inputs = 2, .first_opset = 9, .constant_inputs = {1}}));
}

// NonZero(x): the indices of all elements that are not 0, as [rank, count] in row-major order;
// [1, count] if x is a scalar. The values decide the shape, so x must be known while planning. No
// gradient. https://onnx.ai/onnx/operators/onnx__NonZero.html
//
// ofsdp.FoundIndices(x): NonZero for an x that only the run computes. Returns indices
// [rank, numel]: first all that NonZero finds, then the last of these again (0 if there is none),
// so that a node that reads rows by them reads no other rows; and how many were found, int64[1]. No
// gradient. Used by importer/passes/specialize.h.

namespace non_zero {

// Returns flat indices in order.
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

// The importer folds it, so it may be slow: planning computes the values.
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

// Returns the bits in x that tell whether it is 0. -0.0 is 0, so a float's sign does not count.
uint64_t value_bits(DType dtype) {
  const uint64_t all = ~uint64_t{0} >> (64 - 8 * dtype_size(dtype));
  return is_floating(dtype) ? all >> 1 : all;
}

// Writes flat indices to row 0 first, then splits them in place.
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
