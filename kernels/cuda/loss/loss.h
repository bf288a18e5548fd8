// Launchers for losses with gradients, and for accuracy counts. Errors as in
// kernels/cuda/device/types.h.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Class labels: SoftmaxCrossEntropyLoss on scores, NegativeLogLikelihoodLoss on
// log-probabilities. kernels/ops/loss/class_loss.h has the formulas, with class weights,
// ignore_index and label smoothing.
//
// scores [samples, classes, inner] and weights [classes]: `dtype` (float32, float16, bfloat16);
// labels [samples, inner]: int32 or int64. For the backward pass the forward pass saves either
// log_prob, shaped like scores (ONNX's second output), or `lse`, one float32 per label, to be used
// with the scores; lse is exact for 16-bit scores and 100 times smaller. Gradients may alias scores
// or log_prob. Losses and weights are summed in double, in label order.
//
// Forward reads scores once (for log_prob and smoothing, rows up to 256 KiB come from the cache
// again), backward reads and writes once. The joined launcher does both in one read and one write,
// and skips ignored labels.

enum class LossReduction { kNone, kMean, kSum };

struct CrossEntropy {
  DType dtype = DType::kFloat32;
  int64_t samples = 0, classes = 0, inner = 1;
  LossReduction reduction = LossReduction::kMean;
  bool through_softmax = true;  // false: scores are log-probabilities, and the gradient is theirs
  bool ignores = false;         // ignore_index is set
  int64_t ignore_index = 0;
  double smoothing = 0;
  DType label_dtype = DType::kInt64;
  const void* labels = nullptr;
  const void* weights = nullptr;  // null: all 1
  Fault fault = {};               // for labels out of range
  // Elements between score rows, also in log_prob and gradient, if inner is 1; 0: classes.
  int64_t pitch = 0;
};

size_t cross_entropy_scratch(const CrossEntropy& c);  // for each of the three launchers

// log_prob (may alias scores) and lse: null if not needed. loss: `loss_dtype`, one value, or one
// per label for kNone.
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

// scores: the forward pass's scores with lse, or log_prob with lse = null. diff_loss: `loss_dtype`,
// one value or one per label, device memory; it includes loss scale and micro-batch weight.
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

// Loss and gradient together, with the bits of separate passes that save log_prob (float32) or lse
// (16 bits). diff_scores may alias scores. REQUIRES: inner == 1, through_softmax, reduction !=
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

// --- Mean over two tensors with equal shapes: squared error, or cross entropy between logit and
// probability (formulas: kernels/ops/loss/mean_loss.cpp).
//
// prediction, target, gradient: `numel` float32; loss, diff_loss: one float32. Sums in double:
// blocks of 4096 elements, then the block sums, in order. Each operand is read once.

enum class MeanLoss { kSquares, kLogits };

size_t mean_loss_scratch(int64_t numel);
cudaError_t mean_loss(MeanLoss kind, const float* prediction, const float* target, int64_t numel,
                      float* loss, void* scratch, cudaStream_t stream);
cudaError_t mean_loss_grad(MeanLoss kind, const float* diff_loss, const float* prediction,
                           const float* target, int64_t numel, float* gradient,
                           cudaStream_t stream);

// --- Accuracy (ofsdp.ArgmaxMatches): counts rows with argmax == label, and rows that count. The
// argmax is the first maximum.
//
// prediction: float32 [rows, classes]; labels: int64 [rows]; result: int64 [2]. Rows labelled
// ignore_index do not count; rows with NaN never match.

struct MatchCount {
  int64_t rows = 0, classes = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
  int64_t pitch = 0;  // elements between prediction rows; 0: classes
};

size_t match_scratch(const MatchCount& m);
cudaError_t count_matches(const MatchCount& m, const float* prediction, const int64_t* labels,
                          int64_t* result, void* scratch, cudaStream_t stream);

// --- Contrastive loss without the matrix products; formulas in
// kernels/ops/loss/contrastive_loss.cpp. Everything is float32.
//
// Scores [rows, ranks * block]: this rank's rows times all ranks' rows, divided by the temperature.
// Each rank has a block of columns; only as many as the rank has rows are used. Sums read scores
// twice, the second time from the cache; weights are computed in place.
//
// u [rows, width]: rows of x divided by their norms. du and dx have the same shape.
cudaError_t unit_rows(int64_t rows, int64_t width, const float* x, float* u, cudaStream_t stream);
cudaError_t unit_rows_grad(int64_t rows, int64_t width, const float* du, const float* x, float* dx,
                           cudaStream_t stream);

struct Scores {
  int64_t rows = 0;
  int64_t block = 0;  // columns per rank
  GatheredRows of;    // only the row counts are read
  int64_t row() const { return of.ranks * block; }
};

// sums[2 i + k] = log sum_j e^scores[i, j].
cudaError_t contrastive_sums(const Scores& s, const float* scores, int k, float* sums,
                             cudaStream_t stream);

// Mean over rows of (sums[2 i] + sums[2 i + 1]) / 2 - dot(a_i, b_i) / T, summed in double. losses:
// scratch [rows].
struct ContrastiveMean {
  int64_t rows = 0, width = 0;
  float inverse_temperature = 1;
  const float *a = nullptr, *b = nullptr, *sums = nullptr;
  float *losses = nullptr, *loss = nullptr;
};
cudaError_t contrastive_mean(const ContrastiveMean& m, cudaStream_t stream);

// terms [rows, 3]: both sums, and diff_loss / rows.
cudaError_t contrastive_terms(int64_t rows, const float* diff_loss, const float* sums, float* terms,
                              cudaStream_t stream);

// Replaces scores by the weights for the other side's rows; 0 in unused columns. `own`: this rank's
// terms; s.of: all ranks' terms; own_sum: index of the sum over this row.
cudaError_t contrastive_weights(const Scores& s, const float* own, int own_sum, int64_t rank,
                                float* scores, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
