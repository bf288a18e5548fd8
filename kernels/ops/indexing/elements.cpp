// GatherElements(data, indices), attribute axis: y has the shape of indices, and each element is
// that of data at the same place but for the axis, where the index says; a negative one counts from
// the end. Any dtype. d data sums dy where it was taken: a ScatterElements that adds.
// https://onnx.ai/onnx/operators/onnx__GatherElements.html
//
// ScatterElements(data, indices, updates), attributes axis, reduction: data with each update put on
// the element at the same place but for the axis, where the index says; a negative one counts from
// the end. reduction none takes the last update, add, mul, max and min combine in the order of the
// indices. Gradients: gather_scatter.h. https://onnx.ai/onnx/operators/onnx__ScatterElements.html
#include "kernels/base/budgets.h"
#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/indexed.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
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

// No plan counts the tables of places.
Acceptance accepts_places(const Problem& p) {
  const Lines lines = lines_along(p.in(1).shape, p.attributes.i("axis", 0));
  return accept_if(lines.outer <= kMostTableEntries && lines.inner <= kMostTableEntries,
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
  int64_t count;    // of updates
  size_t bytes;     // of the data
  int64_t element;  // bytes
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

// The rarer kinds share a loop that calls for each element.
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
                       {.min_inputs = 2, .first_opset = 11}));
  registry.add(make_op("ScatterElements", {scatter_infer, elements_grad, scatter_reference},
                       with_half_floats<scatter_accepts, scatter_create>("lines"),
                       {.min_inputs = 3, .first_opset = 11, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
