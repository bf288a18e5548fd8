// What NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss share: both take log-probabilities [N,
// C, d...] and labels [N, d...] to a loss (below, p is the log-probability, w the class weights or
// 1, s the label smoothing, 0 for the former):
//
//   loss_i = -(1-s) w_y p_iy - s/C sum_c w_c p_ic       0 where label y is the ignore_index
//   none: [N, d...]    sum: their sum    mean: their sum / sum of w_y over kept labels; 0 if that
//   is 0
//
// d loss_i / d p_ic = -t_c, and through p = log_softmax(x): d loss_i / d x_c = e^p_ic sum(t) - t_c,
// where t_c = (1-s) w_y [c = y] + s/C w_c. Sums run in double in the order of the samples, on one
// thread.
//
// Ownership: values. Threads: that of the caller. Errors: a label outside of 0..C-1 is kInput.
#pragma once

#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::ops {

enum class LossReduction { kNone, kMean, kSum };

struct ClassLoss {
  int64_t samples = 0;  // N
  int64_t classes = 0;  // C
  int64_t inner = 1;    // product of d...
  LossReduction reduction = LossReduction::kMean;
  bool ignores = false;  // whether there is an ignore_index
  int64_t ignore_index = 0;
  double smoothing = 0;

  int64_t labels() const { return samples * inner; }
  bool ignored(int64_t label) const { return ignores && label == ignore_index; }
  // Element of [N, C, d...] at class 0 of label i; classes lie `inner` apart.
  int64_t first(int64_t i) const { return i / inner * classes * inner + i % inner; }
};

ClassLoss class_loss(const Shape& scores, const Attributes& attributes);

// Desc of the loss; checks scores, labels and weights (at `weights`, when present).
Result<TensorDesc> infer_class_loss(const InferContext& c, size_t labels, size_t weights);

// The loss of every label from log-probabilities; `Index` is int32_t or int64_t.
template <typename Index>
Status run_class_loss(const ClassLoss& l, const float* log_prob, const Index* labels,
                      const float* weights, float* loss);

// d loss / d scores through the softmax that gave `log_prob`, or d loss / d log_prob when that is
// null. diff_src may be log_prob.
template <typename Index>
Status run_class_loss_grad(const ClassLoss& l, const float* diff_loss, const float* log_prob,
                           const Index* labels, const float* weights, float* diff_src);

// The same two in double, for the references: weights and log_prob are empty when absent.
std::vector<double> reference_class_loss(const ClassLoss& l, const std::vector<double>& log_prob,
                                         const std::vector<double>& labels,
                                         const std::vector<double>& weights);
std::vector<double> reference_class_loss_grad(const ClassLoss& l,
                                              const std::vector<double>& diff_loss,
                                              const std::vector<double>& log_prob,
                                              const std::vector<double>& labels,
                                              const std::vector<double>& weights);

bool accepts_class_loss(const Problem& p, size_t labels);  // float32 beside int32 or int64 labels

// Scores, labels and, in some, class weights, in every reduction and shape.
std::vector<SampleCase> class_loss_samples();
// The same behind a first input diff_loss, as the gradients take them.
std::vector<SampleCase> class_loss_grad_samples();

}  // namespace ofsdp::ops
