// ofsdp.NarrowCrossEntropyLoss(scores, labels, weights): SoftmaxCrossEntropyLoss of bfloat16 or
// float16 scores [N, C], its loss in float32, its attributes. Output 1 is log sum_c e^x_c of each
// label, in float32: with it the gradient computes the probabilities again from the scores, so that
// no log-probabilities in float32, twice the bytes of the scores, wait for backward.
//
// d scores, of the type of the scores and in their place if need be:
// ofsdp.NarrowCrossEntropyLossGrad(dloss, scores, labels, weights, log_sum, dlog_sum) with the same
// attributes; dlog_sum, mostly absent, adds itself times the probabilities. Formulas: class_loss.h.
// importer/passes/precision.cpp makes these nodes.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stored_floats.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/loss/class_loss.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
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

// The gradient of one label: its targets times factor, and `direct` of log_sum; diff may be x.
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

// f(T{}, Index{}) with the types of scores and labels.
std::unique_ptr<Kernel> with_types(DType scores, DType labels, const auto& f) {
  const auto of = [&](auto zero) {
    return with_labels(labels, [&](auto label) { return f(zero, label); });
  };
  return scores == DType::kBFloat16 ? of(BFloat16{}) : of(Half{});
}

// `scores` is the input that has the scores.
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
