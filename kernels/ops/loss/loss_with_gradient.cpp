// ofsdp.SoftmaxCrossEntropyLossWithGradient(dloss, scores, labels, weights): the loss of
// SoftmaxCrossEntropyLoss or ofsdp.NarrowCrossEntropyLoss and d scores at once, of scores [N, C]
// in float32, bfloat16 or float16, with the same attributes but reduction none. The loss is
// float32. Each row is read and written once, and has one exponential a class.
// importer/passes/loss_gradient.cpp makes it; class_loss.h has the formulas.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/float_width.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
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

// e[i] = e^(x[i] - max), and their sum; e may be x.
template <typename A>
[[gnu::always_inline]] inline Exponentials exponentials_by(const float* x, float* e, int64_t n) {
  constexpr int64_t kBlock = 1024;  // added up from the first-level cache
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

// Returns the loss of one label; diff, which may be x, gets factor times its gradient.
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

// Labels are cut into parts, one thread each. A row of 16-bit floats is computed in float32, in a
// row of the workspace that its part has. No sum crosses parts, so threads change no bits.
struct RowParts {
  int64_t parts, wide_row;  // wide_row: floats

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
