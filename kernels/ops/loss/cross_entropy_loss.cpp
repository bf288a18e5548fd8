// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss; class_loss.h has the formulas.
//
// NegativeLogLikelihoodLoss(log_prob, labels, weights), attributes reduction and ignore_index, no
// smoothing. d log_prob = ofsdp.NllLossGrad(dloss, labels, weights), the same attributes and
// `classes`: log_prob is not saved.
// https://onnx.ai/onnx/operators/onnx__NegativeLogLikelihoodLoss.html
//
// SoftmaxCrossEntropyLoss(scores, labels, weights) -> loss, log_prob = log_softmax(scores) along
// axis 1. Attributes: reduction, ignore_index and, our own, PyTorch's label_smoothing. d scores =
// ofsdp.SoftmaxCrossEntropyLossGrad(dloss, log_prob, labels, weights), same attributes, plus the
// gradient through log_prob if a node reads it.
// https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html
// loss_with_gradient.cpp computes loss and gradient in one operator.

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace cross_entropy_loss {
namespace {

template <typename A>
[[gnu::always_inline]] inline void probabilities_by(const float* log_prob, float scale, float* diff,
                                                    int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) diff[i] = vector_exp_flushed<A>(log_prob[i]) * scale;
}
const auto probabilities =
    fastest_version<probabilities_by<SeparateMultiplyAdd>, probabilities_by<FusedMultiplyAdd>>();

// Writes e^log_prob * scale for every class; 0 without log_prob.
void put_probabilities(const ClassLoss& l, const float* log_prob, float scale, float* diff) {
  if (log_prob != nullptr && l.inner == 1) return probabilities(log_prob, scale, diff, l.classes);
  for (int64_t c = 0; c < l.classes; ++c) {
    const int64_t at = c * l.inner;
    diff[at] = log_prob == nullptr ? 0.0f : vector_exp_flushed(log_prob[at]) * scale;
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

// Writes the scores' gradient, through the softmax that gave `log_prob`; if log_prob is null,
// writes the gradient of log_prob. diff_src may be log_prob.
Status run_class_loss_grad(const ClassLoss& l, const float* diff_loss, const float* log_prob,
                           const auto* labels, const float* weights, float* diff_src) {
  OFSDP_RETURN_IF_ERROR(check_labels(l, labels));
  const double mean = mean_scale(l, labels, weights);
  const bool each = l.reduction == LossReduction::kNone;
  parallel_each(l.labels(), 4096 / std::max<int64_t>(l.classes, 1) + 1, [&](int64_t i) {
    float* diff = diff_src + l.first(i);
    if (l.ignored(labels[i]) || mean == 0) {
      for (int64_t c = 0; c < l.classes; ++c) diff[c * l.inner] = 0;
      return;
    }
    const double factor = mean * static_cast<double>(diff_loss[each ? i : 0]);
    const float* p = log_prob == nullptr ? nullptr : log_prob + l.first(i);
    grad_of_label(l, factor, p, labels[i], weights, diff);
  });
  return ok_status();
}

template <size_t labels>
Acceptance accepts(const Problem& p) {
  return accepts_class_loss(p, labels);
}

// --- NegativeLogLikelihoodLoss ---

Result<std::vector<TensorDesc>> nll_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 1, 2));
  return std::vector{std::move(loss)};
}

void nll_grad(GradBuilder& b) {
  Attributes attributes = b.attributes();
  attributes.set("classes", b.desc(b.input(0)).shape[1]);
  std::vector<Ref> inputs = {b.grad_output(0), b.input(1)};
  if (b.num_inputs() > 2 && b.input(2)) inputs.push_back(b.input(2));
  b.set_grad(0, b.emit1("ofsdp.NllLossGrad", inputs, attributes));
}

std::vector<RefTensor> nll_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0],
           reference_class_loss(l, c.inputs[0].values, c.inputs[1].values, values_of(c, 2))}};
}

// Returns the scores' shape for the labels' shape.
Shape scores_shape(const Shape& labels, const Attributes& attributes) {
  std::vector<int64_t> axes = labels.axes();
  axes.insert(axes.begin() + 1, attributes.i("classes", 0));
  return Shape(axes);
}

Result<std::vector<TensorDesc>> nll_infer_grad(const InferContext& c) {
  if (c.inputs[1].shape.rank() < 1) return input_error("expected labels [N, d...], found a scalar");
  return std::vector{TensorDesc{c.inputs[0].dtype, scores_shape(c.inputs[1].shape, c.attributes)}};
}

std::vector<RefTensor> nll_grad_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.output_descs[0].shape, c.attributes);
  return {{c.output_descs[0], reference_class_loss_grad(l, c.inputs[0].values, {},
                                                        c.inputs[1].values, values_of(c, 2))}};
}

void nll_loss_grad_body(BodyBuilder& b) {
  const LabelTerms t = label_terms(b, b.input(1), b.input(2), b.output_desc(0));
  const Ref each = label_scale(b, t, b.input(0));
  b.set_output(0, b.emit1("Neg", {b.mul(t.one_hot, b.mul(t.weight, each))}));
}

std::unique_ptr<Kernel> nll_create(const Problem& p) {
  const ClassLoss l = class_loss(p.in(0).shape, p.attributes);
  return with_labels(p.in(1).dtype, [&](auto label) {
    using Index = decltype(label);
    return make_kernel([l, weighted = p.has_in(2)](const KernelArgs& a) {
      const float* log_prob = a.in<float>(0);
      return sum_class_losses(
          l, a.in<Index>(1), weighted ? a.in<float>(2) : nullptr, a.out<float>(0),
          [&](int64_t i, int64_t c) { return log_prob[l.first(i) + c * l.inner]; });
    });
  });
}

std::unique_ptr<Kernel> nll_create_grad(const Problem& p) {
  const ClassLoss l = class_loss(p.out(0).shape, p.attributes);
  return with_labels(p.in(1).dtype, [&](auto label) {
    using Index = decltype(label);
    return make_kernel([l, weighted = p.has_in(2)](const KernelArgs& a) {
      return run_class_loss_grad(l, a.in<float>(0), nullptr, a.in<Index>(1),
                                 weighted ? a.in<float>(2) : nullptr, a.out<float>(0));
    });
  });
}

// --- SoftmaxCrossEntropyLoss ---

Result<std::vector<TensorDesc>> entropy_infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 1, 2));
  const float smoothing = c.attributes.f("label_smoothing", 0.0f);
  if (!(smoothing >= 0.0f && smoothing <= 1.0f)) {
    return input_error("label smoothing: expected 0..1, found {}", smoothing);
  }
  return std::vector{std::move(loss), TensorDesc{c.inputs[0].dtype, c.inputs[0].shape}};
}

void entropy_grad(GradBuilder& b) {
  const Ref log_prob = b.output(1);
  Ref total;
  if (b.grad_output(0)) {
    std::vector<Ref> inputs = {b.grad_output(0), log_prob, b.input(1)};
    if (b.num_inputs() > 2 && b.input(2)) inputs.push_back(b.input(2));
    total = b.emit1("ofsdp.SoftmaxCrossEntropyLossGrad", inputs, b.attributes());
  }
  if (b.grad_output(1)) {
    const Ref direct =
        b.emit1("ofsdp.LogSoftmaxGrad", {b.grad_output(1), log_prob}, {{"axis", int64_t{1}}});
    total = total ? b.emit1("Add", {total, direct}) : direct;
  }
  b.set_grad(0, total);
}

std::vector<double> log_softmax_of(const ClassLoss& l, std::vector<double> x) {
  for (int64_t i = 0; i < l.labels(); ++i) {
    double max = -INFINITY;
    double sum = 0;
    auto at = [&](int64_t c) -> double& {
      return x[static_cast<size_t>(l.first(i) + c * l.inner)];
    };
    for (int64_t c = 0; c < l.classes; ++c) max = std::max(max, at(c));
    for (int64_t c = 0; c < l.classes; ++c) sum += std::exp(at(c) - max);
    for (int64_t c = 0; c < l.classes; ++c) at(c) = at(c) - max - std::log(sum);
  }
  return x;
}

std::vector<RefTensor> entropy_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[0].desc.shape, c.attributes);
  const auto log_prob = log_softmax_of(l, c.inputs[0].values);
  return {
      {c.output_descs[0], reference_class_loss(l, log_prob, c.inputs[1].values, values_of(c, 2))},
      {c.inputs[0].desc, log_prob}};
}

Result<std::vector<TensorDesc>> entropy_infer_grad(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[1].shape}};
}

std::vector<RefTensor> entropy_grad_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[1].desc.shape, c.attributes);
  return {{c.output_descs[0], reference_class_loss_grad(l, c.inputs[0].values, c.inputs[1].values,
                                                        c.inputs[2].values, values_of(c, 3))}};
}

void softmax_cross_entropy_loss_grad_body(BodyBuilder& b) {
  const LabelTerms t = label_terms(b, b.input(2), b.input(3), b.output_desc(0));
  const double s = static_cast<double>(b.attributes().f("label_smoothing", 0.0f));
  Ref target = b.mul(t.one_hot, t.weight);
  if (s > 0) {
    const Shape& shape = b.output_desc(0).shape;
    const Ref share = b.mul(t.kept, s / static_cast<double>(shape[1]));
    const Ref spread = b.input(3) ? b.mul(share, class_weights(b, b.input(3), shape)) : share;
    target = b.add(b.mul(target, 1 - s), spread);
  }
  // If spread is one value for all classes, it sums to C times that value.
  const Shape& shape = b.output_desc(0).shape;
  const Ref whole = b.emit1("Expand", {target, b.ints(shape.axes())});
  const Ref d = b.sub(b.mul(b.emit1("Exp", {b.input(1)}), b.sum(whole, {1})), whole);
  b.set_output(0, b.mul(d, label_scale(b, t, b.input(0))));
}

std::unique_ptr<Kernel> entropy_create(const Problem& p) {
  const ClassLoss l = class_loss(p.in(0).shape, p.attributes);
  const SoftmaxParams extent = softmax_extent(p.in(0).shape, 1);
  const bool keeps = p.has_out(1);
  return with_labels(p.in(1).dtype, [&](auto label) {
    using Index = decltype(label);
    auto run = [l, extent, keeps, weighted = p.has_in(2)](const KernelArgs& a) {
      float* log_prob = keeps ? a.out<float>(1) : reinterpret_cast<float*>(a.workspace);
      log_softmax(extent, a.in<float>(0), log_prob);
      return sum_class_losses(
          l, a.in<Index>(1), weighted ? a.in<float>(2) : nullptr, a.out<float>(0),
          [&](int64_t i, int64_t c) { return log_prob[l.first(i) + c * l.inner]; });
    };
    return make_kernel(run, keeps ? 0 : p.in(0).bytes());
  });
}

std::unique_ptr<Kernel> entropy_create_grad(const Problem& p) {
  const ClassLoss l = class_loss(p.in(1).shape, p.attributes);
  return with_labels(p.in(2).dtype, [&](auto label) {
    using Index = decltype(label);
    return make_kernel([l, weighted = p.has_in(3)](const KernelArgs& a) {
      return run_class_loss_grad(l, a.in<float>(0), a.in<float>(1), a.in<Index>(2),
                                 weighted ? a.in<float>(3) : nullptr, a.out<float>(0));
    });
  });
}

}  // namespace
}  // namespace cross_entropy_loss

void add_cross_entropy_loss(Registry& registry) {
  using namespace cross_entropy_loss;
  add_distillation_loss(registry);
  registry.add(make_op("NegativeLogLikelihoodLoss", {nll_infer, nll_grad, nll_reference},
                       {{"loops", accepts<1>, nll_create}},
                       {.min_inputs = 2, .first_opset = 12, .float32_only = true}));
  registry.add_own(make_op("NllLossGrad", {nll_infer_grad, nullptr, nll_grad_reference},
                           {{"loops", accepts<1>, nll_create_grad}},
                           {.min_inputs = 2, .body = nll_loss_grad_body}));
  registry.add(make_op("SoftmaxCrossEntropyLoss", {entropy_infer, entropy_grad, entropy_reference},
                       {{"loops", accepts<1>, entropy_create}},
                       {.min_inputs = 2,
                        .first_opset = 12,
                        .float32_only = true,
                        .inplace_inputs = {0},
                        .inplace_output = 1}));
  registry.add_own(make_op(
      "SoftmaxCrossEntropyLossGrad", {entropy_infer_grad, nullptr, entropy_grad_reference},
      {{"loops", accepts<2>, entropy_create_grad}},
      {.min_inputs = 3, .body = softmax_cross_entropy_loss_grad_body, .inplace_inputs = {1}}));
}

// ofsdp.NarrowCrossEntropyLoss(scores, labels, weights): SoftmaxCrossEntropyLoss for bfloat16 or
// float16 scores [N, C], with the same attributes and a float32 loss. Output 1 is each label's log
// sum_c e^x_c in float32: the gradient recomputes the probabilities from it and the scores, so
// backward needs no saved float32 log-probabilities, which take twice the scores' bytes.
//
// ofsdp.NarrowCrossEntropyLossGrad(dloss, scores, labels, weights, log_sum, dlog_sum), same
// attributes, returns d scores in the scores' type and may overwrite them; it adds dlog_sum (mostly
// absent) times the probabilities. Formulas: class_loss.h. importer/passes/precision.cpp makes
// these nodes.

namespace narrow_cross_entropy_loss {
namespace {

constexpr int64_t kBlock = 1024;  // scores widened together, in the first-level cache

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(TensorDesc loss, infer_class_loss(c, 1, 2));
  if (!is_16_bit_float(c.inputs[0].dtype) || c.inputs[0].shape.rank() != 2) {
    return input_error("expected scores [N, C] of 16 bits, found {}", c.inputs[0].text());
  }
  loss.dtype = DType::kFloat32;
  return std::vector{loss, TensorDesc{DType::kFloat32, {c.inputs[0].shape[0]}}};
}

void grad(GradBuilder& b) {
  const Ref weights = b.num_inputs() > 2 ? b.input(2) : Ref{};
  const Ref dloss = b.grad_output(0) ? b.grad_output(0) : b.scalar(DType::kFloat32, 0);
  b.set_grad(0, b.emit1("ofsdp.NarrowCrossEntropyLossGrad",
                        {dloss, b.input(0), b.input(1), weights, b.output(1), b.grad_output(1)},
                        b.attributes()));
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[1].shape}};
}

// --- references ---

std::vector<double> log_sums(const ClassLoss& l, const std::vector<double>& x) {
  std::vector<double> sums;
  for (auto row = x.begin(); sums.size() < static_cast<size_t>(l.samples); row += l.classes) {
    const double max = *std::max_element(row, row + l.classes);
    double sum = 0;
    for (int64_t c = 0; c < l.classes; ++c) sum += std::exp(row[c] - max);
    sums.push_back(max + std::log(sum));
  }
  return sums;
}

std::vector<double> log_probabilities(const ClassLoss& l, std::vector<double> x,
                                      const std::vector<double>& log_sum) {
  for (size_t i = 0; i < x.size(); ++i) x[i] -= log_sum[i / static_cast<size_t>(l.classes)];
  return x;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[0].desc.shape, c.attributes);
  const auto sums = log_sums(l, c.inputs[0].values);
  const auto log_prob = log_probabilities(l, c.inputs[0].values, sums);
  const TensorDesc desc{DType::kFloat32, {l.samples}};
  return {
      {c.output_descs[0], reference_class_loss(l, log_prob, c.inputs[1].values, values_of(c, 2))},
      {desc, sums}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const ClassLoss l = class_loss(c.inputs[1].desc.shape, c.attributes);
  const auto log_prob = log_probabilities(l, c.inputs[1].values, c.inputs[4].values);
  RefTensor diff{c.output_descs[0], reference_class_loss_grad(l, c.inputs[0].values, log_prob,
                                                              c.inputs[2].values, values_of(c, 3))};
  const auto direct = values_of(c, 5);
  for (size_t i = 0; i < diff.values.size() && !direct.empty(); ++i) {
    diff.values[i] += direct[i / static_cast<size_t>(l.classes)] * std::exp(log_prob[i]);
  }
  return {diff};
}

// --- kernels ---

OFSDP_MULTIARCH float log_sum_row(const auto* x, int64_t n) {
  float wide[kBlock];
  const auto load = [&](int64_t begin) __attribute__((always_inline)) {
    const int64_t count = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < count; ++i) wide[i] = as_float(x[begin + i]);
    return count;
  };
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock)
    max = std::max(max, lane_max(wide, load(begin)));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    sum += lane_sum(load(begin), [&](int64_t i) { return vector_exp_flushed(wide[i] - max); });
  }
  return max + std::log(sum);
}

OFSDP_MULTIARCH void chances(const auto* x, float log_sum, float scale, float* chance, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) chance[i] = vector_exp_flushed(as_float(x[i]) - log_sum) * scale;
}

template <typename T>
OFSDP_MULTIARCH void store_row(const float* x, T* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = stored<T>(x[i]);
}

// Writes one label's gradient: factor times (probabilities minus targets), plus `direct` times the
// probabilities. diff may be x.
template <typename T>
void grad_row(const ClassLoss& l, double factor, double direct, const T* x, float log_sum,
              int64_t label, const float* weights, T* diff) {
  const ClassTargets t = factor == 0 ? ClassTargets{} : class_targets(l, label, weights);
  float wide[kBlock];
  for (int64_t begin = 0; begin < l.classes; begin += kBlock) {
    const int64_t count = std::min(kBlock, l.classes - begin);
    chances(x + begin, log_sum, static_cast<float>(factor * t.total + direct), wide, count);
    for (int64_t c = 0; t.spread != 0 && c < count; ++c) {
      wide[c] -= static_cast<float>(factor * t.spread * weight_of(weights, begin + c));
    }
    if (factor != 0 && label >= begin && label < begin + count) {
      wide[label - begin] -= static_cast<float>(factor * t.hit);
    }
    store_row(wide, diff + begin, count);
  }
}

template <typename T, typename Index>
std::unique_ptr<Kernel> create_of(const Problem& p) {
  const ClassLoss l = class_loss(p.in(0).shape, p.attributes);
  const bool weighted = p.has_in(2), keeps = p.has_out(1);
  return make_kernel(
      [=](const KernelArgs& a) {
        const T* x = a.in<T>(0);
        float* log_sum = keeps ? a.out<float>(1) : reinterpret_cast<float*>(a.workspace);
        parallel_each(l.samples, kBlock / (l.classes + 1) + 1,
                      [&](int64_t i) { log_sum[i] = log_sum_row(x + i * l.classes, l.classes); });
        const auto log_prob = [&](int64_t i, int64_t c) {
          return as_float(x[i * l.classes + c]) - log_sum[i];
        };
        return sum_class_losses(l, a.in<Index>(1), weighted ? a.in<float>(2) : nullptr,
                                a.out<float>(0), log_prob);
      },
      keeps ? 0 : static_cast<size_t>(l.samples) * sizeof(float));
}

template <typename T, typename Index>
Status run_grad(const ClassLoss& l, bool weighted, bool direct, const KernelArgs& a) {
  const Index* labels = a.in<Index>(2);
  const float* weights = weighted ? a.in<float>(3) : nullptr;
  OFSDP_RETURN_IF_ERROR(check_labels(l, labels));
  const double mean = mean_scale(l, labels, weights);
  const bool each = l.reduction == LossReduction::kNone;
  parallel_each(l.samples, kBlock / (l.classes + 1) + 1, [&](int64_t i) {
    const double scale = l.ignored(labels[i]) ? 0 : mean;
    if (scale == 0 && !direct) {
      std::fill_n(a.out<T>(0) + i * l.classes, l.classes, T{0});
      return;
    }
    const double factor =
        scale == 0 ? 0 : scale * static_cast<double>(a.in<float>(0)[each ? i : 0]);
    grad_row(l, factor, direct ? static_cast<double>(a.in<float>(5)[i]) : 0,
             a.in<T>(1) + i * l.classes, a.in<float>(4)[i], labels[i], weights,
             a.out<T>(0) + i * l.classes);
  });
  return ok_status();
}

template <typename T, typename Index>
std::unique_ptr<Kernel> create_grad_of(const Problem& p) {
  const ClassLoss l = class_loss(p.in(1).shape, p.attributes);
  return make_kernel([l, weighted = p.has_in(3), direct = p.has_in(5)](const KernelArgs& a) {
    return run_grad<T, Index>(l, weighted, direct, a);
  });
}

// Calls f(T{}, Index{}) with the types of scores and labels.
std::unique_ptr<Kernel> with_types(DType scores, DType labels, const auto& f) {
  const auto of = [&](auto zero) {
    return with_labels(labels, [&](auto label) { return f(zero, label); });
  };
  return scores == DType::kBFloat16 ? of(BFloat16{}) : of(Half{});
}

// `scores` is the index of the scores input.
template <size_t scores>
Acceptance accepts(const Problem& p) {
  if (!is_16_bit_float(p.in(scores).dtype))
    return Acceptance::refuse("scores that are not of 16 bits");
  return accepts_class_loss(p, scores + 1, p.in(scores).dtype);
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_types(p.in(0).dtype, p.in(1).dtype, [&](auto zero, auto label) {
    return create_of<decltype(zero), decltype(label)>(p);
  });
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return with_types(p.in(1).dtype, p.in(2).dtype, [&](auto zero, auto label) {
    return create_grad_of<decltype(zero), decltype(label)>(p);
  });
}

}  // namespace
}  // namespace narrow_cross_entropy_loss

void add_narrow_cross_entropy_loss(Registry& registry) {
  using namespace narrow_cross_entropy_loss;
  registry.add_own(make_op("NarrowCrossEntropyLoss", {infer, grad, reference},
                           {{"rows", accepts<0>, create}}, {.min_inputs = 2}));
  registry.add_own(make_op("NarrowCrossEntropyLossGrad", {infer_grad, nullptr, grad_reference},
                           {{"rows", accepts<1>, create_grad}},
                           {.min_inputs = 5, .inplace_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
