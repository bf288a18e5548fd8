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
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/core/planned_operands.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"
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

// ofsdp.SoftmaxCrossEntropyLossWithGradient(dloss, scores, labels, weights) returns both the loss
// that SoftmaxCrossEntropyLoss or ofsdp.NarrowCrossEntropyLoss computes, in float32, and d scores,
// for scores [N, C] in float32, bfloat16 or float16. Same attributes, except reduction none. It
// reads and writes each row once, with one exponential per class. importer/passes/joined_nodes.cpp
// makes it; class_loss.h has the formulas.

namespace loss_with_gradient {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 2, 3));
  if (c.inputs[1].shape.rank() != 2 || loss.shape.rank() != 0 || c.inputs[0].shape.rank() != 0) {
    return input_error("expected scores [N, C] and a scalar loss, found {}", c.inputs[1].text());
  }
  loss.dtype = DType::kFloat32;
  return std::vector{loss, c.inputs[1]};
}

// --- reference ---

std::vector<double> log_probabilities(const ClassLoss& l, std::vector<double> x) {
  for (auto row = x.begin(); row != x.end(); row += l.classes) {
    const double max = *std::max_element(row, row + l.classes);
    double sum = 0;
    for (int64_t c = 0; c < l.classes; ++c) sum += std::exp(row[c] - max);
    for (int64_t c = 0; c < l.classes; ++c) row[c] -= max + std::log(sum);
  }
  return x;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[1].desc.shape, c.attributes);
  const auto log_prob = log_probabilities(l, c.inputs[1].values);
  const std::vector<double>& labels = c.inputs[2].values;
  return {{c.output_descs[0], reference_class_loss(l, log_prob, labels, values_of(c, 3))},
          {c.output_descs[1],
           reference_class_loss_grad(l, c.inputs[0].values, log_prob, labels, values_of(c, 3))}};
}

// --- kernel ---

struct Exponentials {
  float max, sum;
};

// e[i] = e^(x[i] - max); returns max and sum. e may be x.
template <typename A>
[[gnu::always_inline]] inline Exponentials exponentials_by(const float* x, float* e, int64_t n) {
  constexpr int64_t kBlock = 1024;  // summed from the first-level cache
  Exponentials found{lane_max(x, n), 0};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) e[i] = vector_exp_flushed<A>(x[i] - found.max);
    found.sum += lane_sum(end - begin, [&](int64_t i) { return e[begin + i]; });
  }
  return found;
}
const auto exponentials =
    fastest_version<exponentials_by<SeparateMultiplyAdd>, exponentials_by<FusedMultiplyAdd>>();

OFSDP_MULTIARCH void scale_row(float* x, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

// Returns one label's loss; diff, which may be x, gets factor times the gradient.
double loss_row(const ClassLoss& l, const float* x, int64_t label, const float* weights,
                double factor, float* diff) {
  const ClassTargets t = class_targets(l, label, weights);
  double aimed = t.hit * static_cast<double>(x[label]);
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    aimed += t.spread * weight_of(weights, c) * static_cast<double>(x[c]);
  }
  const auto [max, sum] = exponentials(x, diff, l.classes);
  scale_row(diff, static_cast<float>(factor * t.total / static_cast<double>(sum)), l.classes);
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    diff[c] -= static_cast<float>(factor * t.spread * weight_of(weights, c));
  }
  diff[label] -= static_cast<float>(factor * t.hit);
  return t.total * (static_cast<double>(max) + std::log(static_cast<double>(sum))) - aimed;
}

// Labels are cut into parts, one thread each. A row of 16-bit floats is computed in float32, in the
// part's workspace row. No sum crosses parts, so the thread count does not change the bits.
struct RowParts {
  int64_t parts, wide_row;  // wide_row: floats per part

  template <typename T>
  static RowParts of(const ClassLoss& l) {
    const int64_t grain = 4096 / std::max<int64_t>(l.classes, 1) + 1;
    const int64_t parts = std::clamp<int64_t>(l.samples / grain, 1, pool_threads());
    return {parts, std::is_same_v<T, float> ? 0 : l.classes};
  }
  size_t workspace(const ClassLoss& l) const {
    return static_cast<size_t>(l.samples) * sizeof(double) +
           static_cast<size_t>(parts * wide_row) * sizeof(float);
  }
};

template <typename T>
double loss_row_of(const ClassLoss& l, const T* x, int64_t label, const float* weights,
                   double factor, float* wide, T* diff) {
  if constexpr (std::is_same_v<T, float>) {
    return loss_row(l, x, label, weights, factor, diff);
  } else {
    widen(dtype_of<T>(), x, wide, l.classes);
    const double loss = loss_row(l, wide, label, weights, factor, wide);
    narrow(wide, dtype_of<T>(), diff, l.classes);
    return loss;
  }
}

template <typename T, typename Index>
std::unique_ptr<Kernel> create_of(const Problem& p) {
  const ClassLoss l = class_loss(p.in(1).shape, p.attributes);
  const RowParts rows = RowParts::of<T>(l);
  auto run = [l, rows, weighted = p.has_in(3)](const KernelArgs& a) -> Status {
    const auto* labels = a.in<Index>(2);
    const float* weights = weighted ? a.in<float>(3) : nullptr;
    OFSDP_RETURN_IF_ERROR(check_labels(l, labels));
    const double mean = mean_scale(l, labels, weights);
    const double factor = mean * static_cast<double>(a.in<float>(0)[0]);
    auto* const losses = reinterpret_cast<double*>(a.workspace);
    auto* const wide_rows = reinterpret_cast<float*>(losses + l.samples);
    parallel_each(rows.parts, 1, [&](int64_t part) {
      float* const wide = wide_rows + part * rows.wide_row;
      const int64_t end = l.samples * (part + 1) / rows.parts;
      for (int64_t i = l.samples * part / rows.parts; i < end; ++i) {
        const T* x = a.in<T>(1) + i * l.classes;
        T* diff = a.out<T>(1) + i * l.classes;
        const bool counts = mean != 0 && !l.ignored(labels[i]);
        if (!counts) std::fill_n(diff, l.classes, T{0});
        losses[i] = counts ? loss_row_of(l, x, labels[i], weights, factor, wide, diff) : 0.0;
      }
    });
    double sum = 0;
    for (int64_t i = 0; i < l.samples; ++i) sum += losses[i];
    *a.out<float>(0) = static_cast<float>(sum * mean);
    return ok_status();
  };
  return make_kernel(run, rows.workspace(l));
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_stored_float(p.in(1).dtype, [&](auto score) {
    return with_labels(p.in(2).dtype,
                       [&](auto label) { return create_of<decltype(score), decltype(label)>(p); });
  });
}

Acceptance accepts(const Problem& p) {
  if (!is_32_or_16_bit_float(p.in(1).dtype)) return Acceptance::refuse("scores of another type");
  if (p.in(1).shape.rank() != 2) return Acceptance::refuse("scores that are not [N, C]");
  return accepts_class_loss(p, 2, p.in(1).dtype);
}

}  // namespace
}  // namespace loss_with_gradient

void add_loss_with_gradient(Registry& registry) {
  using namespace loss_with_gradient;
  registry.add_own(make_op("SoftmaxCrossEntropyLossWithGradient", {infer, nullptr, reference},
                           {{"rows", accepts, create}},
                           {.min_inputs = 3, .inplace_inputs = {1}, .inplace_output = 1}));
}

}  // namespace ofsdp::kernels::ops
