// Losses with their gradients, of class labels and of values, and the count of right answers:
// kernels/cuda/loss/cross_entropy.h, mean_loss.h, matches.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/loss/cross_entropy.h"
#include "kernels/cuda/loss/matches.h"
#include "kernels/cuda/loss/mean_loss.h"

namespace ofsdp::kernels::cuda {
namespace {

LossReduction reduction_of(const Attributes& attributes) {
  const std::string reduction = attributes.s("reduction", "mean");
  if (reduction == "none") return LossReduction::kNone;
  return reduction == "sum" ? LossReduction::kSum : LossReduction::kMean;
}

CrossEntropy loss_of(const Problem& p, const TensorDesc& scores, size_t labels,
                     bool through_softmax) {
  CrossEntropy c;
  c.dtype = scores.dtype;
  c.samples = scores.shape[0];
  c.classes = scores.shape[1];
  c.inner = scores.shape.numel(2, scores.shape.rank());
  c.reduction = reduction_of(p.attributes);
  c.through_softmax = through_softmax;
  c.ignores = p.attributes.has("ignore_index");
  c.ignore_index = p.attributes.i("ignore_index", 0);
  c.smoothing = static_cast<double>(p.attributes.f("label_smoothing", 0.0f));
  c.label_dtype = p.in(labels).dtype;
  return c;
}

// Weights are of the type of the scores; of 16-bit scores there are none, since theirs are float32.
bool accepts_operands(const Problem& p, const TensorDesc& scores, size_t labels) {
  const bool weights = !p.has_in(labels + 1) || p.in(labels + 1).dtype == scores.dtype;
  return p.all_plain() && is_float(scores.dtype) && is_index(p.in(labels).dtype) && weights &&
         scores.numel() > 0;
}

bool accepts_forward(const Problem& p) { return accepts_operands(p, p.in(0), 1); }
// (dloss, log_prob or scores, labels, ...)
bool accepts_backward(const Problem& p) { return accepts_operands(p, p.in(1), 2); }
// (dloss, labels, weights) -> d log_prob
bool accepts_nll_backward(const Problem& p) { return accepts_operands(p, p.out(0), 1); }

// Output 1 is log_prob, or (narrow) the logarithm of the sum of each label in float32.
std::unique_ptr<CudaKernel> create_forward(const Problem& p, bool through_softmax, bool narrow) {
  const CrossEntropy loss = loss_of(p, p.in(0), 1, through_softmax);
  const bool weights = p.has_in(2), second = p.has_out(1);
  const DType dtype = p.out(0).dtype;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        CrossEntropy c = loss;
        c.labels = l.inputs[1];
        c.fault = fault_of(l);
        c.weights = weights ? l.inputs[2] : nullptr;
        CrossEntropyForward f;
        f.scores = l.inputs[0];
        if (second && narrow) f.lse = static_cast<float*>(l.outputs[1]);
        if (second && !narrow) f.log_prob = l.outputs[1];
        f.loss = l.outputs[0];
        f.loss_dtype = dtype;
        f.scratch = l.workspace;
        return cross_entropy_forward(c, f, stream);
      },
      cross_entropy_scratch(loss));
}

struct BackwardPlaces {
  int scores, labels, weights, lse;  // -1: none
};

std::unique_ptr<CudaKernel> create_backward(const Problem& p, const CrossEntropy& loss,
                                            const BackwardPlaces& at) {
  const bool weights = p.has_in(static_cast<size_t>(at.weights));
  const DType dtype = p.in(0).dtype;
  return make_cuda_kernel(
      [=](cudaStream_t stream, const ofsdp_launch& l) {
        CrossEntropy c = loss;
        c.labels = l.inputs[at.labels];
        c.fault = fault_of(l);
        c.weights = weights ? l.inputs[at.weights] : nullptr;
        CrossEntropyBackward b;
        // Of log-probabilities the gradient does not need them: any address with room will do.
        b.scores = at.scores < 0 ? l.outputs[0] : l.inputs[at.scores];
        b.lse = at.lse < 0 ? nullptr : static_cast<const float*>(l.inputs[at.lse]);
        b.diff_loss = l.inputs[0];
        b.loss_dtype = dtype;
        b.diff_scores = l.outputs[0];
        b.scratch = l.workspace;
        return cross_entropy_backward(c, b, stream);
      },
      cross_entropy_scratch(loss));
}

CudaImplementation forward(const char* op, bool through_softmax, bool narrow) {
  return {op, "own", accepts_forward, [=](ofsdp_device&, const Problem& p) {
            return create_forward(p, through_softmax, narrow);
          }};
}

std::unique_ptr<CudaKernel> create_softmax_grad(ofsdp_device&, const Problem& p) {
  return create_backward(p, loss_of(p, p.in(1), 2, true), {1, 2, 3, -1});
}

std::unique_ptr<CudaKernel> create_nll_grad(ofsdp_device&, const Problem& p) {
  return create_backward(p, loss_of(p, p.out(0), 1, false), {-1, 1, 2, -1});
}

// What flows back through the logarithms of the sums is added by nothing here.
bool accepts_narrow_backward(const Problem& p) { return accepts_backward(p) && !p.has_in(5); }

std::unique_ptr<CudaKernel> create_narrow_grad(ofsdp_device&, const Problem& p) {
  return create_backward(p, loss_of(p, p.in(1), 2, true), {1, 2, 3, 4});
}

bool accepts_mean(const Problem& p) {
  const size_t last = p.inputs.size() - 1;
  return p.all_dtype(DType::kFloat32) && p.in(last) == p.in(last - 1);
}

const float* floats(const void* data) { return static_cast<const float*>(data); }

CudaImplementation mean_forward(const char* op, MeanLoss kind) {
  return {op, "own", accepts_mean, [kind](ofsdp_device&, const Problem& p) {
            return make_cuda_kernel(
                [kind, n = p.in(0).numel()](cudaStream_t stream, const ofsdp_launch& l) {
                  return mean_loss(kind, floats(l.inputs[0]), floats(l.inputs[1]), n,
                                   static_cast<float*>(l.outputs[0]), l.workspace, stream);
                },
                mean_loss_scratch(p.in(0).numel()));
          }};
}

// (dloss, prediction, target)
CudaImplementation mean_backward(const char* op, MeanLoss kind) {
  return {op, "own", accepts_mean, [kind](ofsdp_device&, const Problem& p) {
            return make_cuda_kernel(
                [kind, n = p.in(1).numel()](cudaStream_t stream, const ofsdp_launch& l) {
                  return mean_loss_grad(kind, floats(l.inputs[0]), floats(l.inputs[1]),
                                        floats(l.inputs[2]), n, static_cast<float*>(l.outputs[0]),
                                        stream);
                });
          }};
}

bool accepts_matches(const Problem& p) {
  return p.all_plain() && p.in(0).dtype == DType::kFloat32 && p.in(1).dtype == DType::kInt64;
}

std::unique_ptr<CudaKernel> create_matches(ofsdp_device&, const Problem& p) {
  MatchCount count;
  count.rows = p.in(0).shape[0];
  count.classes = p.in(0).shape[1];
  count.ignores = p.attributes.has("ignore_index");
  count.ignore_index = p.attributes.i("ignore_index", 0);
  return make_cuda_kernel(
      [count](cudaStream_t stream, const ofsdp_launch& l) {
        return count_matches(count, static_cast<const float*>(l.inputs[0]),
                             static_cast<const int64_t*>(l.inputs[1]),
                             static_cast<int64_t*>(l.outputs[0]), l.workspace, stream);
      },
      match_scratch(count));
}

}  // namespace

void add_losses(CudaImplementations& list) {
  list.push_back(forward("SoftmaxCrossEntropyLoss", true, false));
  list.push_back(forward("NegativeLogLikelihoodLoss", false, false));
  list.push_back(forward("ofsdp.NarrowCrossEntropyLoss", true, true));
  list.push_back(
      {"ofsdp.SoftmaxCrossEntropyLossGrad", "own", accepts_backward, create_softmax_grad});
  list.push_back({"ofsdp.NllLossGrad", "own", accepts_nll_backward, create_nll_grad});
  list.push_back(
      {"ofsdp.NarrowCrossEntropyLossGrad", "own", accepts_narrow_backward, create_narrow_grad});
  list.push_back(mean_forward("ofsdp.MseLoss", MeanLoss::kSquares));
  list.push_back(mean_backward("ofsdp.MseLossGrad", MeanLoss::kSquares));
  list.push_back(mean_forward("ofsdp.BceWithLogitsLoss", MeanLoss::kLogits));
  list.push_back(mean_backward("ofsdp.BceWithLogitsLossGrad", MeanLoss::kLogits));
  list.push_back({"ofsdp.ArgmaxMatches", "own", accepts_matches, create_matches});
}

}  // namespace ofsdp::kernels::cuda
