#include "kernels/ops/loss/class_loss.h"

#include <cmath>

#include "kernels/cpu/float_kernels.h"

namespace ofsdp::kernels::ops {
Status check_labels(const ClassLoss& l, const auto* labels) {
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

template Status check_labels(const ClassLoss&, const int32_t*);
template Status check_labels(const ClassLoss&, const int64_t*);
template double mean_scale(const ClassLoss&, const int32_t*, const float*);
template double mean_scale(const ClassLoss&, const int64_t*, const float*);

Acceptance accepts_class_loss(const Problem& p, size_t labels, DType scores) {
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const DType dtype = p.in(i).dtype;
    if (i == labels) {
      const bool integers = dtype == DType::kInt64 || dtype == DType::kInt32;
      if (!integers) return Acceptance::refuse("labels that are not int32 or int64");
    } else if (p.has_in(i) && dtype != (i + 1 == labels ? scores : DType::kFloat32)) {
      return Acceptance::refuse("scores or weights of another type");
    }
  }
  return accept_if(p.all_plain(), kNotPlain);
}

// --- references ---

namespace {

using Doubles = std::vector<double>;

double weight_at(const Doubles& weights, size_t c) { return weights.empty() ? 1 : weights[c]; }

// Returns t_c (class_loss.h): how much of -log_prob_c a label's loss contains.
double target(const ClassLoss& l, const Doubles& weights, int64_t label, size_t c) {
  const double spread = l.smoothing / static_cast<double>(l.classes) * weight_at(weights, c);
  const bool hit = label == static_cast<int64_t>(c);
  return spread + (hit ? (1 - l.smoothing) * weight_at(weights, c) : 0);
}

double divisor(const ClassLoss& l, const Doubles& labels, const Doubles& weights) {
  if (l.reduction != LossReduction::kMean) return 1;
  double sum = 0;
  for (double label : labels) {
    if (!l.ignored(static_cast<int64_t>(label))) {
      sum += weight_at(weights, static_cast<size_t>(label));
    }
  }
  return sum;
}

}  // namespace

Doubles reference_class_loss(const ClassLoss& l, const Doubles& log_prob, const Doubles& labels,
                             const Doubles& weights) {
  Doubles losses;
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto label = static_cast<int64_t>(labels[i]);
    double loss = 0;
    for (size_t c = 0; c < static_cast<size_t>(l.classes) && !l.ignored(label); ++c) {
      const size_t at =
          static_cast<size_t>(l.first(static_cast<int64_t>(i))) + c * static_cast<size_t>(l.inner);
      loss -= target(l, weights, label, c) * log_prob[at];
    }
    losses.push_back(loss);
    sum += loss;
  }
  if (l.reduction == LossReduction::kNone) return losses;
  const double kept = divisor(l, labels, weights);
  return {kept == 0 ? 0 : sum / kept};
}

Doubles reference_class_loss_grad(const ClassLoss& l, const Doubles& diff_loss,
                                  const Doubles& log_prob, const Doubles& labels,
                                  const Doubles& weights) {
  Doubles diff(static_cast<size_t>(l.labels() * l.classes));
  const double kept = divisor(l, labels, weights);
  const auto classes = static_cast<size_t>(l.classes);
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto label = static_cast<int64_t>(labels[i]);
    if (l.ignored(label) || kept == 0) continue;
    const double scale = diff_loss[l.reduction == LossReduction::kNone ? i : 0] / kept;
    double total = 0;
    for (size_t c = 0; c < classes; ++c) total += target(l, weights, label, c);
    for (size_t c = 0; c < classes; ++c) {
      const size_t at =
          static_cast<size_t>(l.first(static_cast<int64_t>(i))) + c * static_cast<size_t>(l.inner);
      const double chance = log_prob.empty() ? 0 : std::exp(log_prob[at]) * total;
      diff[at] = scale * (chance - target(l, weights, label, c));
    }
  }
  return diff;
}

}  // namespace ofsdp::kernels::ops
