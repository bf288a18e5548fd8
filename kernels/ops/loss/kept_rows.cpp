// The rows whose labels a loss does not ignore; kernels/core/kept_rows.h has the format of `rows`.
//
//   ofsdp.KeptRows(labels [N]) -> rows, kept    attributes ignore_index, classes: kept is [N], the
//                                               labels that are not ignored, then the ignore_index
//   ofsdp.TakeKeptRows(x [N, ...], rows) -> y   y has the kept rows of x, then zeros
//   ofsdp.PutKeptRows(y [N, ...], rows) -> x    the rows of y at their places; other rows are zeros
//
// A label outside of 0..classes-1 is refused here, where its place is known. No gradients: they
// come into finished graphs (importer/passes/kept_rows.cpp).
#include "kernels/core/kept_rows.h"

#include <algorithm>
#include <cstring>

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

// f(row among the kept, its place)
void for_kept(const RefTensor& rows, const auto& f) {
  const int64_t kept = rows.desc.numel() - 1 - static_cast<int64_t>(rows[0]);
  for (int64_t i = 0; i < kept; ++i) f(i, static_cast<int64_t>(rows[1 + i]));
}

std::vector<RefTensor> take_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const int64_t width = y.desc.shape.numel(1, y.desc.shape.rank());
  for_kept(c.inputs[1], [&](int64_t i, int64_t place) {
    for (int64_t j = 0; j < width; ++j) y[i * width + j] = c.inputs[0][place * width + j];
  });
  return {y};
}

std::vector<RefTensor> put_reference(const ReferenceContext& c) {
  RefTensor x = zeros(c.output_descs[0]);
  const int64_t width = x.desc.shape.numel(1, x.desc.shape.rank());
  for_kept(c.inputs[1], [&](int64_t i, int64_t place) {
    for (int64_t j = 0; j < width; ++j) x[place * width + j] = c.inputs[0][i * width + j];
  });
  return {x};
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

struct RowMove {
  explicit RowMove(const TensorDesc& x)
      : rows(x.shape[0]),
        bytes(static_cast<size_t>(x.shape.numel(1, x.shape.rank())) * dtype_size(x.dtype)) {}
  int64_t grain() const { return static_cast<int64_t>((size_t{1} << 16) / (bytes + 1)) + 1; }

  int64_t rows;
  size_t bytes;  // of a row
};

std::unique_ptr<Kernel> create_take(const Problem& p) {
  return make_kernel([move = RowMove(p.in(0))](const KernelArgs& a) {
    const auto* rows = a.in<int64_t>(1);
    const int64_t kept = kept_of(rows, move.rows);
    parallel_each(move.rows, move.grain(), [&](int64_t i) {
      std::byte* y = a.outputs[0].data + static_cast<size_t>(i) * move.bytes;
      if (i >= kept) {
        std::memset(y, 0, move.bytes);
      } else {
        std::memcpy(y, a.inputs[0].data + static_cast<size_t>(rows[1 + i]) * move.bytes,
                    move.bytes);
      }
    });
  });
}

std::unique_ptr<Kernel> create_put(const Problem& p) {
  return make_kernel([move = RowMove(p.in(0))](const KernelArgs& a) {
    const auto* rows = a.in<int64_t>(1);
    const int64_t kept = kept_of(rows, move.rows);
    std::memset(a.outputs[0].data, 0, static_cast<size_t>(move.rows) * move.bytes);
    parallel_each(kept, move.grain(), [&](int64_t i) {
      std::memcpy(a.outputs[0].data + static_cast<size_t>(rows[1 + i]) * move.bytes,
                  a.inputs[0].data + static_cast<size_t>(i) * move.bytes, move.bytes);
    });
  });
}

}  // namespace
}  // namespace kept_rows

void add_kept_rows(Registry& registry) {
  using namespace kept_rows;
  registry.add_own(make_op("KeptRows", {infer_rows, nullptr, rows_reference},
                           {{"scan", accepts_plain, create_rows}}));
  registry.add_own(make_op("TakeKeptRows", {infer_moved, nullptr, take_reference},
                           {{"rows", accepts_plain, create_take}}, {.min_inputs = 2}));
  registry.add_own(make_op("PutKeptRows", {infer_moved, nullptr, put_reference},
                           {{"rows", accepts_plain, create_put}}, {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
