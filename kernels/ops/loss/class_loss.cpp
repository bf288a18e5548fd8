#include "kernels/ops/loss/class_loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace ofsdp::kernels::ops {
namespace {

OFSDP_MULTIARCH void probabilities(const float* log_prob, float scale, float* diff, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = vector_exp(log_prob[i]) * scale;
}

// e^log_prob * scale in every class; 0 without log_prob.
void put_probabilities(const ClassLoss& l, const float* log_prob, float scale, float* diff) {
  if (log_prob != nullptr && l.inner == 1) return probabilities(log_prob, scale, diff, l.classes);
  for (int64_t c = 0; c < l.classes; ++c) {
    const int64_t at = c * l.inner;
    diff[at] = log_prob == nullptr ? 0.0f : vector_exp(log_prob[at]) * scale;
  }
}

void grad_of_label(const ClassLoss& l, double factor, const float* log_prob, int64_t label,
                   const float* weights, float* diff) {
  const ClassTargets t = class_targets(l, label, weights);
  put_probabilities(l, log_prob, static_cast<float>(factor * t.total), diff);
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    diff[c * l.inner] -= static_cast<float>(factor * t.spread * weight_of(weights, c));
  }
  diff[label * l.inner] -= static_cast<float>(factor * t.hit);
}

}  // namespace

template <typename Index>
Status check_labels(const ClassLoss& l, const Index* labels) {
  for (int64_t i = 0; i < l.labels(); ++i) {
    const int64_t label = labels[i];
    if ((label >= 0 && label < l.classes) || l.ignored(label)) continue;
    const std::string at = l.inner == 1 ? "" : format_text(" (position {})", i % l.inner);
    return input_error(
        "label {} of sample {}{} is outside 0..{}{}", label, i / l.inner, at, l.classes - 1,
        l.ignores ? format_text(" and not the ignore index {}", l.ignore_index) : "");
  }
  return ok_status();
}

template <typename Index>
double mean_scale(const ClassLoss& l, const Index* labels, const float* weights) {
  if (l.reduction != LossReduction::kMean) return 1;
  double sum = 0;
  for (int64_t i = 0; i < l.labels(); ++i) {
    if (!l.ignored(labels[i])) sum += weight_of(weights, labels[i]);
  }
  return sum == 0 ? 0 : 1 / sum;
}

ClassTargets class_targets(const ClassLoss& l, int64_t label, const float* weights) {
  ClassTargets t;
  t.hit = (1 - l.smoothing) * weight_of(weights, label);
  t.spread = l.smoothing / static_cast<double>(l.classes);
  t.total = t.hit;
  for (int64_t c = 0; t.spread != 0 && c < l.classes; ++c) {
    t.total += t.spread * weight_of(weights, c);
  }
  return t;
}

ClassLoss class_loss(const Shape& scores, const Attributes& attributes) {
  const std::string reduction = attributes.s("reduction", "mean");
  ClassLoss l;
  l.samples = scores[0];
  l.classes = scores[1];
  l.inner = scores.numel(2, scores.rank());
  l.reduction = reduction == "none"  ? LossReduction::kNone
                : reduction == "sum" ? LossReduction::kSum
                                     : LossReduction::kMean;
  l.ignores = attributes.has("ignore_index");
  l.ignore_index = attributes.i("ignore_index", 0);
  l.smoothing = static_cast<double>(attributes.f("label_smoothing", 0.0f));
  return l;
}

Result<TensorDesc> infer_class_loss(const InferContext& c, size_t labels, size_t weights) {
  const TensorDesc& scores = c.inputs[labels - 1];
  if (scores.shape.rank() < 2) {
    return input_error("expected scores [N, C, d...], found {}", scores.text());
  }
  std::vector<int64_t> expected = scores.shape.axes();
  expected.erase(expected.begin() + 1);
  const TensorDesc& given = c.inputs[labels];
  const bool integers = given.dtype == DType::kInt64 || given.dtype == DType::kInt32;
  if (!integers || given.shape != Shape(expected)) {
    return input_error("expected labels of int64 or int32 and shape {} for scores {}, found {}",
                       Shape(expected).text(), scores.text(), given.text());
  }
  if (c.has(weights) && c.inputs[weights].shape != Shape{scores.shape[1]}) {
    return input_error("expected {} class weights, found {}", scores.shape[1],
                       c.inputs[weights].text());
  }
  const std::string reduction = c.attributes.s("reduction", "mean");
  if (reduction != "none" && reduction != "mean" && reduction != "sum") {
    return input_error("attribute 'reduction': expected none, mean or sum, found '{}'", reduction);
  }
  return TensorDesc{scores.dtype, reduction == "none" ? Shape(expected) : Shape{}};
}

template <typename Index>
Status run_class_loss(const ClassLoss& l, const float* log_prob, const Index* labels,
                      const float* weights, float* loss) {
  return sum_class_losses(l, labels, weights, loss,
                          [&](int64_t i, int64_t c) { return log_prob[l.first(i) + c * l.inner]; });
}

template <typename Index>
Status run_class_loss_grad(const ClassLoss& l, const float* diff_loss, const float* log_prob,
                           const Index* labels, const float* weights, float* diff_src) {
  OFSDP_RETURN_IF_ERROR(check_labels(l, labels));
  const double mean = mean_scale(l, labels, weights);
  const bool each = l.reduction == LossReduction::kNone;
  parallel_for(l.labels(), 4096 / std::max<int64_t>(l.classes, 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   float* diff = diff_src + l.first(i);
                   if (l.ignored(labels[i]) || mean == 0) {
                     for (int64_t c = 0; c < l.classes; ++c) diff[c * l.inner] = 0;
                     continue;
                   }
                   const double factor = mean * static_cast<double>(diff_loss[each ? i : 0]);
                   const float* p = log_prob == nullptr ? nullptr : log_prob + l.first(i);
                   grad_of_label(l, factor, p, labels[i], weights, diff);
                 }
               });
  return ok_status();
}

template Status check_labels(const ClassLoss&, const int32_t*);
template Status check_labels(const ClassLoss&, const int64_t*);
template double mean_scale(const ClassLoss&, const int32_t*, const float*);
template double mean_scale(const ClassLoss&, const int64_t*, const float*);
template Status run_class_loss(const ClassLoss&, const float*, const int32_t*, const float*,
                               float*);
template Status run_class_loss(const ClassLoss&, const float*, const int64_t*, const float*,
                               float*);
template Status run_class_loss_grad(const ClassLoss&, const float*, const float*, const int32_t*,
                                    const float*, float*);
template Status run_class_loss_grad(const ClassLoss&, const float*, const float*, const int64_t*,
                                    const float*, float*);

bool accepts_class_loss(const Problem& p, size_t labels, DType scores) {
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const DType dtype = p.in(i).dtype;
    const DType wanted = i + 1 == labels ? scores : DType::kFloat32;
    const bool right = i == labels ? dtype == DType::kInt64 || dtype == DType::kInt32
                                   : !p.has_in(i) || dtype == wanted;
    if (!right) return false;
  }
  return p.all_plain();
}

}  // namespace ofsdp::kernels::ops
