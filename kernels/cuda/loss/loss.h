// Launchers of the losses with their gradients, and of the numbers that go with an accuracy. Views;
// nothing is owned. Threads: any, one a stream. Errors: those of the launch
// (kernels/cuda/device/types.h).
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Losses of class labels: SoftmaxCrossEntropyLoss over scores, and NegativeLogLikelihoodLoss
// over log-probabilities; kernels/ops/loss/class_loss.h has the formulas, for class weights,
// ignore_index and label smoothing.
//
// scores [samples, classes, inner] and weights [classes] are of `dtype` (float32, float16,
// bfloat16); labels [samples, inner] are int32 or int64. Two ways to keep what the gradient needs:
// log_prob, of the shape and dtype of the scores (ONNX's second output), or `lse`, float32 a label,
// with the scores themselves, which is exact for 16-bit floats and a hundredth of the memory. The
// gradient may lie over the scores (or log_prob) it is made from. Sums of losses and weights are in
// double, in one order. Memory: forward reads the scores once (rows of 256 KiB or less come from
// the cache for log_prob and smoothing), backward reads and writes once; joined, both together read
// and write once, and do not read the scores of ignored labels.

enum class LossReduction { kNone, kMean, kSum };

struct CrossEntropy {
  DType dtype = DType::kFloat32;
  int64_t samples = 0, classes = 0, inner = 1;
  LossReduction reduction = LossReduction::kMean;
  bool through_softmax = true;  // false: scores are log-probabilities, and the gradient is theirs
  bool ignores = false;         // whether there is an ignore_index
  int64_t ignore_index = 0;
  double smoothing = 0;
  DType label_dtype = DType::kInt64;
  const void* labels = nullptr;
  const void* weights = nullptr;  // null: 1
  Fault fault = {};               // of labels outside of 0 .. classes - 1 that are not ignored
  // Elements from a label's scores to the next label's, also in log_prob and gradient, where inner
  // is 1; 0: classes.
  int64_t pitch = 0;
};

size_t cross_entropy_scratch(const CrossEntropy& c);  // of each

// log_prob (which may be scores), lse: null where not wanted. loss: of `loss_dtype`, one or
// (kNone) one a label.
struct CrossEntropyForward {
  const void* scores = nullptr;
  void* log_prob = nullptr;
  float* lse = nullptr;
  void* loss = nullptr;
  DType loss_dtype = DType::kFloat32;
  void* scratch = nullptr;
};
cudaError_t cross_entropy_forward(const CrossEntropy& c, const CrossEntropyForward& f,
                                  cudaStream_t stream);

// scores: those of the forward with its lse; or log_prob with lse null. diff_loss: of `loss_dtype`,
// one or one a label, in device memory: the loss scale and the weight of a micro-batch are in it.
struct CrossEntropyBackward {
  const void* scores = nullptr;
  const float* lse = nullptr;
  const void* diff_loss = nullptr;
  DType loss_dtype = DType::kFloat32;
  void* diff_scores = nullptr;
  void* scratch = nullptr;
};
cudaError_t cross_entropy_backward(const CrossEntropy& c, const CrossEntropyBackward& b,
                                   cudaStream_t stream);

// The loss and its gradient by the scores, which may lie over them: the bits of a forward that
// keeps log_prob (float32) or lse (16 bits) and its backward. inner is 1; through softmax; not
// kNone.
struct CrossEntropyJoined {
  const void* scores = nullptr;
  const float* diff_loss = nullptr;
  float* loss = nullptr;
  void* diff_scores = nullptr;
  void* scratch = nullptr;
};
cudaError_t cross_entropy_joined(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream);

// --- Losses that are a mean over two tensors of one shape, and their gradients: the squared
// difference, and the cross entropy of a logit and a probability; kernels/ops/loss/mean_loss.cpp
// has the formulas.
//
// prediction, target, gradient: `numel` float32; loss, diff_loss: one float32. Losses are added in
// double, blocks of 4096 elements and then the blocks, in one order. Memory: both operands once;
// the gradient once more.

enum class MeanLoss { kSquares, kLogits };

size_t mean_loss_scratch(int64_t numel);
cudaError_t mean_loss(MeanLoss kind, const float* prediction, const float* target, int64_t numel,
                      float* loss, void* scratch, cudaStream_t stream);
cudaError_t mean_loss_grad(MeanLoss kind, const float* diff_loss, const float* prediction,
                           const float* target, int64_t numel, float* gradient,
                           cudaStream_t stream);

// --- How many rows of predictions have their first largest element at the label, and how many rows
// count: the numbers of an accuracy (ofsdp.ArgmaxMatches).
//
// prediction: float32 [rows, classes]; labels: int64 [rows]; result: int64[2]. A row whose label is
// the ignore_index does not count; one with a NaN matches nothing. A warp a row, then one block
// adds. Memory: prediction once.

struct MatchCount {
  int64_t rows = 0, classes = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
  int64_t pitch = 0;  // of prediction: elements from a row to the next; 0: classes
};

size_t match_scratch(const MatchCount& m);
cudaError_t count_matches(const MatchCount& m, const float* prediction, const int64_t* labels,
                          int64_t* result, void* scratch, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
