// Class-label and mean losses with gradients, and accuracy counts (loss.h).
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/loss/loss.h"

namespace ofsdp::kernels::cuda {
namespace {

LossReduction parse_reduction(const Attributes& attributes) {
  const std::string reduction = attributes.s("reduction", "mean");
  if (reduction == "none") return LossReduction::kNone;
  return reduction == "sum" ? LossReduction::kSum : LossReduction::kMean;
}

CrossEntropy loss_params(const Problem& p, const TensorDesc& scores, size_t labels,
                         bool through_softmax) {
  return {.dtype = scores.dtype,
          .samples = scores.shape[0],
          .classes = scores.shape[1],
          .inner = scores.shape.numel(2, scores.shape.rank()),
          .reduction = parse_reduction(p.attributes),
          .through_softmax = through_softmax,
          .ignores = p.attributes.has("ignore_index"),
          .ignore_index = p.attributes.i("ignore_index", 0),
          .smoothing = static_cast<double>(p.attributes.f("label_smoothing", 0.0f)),
          .label_dtype = p.in(labels).dtype,
          .pitch = scores.pitch};
}

// Weights have the dtype of scores; 16-bit scores take none, since those would be float32. `made`:
// null, or the output shaped like scores; both have a pitch or neither.
Acceptance accepts_operands(const Problem& p, const TensorDesc& scores, size_t labels,
                            const TensorDesc* made) {
  return accept({plain(p),
                 floats(scores.dtype),
                 {is_index(p.in(labels).dtype), "labels are neither int32 nor int64"},
                 alike(!p.has_in(labels + 1) || p.in(labels + 1).dtype == scores.dtype),
                 some(scores),
                 dense_but(p, {&scores, made}),
                 {made == nullptr || made->pitch == scores.pitch, "rows lie in two ways"},
                 {scores.pitch == 0 || scores.shape.rank() == 2, "rows that are apart have axes"}});
}

// Output 1 is log_prob, or if `narrow` lse.
CudaImplementation forward(const char* op, bool through_softmax, bool narrow) {
  return {op, "own",
          [narrow](const Problem& p) {
            const bool keeps = !narrow && p.has_out(1);
            return accepts_operands(p, p.in(0), 1, keeps ? &p.out(1) : nullptr);
          },
          [=](DeviceState&, const Problem& p) {
            CrossEntropy c = loss_params(p, p.in(0), 1, through_softmax);
            return make_cuda_kernel(
                [c, narrow, dtype = p.out(0).dtype](cudaStream_t stream, const Launch& l) mutable {
                  c.labels = l.in(1);
                  c.fault = l.fault();
                  c.weights = l.in(2);
                  const CrossEntropyForward f{.scores = l.in(0),
                                              .log_prob = narrow ? nullptr : l.out(1),
                                              .lse = narrow ? l.out<float>(1) : nullptr,
                                              .loss = l.out(0),
                                              .loss_dtype = dtype,
                                              .scratch = l.workspace};
                  return cross_entropy_forward(c, f, stream);
                },
                cross_entropy_scratch(c));
          },
          true};
}

// Inputs (dloss, log_prob or scores, labels, weights, lse), or (dloss, labels, weights) for d
// log_prob.
struct Backward {
  bool through_softmax, has_lse;
  size_t labels() const { return through_softmax ? 2 : 1; }
  const TensorDesc& scores(const Problem& p) const { return through_softmax ? p.in(1) : p.out(0); }
};

CudaImplementation backward(const char* op, Backward b) {
  return {op, "own",
          [b](const Problem& p) {
            return accept(
                accepts_operands(p, b.scores(p), b.labels(), &p.out(0)),
                {{!b.has_lse || !p.has_in(5), "the logarithms of the sums have a gradient"}});
          },
          [b](DeviceState&, const Problem& p) {
            CrossEntropy c = loss_params(p, b.scores(p), b.labels(), b.through_softmax);
            return make_cuda_kernel(
                [b, c, dtype = p.in(0).dtype](cudaStream_t stream, const Launch& l) mutable {
                  c.labels = l.in(b.labels());
                  c.fault = l.fault();
                  c.weights = l.in(b.labels() + 1);
                  // This gradient does not read log-probabilities; any address is valid.
                  const CrossEntropyBackward back{.scores = b.through_softmax ? l.in(1) : l.out(0),
                                                  .lse = b.has_lse ? l.in<float>(4) : nullptr,
                                                  .diff_loss = l.in(0),
                                                  .loss_dtype = dtype,
                                                  .diff_scores = l.out(0),
                                                  .scratch = l.workspace};
                  return cross_entropy_backward(c, back, stream);
                },
                cross_entropy_scratch(c));
          },
          true};
}

// Inputs (dloss, scores, labels, weights), outputs loss and d scores.
Acceptance accepts_joined(const Problem& p) {
  return accept(accepts_operands(p, p.in(1), 2, &p.out(1)),
                {supported(p.in(0).dtype == DType::kFloat32 && p.out(0).dtype == DType::kFloat32),
                 {p.in(1).shape.rank() == 2, "scores are not [N, C]"}});
}

std::unique_ptr<CudaKernel> create_joined(DeviceState&, const Problem& p) {
  const CrossEntropy given = loss_params(p, p.in(1), 2, true);
  return make_cuda_kernel(
      [c = given](cudaStream_t stream, const Launch& l) mutable {
        c.labels = l.in(2);
        c.fault = l.fault();
        c.weights = l.in(3);
        return cross_entropy_joined(c,
                                    {.scores = l.in(1),
                                     .diff_loss = l.in<float>(0),
                                     .loss = l.out<float>(0),
                                     .diff_scores = l.out(1),
                                     .scratch = l.workspace},
                                    stream);
      },
      cross_entropy_scratch(given));
}

// Inputs (prediction, target), or (dloss, prediction, target).
Acceptance accepts_mean(const Problem& p) {
  const size_t last = p.inputs.size() - 1;
  return accept({supported(p.all_dtype(DType::kFloat32)),
                 {p.in(last) == p.in(last - 1), "prediction and target differ"}});
}

CudaImplementation mean(const char* op, MeanLoss kind) {
  return {op, "own", accepts_mean, [kind](DeviceState&, const Problem& p) {
            return make_cuda_kernel(
                [kind, n = p.in(0).numel()](cudaStream_t stream, const Launch& l) {
                  return mean_loss(kind, l.in<float>(0), l.in<float>(1), n, l.out<float>(0),
                                   l.workspace, stream);
                },
                mean_loss_scratch(p.in(0).numel()));
          }};
}

CudaImplementation mean_grad(const char* op, MeanLoss kind) {
  return {
      op, "own", accepts_mean, [kind](DeviceState&, const Problem& p) {
        return make_cuda_kernel([kind, n = p.in(1).numel()](cudaStream_t stream, const Launch& l) {
          return mean_loss_grad(kind, l.in<float>(0), l.in<float>(1), l.in<float>(2), n,
                                l.out<float>(0), stream);
        });
      }};
}

Acceptance accepts_matches(const Problem& p) {
  return accept({plain(p),
                 supported(p.in(0).dtype == DType::kFloat32 && p.in(1).dtype == DType::kInt64),
                 dense_but(p, {&p.in(0)})});
}

std::unique_ptr<CudaKernel> create_matches(DeviceState&, const Problem& p) {
  const MatchCount count{.rows = p.in(0).shape[0],
                         .classes = p.in(0).shape[1],
                         .ignores = p.attributes.has("ignore_index"),
                         .ignore_index = p.attributes.i("ignore_index", 0),
                         .pitch = p.in(0).pitch};
  return make_cuda_kernel(
      [count](cudaStream_t stream, const Launch& l) {
        return count_matches(count, l.in<float>(0), l.in<int64_t>(1), l.out<int64_t>(0),
                             l.workspace, stream);
      },
      match_scratch(count));
}

// Operands (student, teacher, labels) from operand `first` on; dloss is operand 0 before them.
template <size_t first>
Acceptance accepts_distillation(const Problem& p) {
  const bool floats =
      p.in(first).dtype == DType::kFloat32 && p.in(first + 1).dtype == DType::kFloat32;
  return accept({plain(p), supported(floats && p.out(0).dtype == DType::kFloat32)});
}

Distillation distillation_of(const Problem& p, size_t first) {
  const Shape& logits = p.in(first).shape;
  Distillation d;
  d.rows = logits[0];
  d.classes = logits[1];
  d.temperature = static_cast<double>(p.attributes.f("temperature", 1.0f));
  d.scale = static_cast<float>(1 / d.temperature);
  d.ignores = p.attributes.has("ignore_index");
  d.ignore_index = p.attributes.i("ignore_index", 0);
  d.wide_labels = p.has_in(first + 2) && p.in(first + 2).dtype == DType::kInt64;
  return d;
}

std::unique_ptr<CudaKernel> create_distillation(DeviceState&, const Problem& p) {
  return make_cuda_kernel(
      [d = distillation_of(p, 0)](cudaStream_t stream, const Launch& l) mutable {
        d.student = l.in<float>(0);
        d.teacher = l.in<float>(1);
        d.labels = l.in(2);
        return distillation_loss(d, l.out<float>(0), l.workspace, stream);
      },
      distillation_scratch(p.in(0).shape[0]));
}

std::unique_ptr<CudaKernel> create_distillation_grad(DeviceState&, const Problem& p) {
  return make_cuda_kernel(
      [d = distillation_of(p, 1)](cudaStream_t stream, const Launch& l) mutable {
        d.student = l.in<float>(1);
        d.teacher = l.in<float>(2);
        d.labels = l.in(3);
        return distillation_grad(d, l.in<float>(0), l.out<float>(0), l.workspace, stream);
      },
      distillation_scratch(p.in(1).shape[0]));
}

Acceptance accepts_classes(const Problem& p) {
  return accept(
      {plain(p), supported(p.in(0).dtype == DType::kFloat32 && p.in(1).dtype == DType::kInt64)});
}

std::unique_ptr<CudaKernel> create_classes(DeviceState&, const Problem& p) {
  const Shape& scores = p.in(0).shape;
  const ClassMeasures measures{.rows = p.out(0).shape[0],
                               .classes = scores[scores.rank() - 1],
                               .ignores = p.attributes.has("ignore_index"),
                               .ignore_index = p.attributes.i("ignore_index", 0),
                               .likelihood = p.attributes.i("likelihood", 0)};
  return make_cuda_kernel([measures](cudaStream_t stream, const Launch& l) {
    return measure_classes(measures, l.in<float>(0), l.in<int64_t>(1), l.out<double>(0), stream);
  });
}

Acceptance accepts_values(const Problem& p) {
  return accept(
      {plain(p), supported(p.in(0).dtype == DType::kFloat32 && p.in(1).dtype == DType::kFloat32)});
}

std::unique_ptr<CudaKernel> create_values(DeviceState&, const Problem& p) {
  return make_cuda_kernel([count = p.in(0).numel()](cudaStream_t stream, const Launch& l) {
    return measure_values(count, l.in<float>(0), l.in<float>(1), l.out<double>(0), stream);
  });
}

}  // namespace

void add_losses(CudaImplementations& list) {
  list.insert(
      list.end(),
      {forward("SoftmaxCrossEntropyLoss", true, false),
       forward("NegativeLogLikelihoodLoss", false, false),
       forward("ofsdp.NarrowCrossEntropyLoss", true, true),
       backward("ofsdp.SoftmaxCrossEntropyLossGrad", {true, false}),
       backward("ofsdp.NllLossGrad", {false, false}),
       backward("ofsdp.NarrowCrossEntropyLossGrad", {true, true}),
       {"ofsdp.SoftmaxCrossEntropyLossWithGradient", "own", accepts_joined, create_joined, true},
       mean("ofsdp.MseLoss", MeanLoss::kSquares),
       mean_grad("ofsdp.MseLossGrad", MeanLoss::kSquares),
       mean("ofsdp.BceWithLogitsLoss", MeanLoss::kLogits),
       mean_grad("ofsdp.BceWithLogitsLossGrad", MeanLoss::kLogits),
       {"ofsdp.DistillationLoss", "own", accepts_distillation<0>, create_distillation},
       {"ofsdp.DistillationLossGrad", "own", accepts_distillation<1>, create_distillation_grad},
       {"ofsdp.MeasureClasses", "own", accepts_classes, create_classes},
       {"ofsdp.MeasureValues", "own", accepts_values, create_values},
       {"ofsdp.ArgmaxMatches", "own", accepts_matches, create_matches, true}});
}

}  // namespace ofsdp::kernels::cuda
