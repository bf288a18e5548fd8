// Launchers of the CUDA kernels for losses and their gradients, and for accuracy counts. The
// operators in this folder call them. All pointers are device memory that the caller owns;
// launchers follow the rules and return the errors of kernels/cuda/device/types.h.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// --- Class labels: SoftmaxCrossEntropyLoss on scores (logits), NegativeLogLikelihoodLoss on
// log-probabilities. kernels/ops/loss/class_loss.h has the formulas, with class weights,
// ignore_index and label smoothing.
//
//   scores   [samples, classes, inner]  `dtype`: float32, float16 or bfloat16
//   weights  [classes]                  `dtype`
//   labels   [samples, inner]           int32 or int64
//
// The backward pass needs the log-probabilities. The forward pass saves one of:
//
//   log_prob  [samples, classes, inner] in `dtype`; ONNX's second output
//   lse       [samples, inner] in float32: each label's log sum exp over classes. Backward computes
//             log_prob = score - lse from the scores again. For 16-bit scores that is more exact,
//             since log_prob would be rounded to 16 bits, and takes 4 instead of 2 * classes bytes
//             per label
//
// Gradients may be written over the scores or log_prob. Losses and weights are summed in double, in
// label order.
//
// Forward reads the scores from memory once. To write log_prob, or to smooth labels, it reads each
// row a second time; rows up to 256 KiB then come from the cache. Backward reads and writes once.
// The joined launcher does both passes with one read and one write, and does not touch the rows of
// ignored labels.

enum class LossReduction { kNone, kMean, kSum };

struct CrossEntropy {
  DType dtype = DType::kFloat32;
  int64_t samples = 0, classes = 0, inner = 1;
  LossReduction reduction = LossReduction::kMean;
  // true: scores are logits, and backward returns the logits' gradient. false: scores are
  // log-probabilities, and backward returns the log-probabilities' gradient.
  bool through_softmax = true;
  bool ignores = false;  // ignore_index is set
  int64_t ignore_index = 0;
  double smoothing = 0;
  DType label_dtype = DType::kInt64;
  const void* labels = nullptr;
  const void* weights = nullptr;  // null: all 1
  Fault fault = {};               // records the first label that is out of range
  // Elements from the start of a score row to the start of the next one, in scores, log_prob and
  // gradient. 0: `classes`, the rows are dense. REQUIRES: 0 unless inner is 1.
  int64_t pitch = 0;
};

// Returns the scratch bytes of each of the three launchers below.
size_t cross_entropy_scratch(const CrossEntropy& c);

// log_prob (may be the same memory as scores) and lse: null if not needed. loss: one `loss_dtype`
// value, or one per label for kNone.
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

// If lse is given, `scores` are the forward pass's scores; if lse is null, the saved log_prob.
// diff_loss: the loss's gradient, one `loss_dtype` value, or one per label for kNone. It contains
// the loss scale and the micro-batch's weight.
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

// Computes loss and gradient together. The results are bit-identical to those of a forward and a
// backward launch that save log_prob (float32 scores) or lse (16-bit scores). loss and diff_loss:
// one float32. diff_scores: `dtype`; may be the same memory as scores. REQUIRES: inner == 1,
// through_softmax, reduction != kNone.
struct CrossEntropyJoined {
  const void* scores = nullptr;
  const float* diff_loss = nullptr;
  float* loss = nullptr;
  void* diff_scores = nullptr;
  void* scratch = nullptr;
};
cudaError_t cross_entropy_joined(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream);
// The same with the scores of some rows at a time, and with the same bits: first the totals of all
// labels, then each part's rows, whose scores and gradients begin at row `first`, then the loss.
cudaError_t cross_entropy_totals(const CrossEntropy& c, const CrossEntropyJoined& j,
                                 cudaStream_t stream);
cudaError_t cross_entropy_rows(const CrossEntropy& c, const CrossEntropyJoined& j, int64_t first,
                               int64_t rows, cudaStream_t stream);
cudaError_t cross_entropy_loss(const CrossEntropy& c, const CrossEntropyJoined& j,
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

// --- Accuracy (ofsdp.ArgmaxMatches): counts the rows with argmax == label, and the rows that have
// a label. The argmax is the first maximum.
//
// prediction: float32 [rows, classes]; labels: int64 [rows]; result: int64 [2], in this order. A
// row with the label ignore_index is in neither count; a row that contains NaN never matches.

struct MatchCount {
  int64_t rows = 0, classes = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
  int64_t pitch = 0;  // elements from one row's start to the next one's; 0: classes
};

size_t match_scratch(const MatchCount& m);
cudaError_t count_matches(const MatchCount& m, const float* prediction, const int64_t* labels,
                          int64_t* result, void* scratch, cudaStream_t stream);

// --- Rows for other metrics (ofsdp.MeasureClasses, ofsdp.MeasureValues):
// kernels/ops/loss/measures.cpp says which numbers a row has.
//
// prediction: float32 [rows, classes] and labels int64 [rows], or both float32 [count]; facts:
// float64 [rows, 5] or [count, 2]. Reads a prediction twice if it is measured by likelihood.

struct ClassMeasures {
  int64_t rows = 0, classes = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
  int64_t likelihood = 0;  // 0: none; 1: scores are logits; 2: they are log-probabilities
};

cudaError_t measure_classes(const ClassMeasures& m, const float* prediction, const int64_t* labels,
                            double* facts, cudaStream_t stream);
cudaError_t measure_values(int64_t count, const float* prediction, const float* labels,
                           double* facts, cudaStream_t stream);

// --- Distillation loss: the mean over kept rows of KL(softmax(teacher / T), softmax(student / T)).
// kernels/ops/loss/distillation_loss.cpp has the formulas.
//
// student, teacher, gradient (the student's): float32 [rows, classes]; labels: int32 or int64
// [rows], or null, and then every row is kept. Each pass reads a row three times; rows up to 256
// KiB come from the cache after the first.

struct Distillation {
  int64_t rows = 0, classes = 0;
  double temperature = 1;
  float scale = 1;  // 1 / temperature
  bool ignores = false, wide_labels = true;
  int64_t ignore_index = 0;
  const float *student = nullptr, *teacher = nullptr;
  const void* labels = nullptr;
};

size_t distillation_scratch(int64_t rows);
cudaError_t distillation_loss(const Distillation& d, float* loss, void* scratch,
                              cudaStream_t stream);
cudaError_t distillation_grad(const Distillation& d, const float* diff_loss, float* gradient,
                              void* scratch, cudaStream_t stream);

// --- Contrastive loss. Row i of a and row i of b are a pair; every other row of the other operand,
// on any rank, is a negative. kernels/ops/loss/contrastive_loss.cpp has the formulas and names.
// Everything is float32. The operators (contrastive_operators.cpp) multiply the matrices; these
// launchers do the rest.
//
// One direction compares this rank's rows of one operand ("own": a, then b) with all ranks' rows of
// the other operand ("other": b, then a):
//
//   1. the operator multiplies  scores = own * other^T / temperature
//   2. forward   contrastive_sums; after both directions contrastive_mean
//      backward  contrastive_terms once; then per direction, on the same scores again,
//                contrastive_weights, and the operator multiplies d own = weights * other / 2T
//
// unit_rows divides each row of x [rows, width] by its 2-norm, or by 1e-12 if the norm is smaller.
// unit_rows_grad returns dx from du, both [rows, width].
cudaError_t unit_rows(int64_t rows, int64_t width, const float* x, float* u, cudaStream_t stream);
cudaError_t unit_rows_grad(int64_t rows, int64_t width, const float* du, const float* x, float* dx,
                           cudaStream_t stream);

// The layout of scores [rows, row()]. A row is split into one block of columns per rank; block r
// holds the scores of rank r's rows, and its last columns are unused if rank r has fewer rows.
struct Scores {
  int64_t rows = 0;   // this rank's rows of `own`
  int64_t block = 0;  // columns per rank
  GatheredRows of;    // each rank's row count; only contrastive_weights also reads the data
  int64_t row() const { return of.ranks * block; }  // a row's length
};

// sums[2 i + k] = log sum_j e^scores[i, j] over the used columns j; sums: [rows, 2]. k: 0 if `own`
// is a (the formulas' r_i), 1 if it is b (c_i). Reads each row twice, the second time from the
// cache.
cudaError_t contrastive_sums(const Scores& s, const float* scores, int k, float* sums,
                             cudaStream_t stream);

// loss (one value) = the mean over rows of (sums[2 i] + sums[2 i + 1]) / 2 - dot(a_i, b_i) / T,
// summed in double. a, b: [rows, width], this rank's. losses: scratch [rows].
struct ContrastiveMean {
  int64_t rows = 0, width = 0;
  float inverse_temperature = 1;
  const float *a = nullptr, *b = nullptr, *sums = nullptr;
  float *losses = nullptr, *loss = nullptr;
};
cudaError_t contrastive_mean(const ContrastiveMean& m, cudaStream_t stream);

// Writes terms [rows, 3], which ranks then gather: r_i, c_i and g_i = diff_loss / rows.
cudaError_t contrastive_terms(int64_t rows, const float* diff_loss, const float* sums, float* terms,
                              cudaStream_t stream);

// Replaces each score by the weight of row j of `other` in the gradient of row i of `own`; 0 in
// unused columns. For own = a, with d_ij = 1 for a pair and else 0:
//
//   weight = g_i (e^(score - r_i) - d_ij) + g_j (e^(score - c_j) - d_ij)
//
// For own = b, r and c change places. own: this rank's terms; s.of.data: all ranks' terms,
// gathered; own_sum: 0 if `own` is a, 1 if b; rank: this rank, whose block of columns holds the
// pairs.
cudaError_t contrastive_weights(const Scores& s, const float* own, int own_sum, int64_t rank,
                                float* scores, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
