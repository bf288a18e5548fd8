// The common part of NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss and NarrowCrossEntropyLoss:
// log-probabilities [N, C, d...] and labels [N, d...] to a loss. Below, p is the log-probability, w
// the class weights or 1, and s the label smoothing, 0 for NegativeLogLikelihoodLoss:
//
//   loss_i = -(1-s) w_y p_iy - s/C sum_c w_c p_ic       0 if label y is the ignore_index
//   none: [N, d...]    sum: their sum    mean: their sum / sum of w_y over kept labels; 0 if that
//   is 0
//
// d loss_i / d p_ic = -t_c, and through p = log_softmax(x): d loss_i / d x_c = e^p_ic sum(t) - t_c,
// with t_c = (1-s) w_y [c = y] + s/C w_c. Sums run in double, in sample order, on one thread.
//
// A label outside 0..C-1 is an input error.
#pragma once

#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

enum class LossReduction { kNone, kMean, kSum };

struct ClassLoss {
  int64_t samples = 0;  // N
  int64_t classes = 0;  // C
  int64_t inner = 1;    // product of d...
  LossReduction reduction = LossReduction::kMean;
  bool ignores = false;  // has an ignore_index
  int64_t ignore_index = 0;
  double smoothing = 0;

  int64_t labels() const { return samples * inner; }
  bool ignored(int64_t label) const { return ignores && label == ignore_index; }
  // Returns where label i's class 0 lies in [N, C, d...]; classes are `inner` apart.
  int64_t first(int64_t i) const { return i / inner * classes * inner + i % inner; }
};

ClassLoss class_loss(const Shape& scores, const Attributes& attributes);

// Returns the loss's desc; checks scores, labels, and weights (input `weights`, if present).
Result<TensorDesc> infer_class_loss(const InferContext& c, size_t labels, size_t weights);

// Adds ofsdp.DistillationLoss (distillation_loss.cpp), a class loss with a teacher's targets.
void add_distillation_loss(Registry& registry);

// Returns an error if a label is no class and not ignored. `labels` are int32_t or int64_t.
Status check_labels(const ClassLoss& l, const auto* labels);

// Returns the factor for each label's loss: 1, or 1 / the weight sum over kept labels if the
// reduction is a mean; 0 if that sum is 0.
template <typename Index>
double mean_scale(const ClassLoss& l, const Index* labels, const float* weights);

inline double weight_of(const float* weights, int64_t label) {
  return weights == nullptr ? 1.0 : static_cast<double>(weights[label]);
}

// A label's t_c: spread w_c for every class, plus `hit` for the label's class; total is their sum.
struct ClassTargets {
  double hit = 0, spread = 0, total = 0;
};
ClassTargets class_targets(const ClassLoss& l, int64_t label, const float* weights);

// Computes every label's loss from log_prob(label, class), a float.
template <typename Index, typename LogProb>
Status sum_class_losses(const ClassLoss& l, const Index* labels, const float* weights, float* loss,
                        const LogProb& log_prob) {
  OFSDP_RETURN_IF_ERROR(check_labels(l, labels));
  const double spread = l.smoothing / static_cast<double>(l.classes);
  double sum = 0;
  for (int64_t i = 0; i < l.labels(); ++i) {
    double value = 0;
    if (!l.ignored(labels[i])) {
      value = -(1 - l.smoothing) * weight_of(weights, labels[i]) *
              static_cast<double>(log_prob(i, labels[i]));
      double all = 0;
      for (int64_t c = 0; l.smoothing != 0 && c < l.classes; ++c) {
        all += weight_of(weights, c) * static_cast<double>(log_prob(i, c));
      }
      value -= spread * all;
    }
    if (l.reduction == LossReduction::kNone) loss[i] = static_cast<float>(value);
    sum += value;
  }
  if (l.reduction == LossReduction::kNone) return ok_status();
  const double scale = mean_scale(l, labels, weights);
  *loss = scale == 0 ? 0.0f : static_cast<float>(sum * scale);
  return ok_status();
}

// Calls f(Index{}) with the label type.
auto with_labels(DType labels, const auto& f) {
  return labels == DType::kInt64 ? f(int64_t{}) : f(int32_t{});
}

// Loss and gradient in double, for the references. weights and log_prob are empty if absent.
std::vector<double> reference_class_loss(const ClassLoss& l, const std::vector<double>& log_prob,
                                         const std::vector<double>& labels,
                                         const std::vector<double>& weights);
std::vector<double> reference_class_loss_grad(const ClassLoss& l,
                                              const std::vector<double>& diff_loss,
                                              const std::vector<double>& log_prob,
                                              const std::vector<double>& labels,
                                              const std::vector<double>& weights);

// Returns a reference's input i; empty if absent.
inline std::vector<double> values_of(const ReferenceContext& c, size_t i) {
  return i < c.inputs.size() ? c.inputs[i].values : std::vector<double>{};
}

// Accepts float32 operands with int32 or int64 labels; scores may have another type.
Acceptance accepts_class_loss(const Problem& p, size_t labels, DType scores = DType::kFloat32);

}  // namespace ofsdp::kernels::ops
