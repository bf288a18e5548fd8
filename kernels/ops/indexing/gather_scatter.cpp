// Gather and scatter by element (GatherElements, ScatterElements) and by slice, which index tuples
// name (GatherND, ScatterND).

#include "kernels/ops/indexing/gather_scatter.h"

#include <algorithm>

#include "kernels/base/budgets.h"
#include "kernels/core/element_types.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

// Builds the backward nodes of a scatter.
class ScatterGrad {
 public:
  ScatterGrad(GradBuilder& b, const std::string& scatter, const std::string& gather,
              const Attributes& carried)
      : b_(b), scatter_(scatter), gather_(gather), carried_(carried), dy_(b.grad_output(0)) {}

  void none() {
    if (b_.needs_grad(0)) b_.set_grad(0, scatter(dy_, zeros(b_, b_.desc(b_.input(2))), "none"));
    if (b_.needs_grad(2)) b_.set_grad(2, gather(dy_));
  }

  void add() {
    if (b_.needs_grad(0)) b_.set_grad(0, dy_);
    if (b_.needs_grad(2)) b_.set_grad(2, gather(dy_));
  }

  void mul() {
    if (b_.needs_grad(0)) b_.set_grad(0, scatter(dy_, b_.input(2), "mul"));
    if (b_.needs_grad(2)) b_.set_grad(2, other_factors());
  }

  void extreme() {
    const Ref y = b_.output(0);
    const Ref from_data = b_.emit1("Equal", {b_.input(0), y});
    const Ref from_updates = b_.emit1("Equal", {b_.input(2), gather(y)});
    const Ref ties = scatter(as_float(from_data), as_float(from_updates), "add");
    const Ref share = b_.div(dy_, ties);
    if (b_.needs_grad(0)) b_.set_grad(0, where(from_data, share));
    if (b_.needs_grad(2)) b_.set_grad(2, where(from_updates, gather(share)));
  }

 private:
  // Returns dy y / update; if the update is the only factor that is 0, dy times all other factors.
  Ref other_factors() {
    const Ref updates = b_.input(2);
    const Ref zero = b_.like(dy_, 0), one = b_.like(dy_, 1);
    const Ref is_zero = b_.emit1("Equal", {updates, zero});
    const Ref safe = b_.where(is_zero, one, updates);
    const Ref usual = b_.div(gather(b_.mul(dy_, b_.output(0))), safe);
    const Ref count = gather(scatter(zeros(b_, b_.desc(b_.input(0))), as_float(is_zero), "add"));
    const Ref rest = gather(b_.mul(dy_, scatter(b_.input(0), safe, "mul")));
    const Ref alone = where(b_.emit1("Equal", {count, one}), rest);
    return b_.where(is_zero, alone, usual);
  }

  Ref scatter(Ref data, Ref updates, const char* reduction) {
    Attributes attributes = carried_;
    attributes.set("reduction", std::string(reduction));
    return b_.emit1(scatter_, {data, b_.input(1), updates}, attributes);
  }
  Ref gather(Ref data) { return b_.emit1(gather_, {data, b_.input(1)}, carried_); }
  Ref as_float(Ref condition) { return b_.cast(condition, b_.desc(dy_).dtype); }
  Ref where(Ref condition, Ref value) { return b_.where(condition, value, b_.like(value, 0)); }

  GradBuilder& b_;
  const std::string& scatter_;
  const std::string& gather_;
  Attributes carried_;
  Ref dy_;
};

}  // namespace

Ref zeros(GradBuilder& b, const TensorDesc& desc) {
  const std::vector<std::byte> nothing(dtype_size(desc.dtype));
  const ConstantPtr zero = std::make_shared<const Constant>(Constant{{desc.dtype, {1}}, nothing});
  return b.emit1("ConstantOfShape", {b.ints(desc.shape.axes())}, {{"value", zero}});
}

Status check_element_indices(const InferContext& c) {
  const TensorDesc& data = c.inputs[0];
  const TensorDesc& indices = c.inputs[1];
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", 0), data.shape.rank()));
  const bool integers = indices.dtype == DType::kInt64 || indices.dtype == DType::kInt32;
  bool fits = indices.shape.rank() == data.shape.rank();
  for (int i = 0; fits && i < data.shape.rank(); ++i) {
    fits = i == axis || indices.shape[i] <= data.shape[i];
  }
  if (!integers || !fits) {
    return input_error("expected int64 or int32 indices inside of {} but for axis {}, found {}",
                       data.shape.text(), axis, indices.text());
  }
  return ok_status();
}

Acceptance accepts_index_type(const Problem& p) {
  return accept_if(p.all_plain() && is_index(p.in(1).dtype),
                   "not plain, or indices of another type");
}

size_t element_place(const Shape& data, const RefTensor& indices, int64_t i, int64_t axis) {
  auto index = unravel(indices.desc.shape, i);
  const auto at = static_cast<size_t>(axis < 0 ? axis + data.rank() : axis);
  index[at] = static_cast<int64_t>(indices[i]);
  if (index[at] < 0) index[at] += data[static_cast<int>(at)];
  return ravel(data, index);
}

Result<Shape> tuple_slices(const InferContext& c, int64_t batch_axes) {
  const Shape& data = c.inputs[0].shape;
  const Shape& indices = c.inputs[1].shape;
  const bool ranks = c.inputs[1].dtype == DType::kInt64 && indices.rank() >= 1 && batch_axes >= 0 &&
                     batch_axes < indices.rank() && batch_axes <= data.rank();
  const int64_t members = ranks ? indices[indices.rank() - 1] : 0;
  bool fits = ranks && members + batch_axes <= data.rank();
  for (int i = 0; fits && i < batch_axes; ++i) fits = data[i] == indices[i];
  if (!fits) {
    return input_error(
        "expected int64 indices [..., m] for m axes of {} behind {} batch axes, found {}",
        data.text(), batch_axes, c.inputs[1].text());
  }
  std::vector<int64_t> axes(indices.axes().begin(), indices.axes().end() - 1);
  axes.insert(axes.end(), data.axes().begin() + batch_axes + members, data.axes().end());
  return Shape(axes);
}

void for_tuple_elements(const Shape& data, const RefTensor& indices, int batch_axes,
                        const std::function<void(size_t, size_t)>& f) {
  const Shape& shape = indices.desc.shape;
  const auto members = shape[shape.rank() - 1];
  const int64_t slice = data.numel(batch_axes + static_cast<int>(members), data.rank());
  size_t to = 0;
  for (int64_t t = 0; t < shape.numel(0, shape.rank() - 1); ++t) {
    const auto index = unravel(Shape(std::vector(shape.axes().begin(), shape.axes().end() - 1)), t);
    int64_t at = 0;
    for (int axis = 0; axis < batch_axes; ++axis) {
      at = at * data[axis] + index[static_cast<size_t>(axis)];
    }
    for (int64_t i = 0; i < members; ++i) {
      const int64_t size = data[batch_axes + static_cast<int>(i)];
      const auto value = static_cast<int64_t>(indices[t * members + i]);
      at = at * size + (value < 0 ? value + size : value);
    }
    for (int64_t k = 0; k < slice; ++k) f(static_cast<size_t>(at * slice + k), to++);
  }
}

Result<ScatterKind> reduction_of(const Attributes& attributes) {
  const std::string name = attributes.s("reduction", "none");
  const auto kind = scatter_kind(name);
  if (!kind) {
    return input_error("attribute 'reduction': expected none, add, mul, max or min, found '{}'",
                       name);
  }
  return *kind;
}

double reduce_doubles(ScatterKind kind, double a, double b) {
  switch (kind) {
    case ScatterKind::kAdd:
      return a + b;
    case ScatterKind::kMul:
      return a * b;
    case ScatterKind::kMax:
      return std::max(a, b);
    case ScatterKind::kMin:
      return std::min(a, b);
    default:
      return b;
  }
}

void scatter_grad(GradBuilder& b, const std::string& scatter, const std::string& gather,
                  const Attributes& carried) {
  ScatterGrad grad(b, scatter, gather, carried);
  switch (*reduction_of(b.attributes())) {
    case ScatterKind::kAdd:
      return grad.add();
    case ScatterKind::kMul:
      return grad.mul();
    case ScatterKind::kMax:
    case ScatterKind::kMin:
      return grad.extreme();
    default:
      return grad.none();
  }
}

// GatherElements(data, indices), attribute axis: y has the shape of indices; each element comes
// from the same position in data, with the index as coordinate on `axis`; a negative index counts
// from the end. Any dtype. d data sums dy at the elements that were taken: a ScatterElements that
// adds.
// https://onnx.ai/onnx/operators/onnx__GatherElements.html
//
// ScatterElements(data, indices, updates), attributes axis, reduction: returns data with each
// update put at the same position, with the index as coordinate on `axis`; a negative index counts
// from the end. reduction none takes the last update; add, mul, max and min combine in index order.
// Gradients: gather_scatter.h.
// https://onnx.ai/onnx/operators/onnx__ScatterElements.html

namespace elements {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_element_indices(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[1].shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(
      0, b.emit1("ScatterElements", {zeros(b, b.desc(b.input(0))), b.input(1), b.grad_output(0)},
                 {{"axis", b.attributes().i("axis", 0)}, {"reduction", std::string("add")}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const size_t at =
        element_place(c.inputs[0].desc.shape, c.inputs[1], i, c.attributes.i("axis", 0));
    y.values.push_back(c.inputs[0].values[at]);
  }
  return {y};
}

// The plan does not account for the position tables, so they must stay small.
Acceptance accepts_places(const Problem& p) {
  const Lines lines = lines_along(p.in(1).shape, p.attributes.i("axis", 0));
  return accept_if(lines.outer <= kMaxTableEntries && lines.inner <= kMaxTableEntries,
                   "more lines than a table of their places may have");
}

Acceptance accepts(const Problem& p) {
  const Acceptance index = accepts_index_type(p);
  return index ? accepts_places(p) : index;
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_bits(dtype_size(p.in(0).dtype), [&]<typename T>(T) {
    const ElementPlaces places(p.in(0).shape, p.in(1).shape, p.attributes.i("axis", 0));
    return make_kernel([places, count = p.in(1).numel()](const KernelArgs& a) {
      const Indices indices(a.inputs[1]);
      OFSDP_RETURN_IF_ERROR(check_indices(indices, count, places.n));
      const T* data = a.in<T>(0);
      T* y = a.out<T>(0);
      places.for_each(indices, [&](int64_t from, int64_t to) { y[to] = data[from]; });
      return ok_status();
    });
  });
}

Result<std::vector<TensorDesc>> scatter_infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check_element_indices(c));
  OFSDP_RETURN_IF_ERROR(reduction_of(c.attributes).status());
  const TensorDesc updates{c.inputs[0].dtype, c.inputs[1].shape};
  if (c.inputs[2].dtype != updates.dtype || c.inputs[2].shape != updates.shape) {
    return input_error("expected updates {}, found {}", updates.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void elements_grad(GradBuilder& b) {
  scatter_grad(b, "ScatterElements", "GatherElements", {{"axis", b.attributes().i("axis", 0)}});
}

std::vector<RefTensor> scatter_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const ScatterKind kind = *reduction_of(c.attributes);
  for (size_t i = 0; i < c.inputs[2].values.size(); ++i) {
    double& v = y.values[element_place(y.desc.shape, c.inputs[1], static_cast<int64_t>(i),
                                       c.attributes.i("axis", 0))];
    v = reduce_doubles(kind, v, c.inputs[2].values[i]);
  }
  return {y};
}

Acceptance scatter_accepts(const Problem& p) {
  if (const Acceptance places = accepts_places(p); !places) return places;
  return accept_if(p.all_plain() && is_index(p.in(1).dtype) && is_number(p.in(0).dtype),
                   "not plain, or a type without a loop");
}

using Join = void (*)(std::byte* element, const std::byte* update);

struct Extent {
  ElementPlaces places;
  int64_t count;    // updates
  size_t bytes;     // data
  int64_t element;  // bytes per element
  Join join;
};

using Scatter = void (*)(const Extent&, const KernelArgs&);

template <ScatterKind kind, typename T>
void scatter(const Extent& e, const KernelArgs& a) {
  const T* updates = a.in<T>(2);
  T* y = a.out<T>(0);
  e.places.for_each(Indices(a.inputs[1]), [&](int64_t to, int64_t from) {
    y[to] = combined<kind>(y[to], updates[from]);
  });
}

// The rarer kinds share a loop that makes a call per element.
void scatter_by_join(const Extent& e, const KernelArgs& a) {
  e.places.for_each(Indices(a.inputs[1]), [&](int64_t to, int64_t from) {
    e.join(a.outputs[0].data + to * e.element, a.inputs[2].data + from * e.element);
  });
}

template <ScatterKind kind, typename T>
void join_one(std::byte* element, const std::byte* update) {
  T& y = *reinterpret_cast<T*>(element);
  y = combined<kind>(y, *reinterpret_cast<const T*>(update));
}

std::unique_ptr<Kernel> scatter_create(const Problem& p) {
  const ScatterKind given = *reduction_of(p.attributes);
  const DType dtype = p.in(0).dtype;
  const Extent extent{{p.in(0).shape, p.in(1).shape, p.attributes.i("axis", 0)},
                      p.in(1).numel(),
                      p.in(0).bytes(),
                      static_cast<int64_t>(dtype_size(dtype)),
                      with_reduction(given, dtype, []<ScatterKind kind, typename T>() -> Join {
                        return join_one<kind, T>;
                      })};
  const Scatter run = with_reduction(given, dtype, []<ScatterKind kind, typename T>() -> Scatter {
    if constexpr (kind == ScatterKind::kNone || kind == ScatterKind::kAdd) {
      return scatter<kind, T>;
    } else {
      return scatter_by_join;
    }
  });
  return make_kernel([extent, run](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(check_indices(Indices(a.inputs[1]), extent.count, extent.places.n));
    std::byte* y = a.outputs[0].data;
    if (extent.bytes > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, extent.bytes);
    run(extent, a);
    return ok_status();
  });
}

}  // namespace elements

void add_elements(Registry& registry) {
  using namespace elements;
  registry.add(make_op("GatherElements", {infer, grad, reference}, {{"lines", accepts, create}},
                       {.min_inputs = 2, .first_opset = 11, .narrow_types = true}));
  registry.add(make_op("ScatterElements", {scatter_infer, elements_grad, scatter_reference},
                       with_half_floats<scatter_accepts, scatter_create>("lines"),
                       {.min_inputs = 3, .first_opset = 11, .inplace_inputs = {0}}));
}

// GatherND(data, indices), attribute batch_dims b: each tuple in the last axis of indices names a
// slice of data, after b leading axes that both share; negative indices count from the end. Any
// dtype. d data sums dy over all tuples that took a slice, in order:
// ofsdp.GatherNDGrad(dy, indices), attributes shape (data's) and batch_dims.
// https://onnx.ai/onnx/operators/onnx__GatherND.html
//
// ScatterND(data, indices, updates), attribute reduction: returns data with updates put on the
// slices that the tuples in the last axis of indices name; negative indices count from the end.
// reduction none takes the last update; add, mul, max and min combine in tuple order. Gradients:
// gather_scatter.h. https://onnx.ai/onnx/operators/onnx__ScatterND.html

namespace tuples {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(Shape shape, tuple_slices(c, c.attributes.i("batch_dims", 0)));
  return std::vector{TensorDesc{c.inputs[0].dtype, std::move(shape)}};
}

int batch_dims(const Attributes& attributes) {
  return static_cast<int>(attributes.i("batch_dims", 0));
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.GatherNDGrad", {b.grad_output(0), b.input(1)},
                        {{"shape", b.desc(b.input(0)).shape.axes()},
                         {"batch_dims", b.attributes().i("batch_dims", 0)}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  for_tuple_elements(c.inputs[0].desc.shape, c.inputs[1], batch_dims(c.attributes),
                     [&](size_t from, size_t) { y.values.push_back(c.inputs[0].values[from]); });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  for_tuple_elements(dx.desc.shape, c.inputs[1], batch_dims(c.attributes),
                     [&](size_t to, size_t from) { dx.values[to] += c.inputs[0].values[from]; });
  return {dx};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const TuplePlaces places(p.in(0).shape, p.in(1).shape, batch_dims(p.attributes));
  const auto size = static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([places, size](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(places.check(a.in<int64_t>(1)));
    const int64_t bytes = places.slice * size;
    parallel_each(places.tuples, 65536 / (bytes + 1) + 1, [&](int64_t t) {
      std::memcpy(a.outputs[0].data + t * bytes,
                  a.inputs[0].data + places.place(a.in<int64_t>(1), t) * size,
                  static_cast<size_t>(bytes));
    });
    return ok_status();
  });
}

Acceptance accepts_grad(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  return accept_if(p.all_plain() && (dtype == DType::kFloat32 || dtype == DType::kFloat64),
                   "not plain float32 or float64");
}

template <typename T>
std::unique_ptr<Kernel> create_grad_as(const Problem& p) {
  const TuplePlaces places(p.out(0).shape, p.in(1).shape, batch_dims(p.attributes));
  return make_kernel([places, bytes = p.out(0).bytes()](const KernelArgs& a) {
    const auto* indices = a.in<int64_t>(1);
    OFSDP_RETURN_IF_ERROR(places.check(indices));
    T* dx = a.out<T>(0);
    if (bytes > 0) std::memset(dx, 0, bytes);
    // Threads split the columns, so each sum follows the tuple order.
    const int64_t grain = std::max<int64_t>(16, 65536 / std::max<int64_t>(places.tuples, 1));
    parallel_for(places.slice, grain, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < places.tuples; ++t) {
        T* to = dx + places.place(indices, t);
        const T* from = a.in<T>(0) + t * places.slice;
        for (int64_t j = begin; j < end; ++j) to[j] += from[j];
      }
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return p.in(0).dtype == DType::kFloat32 ? create_grad_as<float>(p) : create_grad_as<double>(p);
}

Result<std::vector<TensorDesc>> scatter_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Shape shape, tuple_slices(c, 0));
  OFSDP_RETURN_IF_ERROR(reduction_of(c.attributes).status());
  const TensorDesc updates{c.inputs[0].dtype, shape};
  if (c.inputs[2].dtype != updates.dtype || c.inputs[2].shape != updates.shape) {
    return input_error("expected updates {}, found {}", updates.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void tuples_grad(GradBuilder& b) { scatter_grad(b, "ScatterND", "GatherND", {}); }

std::vector<RefTensor> scatter_reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const ScatterKind kind = *reduction_of(c.attributes);
  for_tuple_elements(y.desc.shape, c.inputs[1], 0, [&](size_t to, size_t from) {
    y.values[to] = reduce_doubles(kind, y.values[to], c.inputs[2].values[from]);
  });
  return {y};
}

// Updates columns begin .. end-1 of the slices. Threads split the columns, so updates apply in
// tuple order.
using Columns = void (*)(const TuplePlaces&, const KernelArgs&, int64_t begin, int64_t end);

template <ScatterKind kind, typename T>
void scatter_columns(const TuplePlaces& places, const KernelArgs& a, int64_t begin, int64_t end) {
  const auto* indices = a.in<int64_t>(1);
  for (int64_t t = 0; t < places.tuples; ++t) {
    T* to = a.out<T>(0) + places.place(indices, t);
    const T* from = a.in<T>(2) + t * places.slice;
    for (int64_t j = begin; j < end; ++j) to[j] = combined<kind>(to[j], from[j]);
  }
}

std::unique_ptr<Kernel> scatter_create(const Problem& p) {
  const Columns columns = with_reduction(
      *reduction_of(p.attributes), p.in(0).dtype,
      []<ScatterKind kind, typename T>() -> Columns { return scatter_columns<kind, T>; });
  return make_kernel([places = TuplePlaces(p.in(0).shape, p.in(1).shape, 0), columns,
                      bytes = p.in(0).bytes()](const KernelArgs& a) {
    OFSDP_RETURN_IF_ERROR(places.check(a.in<int64_t>(1)));
    std::byte* y = a.outputs[0].data;
    if (bytes > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, bytes);
    const int64_t grain = std::max<int64_t>(16, 65536 / std::max<int64_t>(places.tuples, 1));
    parallel_for(places.slice, grain,
                 [&](int64_t begin, int64_t end) { columns(places, a, begin, end); });
    return ok_status();
  });
}

}  // namespace tuples

void add_tuples(Registry& registry) {
  using namespace tuples;
  registry.add(make_op("GatherND", {infer, grad, reference}, {{"slices", accepts_plain, create}},
                       {.min_inputs = 2, .first_opset = 11, .narrow_types = true}));
  registry.add_own(make_op("GatherNDGrad", {infer_shape_of("shape"), nullptr, grad_reference},
                           with_half_floats<accepts_grad, create_grad>("columns"),
                           {.min_inputs = 2}));
  registry.add(make_op("ScatterND", {scatter_infer, tuples_grad, scatter_reference},
                       with_half_floats<accepts_plain_numbers, scatter_create>("columns"),
                       {.min_inputs = 3, .first_opset = 11, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
