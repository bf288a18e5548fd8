// Gather(data, indices), attribute axis: y[.., i.., ..] = data[.., indices[i..], ..]; a negative
// index counts from the end. data may have any dtype. An index outside the axis is an error in the
// data.
//
// Gradient: ofsdp.GatherGrad(dy, indices, base), attributes axis and shape (data's): d
// data[.., k, ..] = base + the sum of dy over all outputs that took k, in order. base is another
// part of the same gradient (for a tied weight): it may be absent, and dx may overwrite it, so that
// only rows that were taken change.
// https://onnx.ai/onnx/operators/onnx__Gather.html

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/base/status.h"
#include "kernels/cpu/indexed.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/stored_matrix.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/matmul/stored_forms.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace gather {

// data is [outer, n, inner], y is [outer, count, inner].
struct Extent {
  int64_t outer, n, inner, count;
};

Extent extent(const Shape& data, const Shape& indices, int64_t axis) {
  const int at = static_cast<int>(axis < 0 ? axis + data.rank() : axis);
  return {data.numel(0, at), data[at], data.numel(at + 1, data.rank()), indices.numel()};
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& data = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", 0), data.shape.rank()));
  if (c.inputs[1].dtype != DType::kInt64 && c.inputs[1].dtype != DType::kInt32) {
    return input_error("expected indices of int64 or int32, found {}", c.inputs[1].text());
  }
  std::vector<int64_t> shape = data.shape.axes();
  shape.erase(shape.begin() + axis);
  const auto& put = c.inputs[1].shape.axes();
  shape.insert(shape.begin() + axis, put.begin(), put.end());
  return std::vector{TensorDesc{data.dtype, Shape(shape)}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.GatherGrad", {b.grad_output(0), b.input(1)},
                        {{"axis", b.attributes().i("axis", 0)},
                         {"shape", b.desc(b.input(0)).shape.axes()}}));
}

// Calls f(element of data, element of y) in y's order.
void reference_walk(const Extent& e, const std::vector<double>& indices, const auto& f) {
  for (int64_t o = 0; o < e.outer; ++o) {
    for (int64_t i = 0; i < e.count; ++i) {
      const auto index = static_cast<int64_t>(indices[static_cast<size_t>(i)]);
      const int64_t k = index < 0 ? index + e.n : index;
      for (int64_t j = 0; j < e.inner; ++j) {
        f(static_cast<size_t>((o * e.n + k) * e.inner + j),
          static_cast<size_t>((o * e.count + i) * e.inner + j));
      }
    }
  }
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const Extent e =
      extent(c.inputs[0].desc.shape, c.inputs[1].desc.shape, c.attributes.i("axis", 0));
  reference_walk(e, c.inputs[1].values,
                 [&](size_t from, size_t to) { y.values[to] = c.inputs[0].values[from]; });
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  if (c.inputs.size() > 2) dx.values = c.inputs[2].values;
  const Extent e = extent(dx.desc.shape, c.inputs[1].desc.shape, c.attributes.i("axis", 0));
  reference_walk(e, c.inputs[1].values,
                 [&](size_t to, size_t from) { dx.values[to] += c.inputs[0].values[from]; });
  return {dx};
}

Acceptance accepts_grad(const Problem& p) {
  return is_floating(p.in(0).dtype) ? accepts_index_type(p) : Acceptance::refuse("not floats");
}

template <typename Index>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const Extent e = extent(p.in(0).shape, p.in(1).shape, p.attributes.i("axis", 0));
  const auto bytes = e.inner * static_cast<int64_t>(dtype_size(p.in(0).dtype));
  return make_kernel([e, bytes](const KernelArgs& a) {
    const Index* indices = a.in<Index>(1);
    OFSDP_RETURN_IF_ERROR(check_indices(indices, e.count, e.n));
    const int64_t grain = (int64_t{1} << 16) / std::max<int64_t>(bytes, 1) + 1;
    parallel_each(e.outer * e.count, grain, [&](int64_t row) {
      const int64_t from = row / e.count * e.n + wrapped(indices[row % e.count], e.n);
      std::memcpy(a.outputs[0].data + row * bytes, a.inputs[0].data + from * bytes,
                  static_cast<size_t>(bytes));
    });
    return ok_status();
  });
}

constexpr int64_t kColumns = 256;  // per thread at a time

// Sorts the outputs by the row they took; outputs that took the same row keep their order.
void sort_by_row(const auto* indices, const Extent& e, int64_t* order) {
  std::iota(order, order + e.count, int64_t{0});
  std::sort(order, order + e.count, [&](int64_t a, int64_t b) {
    const int64_t row_a = wrapped(indices[a], e.n), row_b = wrapped(indices[b], e.n);
    return row_a != row_b ? row_a < row_b : a < b;
  });
}

// Adds dy to columns begin .. end-1 of every row that was taken. 16-bit floats are summed in
// float32.
template <typename Index, typename T>
void scatter_columns(const Extent& e, const T* dy, const Index* indices, const int64_t* order,
                     T* dx, int64_t begin, int64_t end) {
  RealOf<T> sum[kColumns];
  for (int64_t i = 0; i < e.count;) {
    const int64_t row = wrapped(indices[order[i]], e.n);
    T* to = dx + row * e.inner;
    for (int64_t j = begin; j < end; ++j) sum[j - begin] = as_real(to[j]);
    for (; i < e.count && wrapped(indices[order[i]], e.n) == row; ++i) {
      const T* from = dy + order[i] * e.inner;
      for (int64_t j = begin; j < end; ++j) sum[j - begin] += as_real(from[j]);
    }
    for (int64_t j = begin; j < end; ++j) to[j] = stored<T>(sum[j - begin]);
  }
}

// Sets dx to base, or to zeros, before dy is added.
void start_grad(const KernelArgs& a, bool based) {
  std::byte* dx = a.outputs[0].data;
  if (based && a.inputs[2].data == dx) return;
  parallel_for(static_cast<int64_t>(a.outputs[0].desc.bytes()), 1 << 18,
               [&](int64_t begin, int64_t end) {
                 const auto bytes = static_cast<size_t>(end - begin);
                 if (based) {
                   std::memcpy(dx + begin, a.inputs[2].data + begin, bytes);
                 } else {
                   std::memset(dx + begin, 0, bytes);
                 }
               });
}

template <typename Index, typename T>
std::unique_ptr<Kernel> create_grad_as(const Problem& p) {
  const Extent e = extent(p.out(0).shape, p.in(1).shape, p.attributes.i("axis", 0));
  return make_kernel(
      [e, based = p.has_in(2)](const KernelArgs& a) {
        const Index* indices = a.in<Index>(1);
        OFSDP_RETURN_IF_ERROR(check_indices(indices, e.count, e.n));
        auto* order = reinterpret_cast<int64_t*>(a.workspace);
        sort_by_row(indices, e, order);
        start_grad(a, based);
        const int64_t blocks = (e.inner + kColumns - 1) / kColumns;
        const int64_t work = std::max<int64_t>(e.count * std::min(e.inner, kColumns), 1);
        parallel_each(e.outer * blocks, 65536 / work + 1, [&](int64_t item) {
          const int64_t o = item / blocks, begin = item % blocks * kColumns;
          scatter_columns(e, a.in<T>(0) + o * e.count * e.inner, indices, order,
                          a.out<T>(0) + o * e.n * e.inner, begin,
                          std::min(begin + kColumns, e.inner));
        });
        return ok_status();
      },
      static_cast<size_t>(e.count) * sizeof(int64_t));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_index(p.in(1).dtype, [&](auto index) { return create_as<decltype(index)>(p); });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return with_index(p.in(1).dtype, [&](auto index) {
    using Index = decltype(index);
    if (p.in(0).dtype == DType::kFloat64) return create_grad_as<Index, double>(p);
    return with_stored_float(p.in(0).dtype,
                             [&](auto zero) { return create_grad_as<Index, decltype(zero)>(p); });
  });
}

void gather_grad_body(BodyBuilder& b) {
  const Shape shape(b.attributes().ints("shape"));
  const int64_t axis = b.attributes().i("axis", 0);
  const int at = static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
  const Ref rows = scatter_along(b, b.input(0), b.input(1), at, shape[at]);
  const Ref base = b.input(2);
  b.set_output(0, base ? b.add(base, rows) : rows);
}

}  // namespace gather

void add_gather(Registry& registry) {
  using namespace gather;
  registry.add(make_op("Gather", {infer, grad, reference}, {{"rows", accepts_index_type, create}},
                       {.min_inputs = 2, .narrow_types = true, .lookup_inputs = {0}}));
  registry.add_own(make_op("GatherGrad", {infer_shape_of("shape"), nullptr, grad_reference},
                           {{"columns", accepts_grad, create_grad}},
                           {.min_inputs = 2, .body = gather_grad_body, .inplace_inputs = {2}}));
}

// com.microsoft.GatherBlockQuantized(data, indices, scales, zero_points): y = Gather(w, indices)
// along gather_axis (0), with
//
//   w = (data - zero_point) * scale
//
// and a scale for each block of block_size (128) neighbours along quantize_axis (1). uint8 data
// packs elements of `bits` (4, 8) along the last axis; zero points have the same form and are 8 or
// 128 if missing. int4 and uint4 data has 0 there. The importer passes 4-bit data as bytes, with
// ofsdp_shape and ofsdp_type (TensorProto.DataType). Only rows that are taken become float32. No
// gradient: the table is frozen.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized

namespace gather_block {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Table t, table_of(c.attributes, c.inputs[0]));
  OFSDP_RETURN_IF_ERROR(matrix_of(t, c.inputs).status());
  if (c.inputs[1].dtype != DType::kInt64 && c.inputs[1].dtype != DType::kInt32) {
    return input_error("expected indices of int64 or int32, found {}", c.inputs[1].text());
  }
  std::vector<int64_t> axes = t.shape.axes();
  axes.erase(axes.begin() + t.gather);
  const auto& put = c.inputs[1].shape.axes();
  axes.insert(axes.begin() + t.gather, put.begin(), put.end());
  return std::vector{TensorDesc{DType::kFloat32, Shape(axes)}};
}

// --- reference ---

double integer_at(const RefTensor& packed, StoredType type, int64_t i) {
  if (stored_bits(type) == 8) return packed[i];
  const auto byte = static_cast<int64_t>(packed[i / 2]);
  const int64_t q = i % 2 == 0 ? byte % 16 : byte / 16;
  return static_cast<double>(type == StoredType::kInt4 && q > 7 ? q - 16 : q);
}

double value_at(const ReferenceContext& c, const Table& t, const std::vector<int64_t>& index) {
  std::vector<int64_t> block = index;
  block[static_cast<size_t>(t.quantize)] /= t.block;
  const Shape scales = t.scales();
  const auto k = static_cast<int64_t>(ravel(scales, block));
  double zero = !t.bytes ? 0 : stored_bits(t.type) == 4 ? 8 : 128;
  if (const RefTensor* zeros = given(c.inputs, 3); zeros != nullptr) {
    const int64_t last = scales[scales.rank() - 1];
    const int64_t padded = t.bytes && stored_bits(t.type) == 4 ? (last + 1) / 2 * 2 : last;
    zero = integer_at(*zeros, t.type, k / last * padded + k % last);
  }
  const auto at = static_cast<int64_t>(ravel(t.shape, index));
  return (integer_at(c.inputs[0], t.type, at) - zero) * c.inputs[2][k];
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Table t = *table_of(c.attributes, c.inputs[0].desc);
  RefTensor y = zeros(c.output_descs[0]);
  const Shape& taken = c.inputs[1].desc.shape;
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const std::vector<int64_t> place = unravel(y.desc.shape, i);
    std::vector<int64_t> index(place.begin(), place.begin() + t.gather), at;
    at.assign(place.begin() + t.gather, place.begin() + t.gather + taken.rank());
    const auto k = static_cast<int64_t>(c.inputs[1][static_cast<int64_t>(ravel(taken, at))]);
    index.push_back(k < 0 ? k + t.shape[t.gather] : k);
    index.insert(index.end(), place.begin() + t.gather + taken.rank(), place.end());
    y[i] = value_at(c, t, index);
  }
  return {y};
}

// --- kernel ---

template <typename Index>
std::unique_ptr<Kernel> create_as(const Problem& p) {
  const Table t = *table_of(p.attributes, p.in(0));
  const StoredMatrix m = *matrix_of(t, p.inputs);
  const int64_t outer = t.shape.numel(0, t.gather), n = t.shape[t.gather],
                inner = t.shape.numel(t.gather + 1, t.shape.rank()), count = p.in(1).numel();
  return make_kernel([=](const KernelArgs& a) {
    const Index* indices = a.in<Index>(1);
    OFSDP_RETURN_IF_ERROR(check_indices(indices, count, n));
    const StoredBytes bytes{a.inputs[0].data, a.inputs[2].data,
                            a.inputs.size() > 3 ? a.inputs[3].data : nullptr, nullptr};
    parallel_each(outer * count, 8192 / std::max<int64_t>(inner, 1) + 1, [&](int64_t run) {
      const int64_t from = (run / count * n + wrapped(indices[run % count], n)) * inner;
      const int64_t rows = std::max<int64_t>(inner / std::max<int64_t>(m.columns, 1), 1);
      const int64_t columns = std::min(inner, m.columns);
      if (columns == 0) return;
      widen_tile(m, bytes, {from / m.columns, rows, from % m.columns, columns},
                 a.out<float>(0) + run * inner, columns);
    });
    return ok_status();
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_index(p.in(1).dtype, [&](auto index) { return create_as<decltype(index)>(p); });
}

}  // namespace gather_block

void add_gather_block_quantized(Registry& registry) {
  using namespace gather_block;  // NOLINT: the operator's own names
  OpDef op = make_op("GatherBlockQuantized", {infer, no_grad, reference},
                     {{"rows", accepts_plain, create}},
                     {.domain = "com.microsoft",
                      .min_inputs = 3,
                      .float32_only = true,
                      .float32_inputs = {1, 2, 3},
                      .stored_inputs = {0, 2, 3}});
  registry.add(std::move(op));
}

}  // namespace ofsdp::kernels::ops
