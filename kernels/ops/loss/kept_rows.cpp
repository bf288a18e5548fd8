// The rows with labels that a loss does not ignore. kernels/core/planned_operands.h has the format
// of `rows`.
//
//   ofsdp.KeptRows(labels [N]) -> rows, kept    attributes ignore_index, classes: kept is [N], the
//                                               labels that are not ignored, then the ignore_index
//   ofsdp.TakeKeptRows(x [N, ...], rows) -> y   y has x's kept rows first, then zeros
//   ofsdp.PutKeptRows(y [N, ...], rows) -> x    x has y's rows at their places, zeros elsewhere
//
// A label outside 0..classes-1 is refused here, where the index is known. No gradients: a pass
// inserts these nodes into finished graphs (importer/passes/joined_nodes.cpp).

#include <algorithm>
#include <cstring>

#include "kernels/core/planned_operands.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace kept_rows {
namespace {

// --- infer ---

Result<std::vector<TensorDesc>> infer_rows(const InferContext& c) {
  const TensorDesc& labels = c.inputs[0];
  if (labels.shape.rank() != 1 ||
      (labels.dtype != DType::kInt64 && labels.dtype != DType::kInt32)) {
    return input_error("expected labels [N] of int32 or int64, found {}", labels.text());
  }
  return std::vector{TensorDesc{DType::kInt64, Shape{labels.shape[0] + 1}}, labels};
}

Result<std::vector<TensorDesc>> infer_moved(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() == 0 || !are_kept_rows(c.inputs[1], x.shape[0])) {
    return input_error("expected x [N, ...] and int64 [N + 1], found {} and {}", x.text(),
                       c.inputs[1].text());
  }
  return infer_same(c);
}

// --- reference ---

std::vector<RefTensor> rows_reference(const ReferenceContext& c) {
  const auto ignored = static_cast<double>(c.attributes.i("ignore_index", -100));
  const std::vector<double>& labels = c.inputs[0].values;
  RefTensor rows{c.output_descs[0], {0}}, kept{c.output_descs[1], {}};
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == ignored) continue;
    rows.values.push_back(static_cast<double>(i));
    kept.values.push_back(labels[i]);
  }
  rows.values[0] = static_cast<double>(labels.size() - kept.values.size());
  rows.values.resize(labels.size() + 1, 0);
  kept.values.resize(labels.size(), ignored);
  return {rows, kept};
}

template <bool put>
std::vector<RefTensor> moved_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor& rows = c.inputs[1];
  const int64_t width = y.desc.shape.numel(1, y.desc.shape.rank());
  const int64_t kept = y.desc.shape[0] - static_cast<int64_t>(rows[0]);
  for (int64_t i = 0; i < kept; ++i) {
    const auto place = static_cast<int64_t>(rows[1 + i]);
    const int64_t from = put ? i : place, to = put ? place : i;
    for (int64_t j = 0; j < width; ++j) y[to * width + j] = c.inputs[0][from * width + j];
  }
  return {y};
}

// --- kernels ---

template <typename Index>
std::unique_ptr<Kernel> create_rows_as(const Problem& p) {
  ClassLoss loss;
  loss.samples = p.in(0).numel();
  loss.classes = p.attributes.i("classes", 0);
  loss.ignores = true;
  loss.ignore_index = p.attributes.i("ignore_index", -100);
  return make_kernel([loss](const KernelArgs& a) -> Status {
    const auto* labels = a.in<Index>(0);
    OFSDP_RETURN_IF_ERROR(check_labels(loss, labels));
    auto* const rows = a.out<int64_t>(0);
    auto* const kept_labels = a.out<Index>(1);
    int64_t kept = 0;
    for (int64_t i = 0; i < loss.samples; ++i) {
      if (loss.ignored(labels[i])) continue;
      rows[1 + kept] = i;
      kept_labels[kept++] = labels[i];
    }
    rows[0] = loss.samples - kept;
    std::fill(rows + 1 + kept, rows + 1 + loss.samples, int64_t{0});
    std::fill(kept_labels + kept, kept_labels + loss.samples,
              static_cast<Index>(loss.ignore_index));
    return ok_status();
  });
}

std::unique_ptr<Kernel> create_rows(const Problem& p) {
  return with_labels(p.in(0).dtype, [&](auto label) { return create_rows_as<decltype(label)>(p); });
}

template <bool put>
std::unique_ptr<Kernel> create_moved(const Problem& p) {
  const Shape& shape = p.in(0).shape;
  const int64_t n = shape[0];
  const size_t bytes =
      static_cast<size_t>(shape.numel(1, shape.rank())) * dtype_size(p.in(0).dtype);
  return make_kernel([n, bytes](const KernelArgs& a) {
    const auto* rows = a.in<int64_t>(1);
    const std::byte* const x = a.inputs[0].data;
    std::byte* const y = a.outputs[0].data;
    const int64_t kept = kept_of(rows, n);
    const int64_t first = put ? 0 : kept;  // first row that may stay zero
    std::memset(y + static_cast<size_t>(first) * bytes, 0, static_cast<size_t>(n - first) * bytes);
    const auto grain = static_cast<int64_t>((size_t{1} << 16) / (bytes + 1)) + 1;
    parallel_each(kept, grain, [&](int64_t i) {
      const int64_t place = rows[1 + i];
      std::memcpy(y + static_cast<size_t>(put ? place : i) * bytes,
                  x + static_cast<size_t>(put ? i : place) * bytes, bytes);
    });
  });
}

}  // namespace
}  // namespace kept_rows

void add_kept_rows(Registry& registry) {
  using namespace kept_rows;
  registry.add_own(make_op("KeptRows", {infer_rows, nullptr, rows_reference},
                           {{"scan", accepts_plain, create_rows}}));
  registry.add_own(make_op("TakeKeptRows", {infer_moved, nullptr, moved_reference<false>},
                           {{"rows", accepts_plain, create_moved<false>}}, {.min_inputs = 2}));
  registry.add_own(make_op("PutKeptRows", {infer_moved, nullptr, moved_reference<true>},
                           {{"rows", accepts_plain, create_moved<true>}}, {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
