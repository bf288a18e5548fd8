// Losses, their gradients, and matches.
#include "kernels/cuda/loss/ctc.h"
#include "kernels/cuda/loss/loss.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

struct LossKind {
  const char* name;
  LossReduction reduction;
  bool log_prob;  // kept, in place of the scores
  double smoothing;
  int64_t inner;
};

// `classes` scores for each of `samples`; the weights come with smoothing.
CrossEntropy cross_entropy_of(Buffers& m, DType dtype, int64_t samples, int64_t classes,
                              const LossKind& kind) {
  CrossEntropy c;
  c.dtype = dtype;
  c.samples = samples;
  c.classes = classes;
  c.inner = kind.inner;
  c.reduction = kind.reduction;
  c.ignores = true;
  c.ignore_index = 3;
  c.smoothing = kind.smoothing;
  c.labels = m.whole(samples * kind.inner, classes);
  c.weights = kind.smoothing != 0 ? m.floats(dtype, classes) : nullptr;
  return c;
}

void add_cross_entropy(Table& table, DType dtype, int64_t samples, int64_t classes,
                       const LossKind& kind) {
  table.row(named("cross entropy", kind.name, dtype, samples, classes), [=](Buffers& m) {
    const int64_t count = samples * kind.inner;
    const CrossEntropy c = cross_entropy_of(m, dtype, samples, classes, kind);
    CrossEntropyForward f;
    f.scores = m.floats(dtype, count * classes);
    f.log_prob = kind.log_prob ? const_cast<void*>(f.scores) : nullptr;
    f.lse = kind.log_prob ? nullptr : m.floats(count);
    f.loss = m.floats(count);
    f.scratch = m.zeros(cross_entropy_scratch(c));
    if (const cudaError_t error = cross_entropy_forward(c, f, nullptr)) return error;
    CrossEntropyBackward b;
    b.scores = f.scores;
    b.lse = f.lse;
    b.diff_loss = m.floats(count);
    b.diff_scores = const_cast<void*>(f.scores);
    b.scratch = f.scratch;
    return cross_entropy_backward(c, b, nullptr);
  });
  if (kind.reduction == LossReduction::kNone || kind.inner != 1) return;
  table.row(named("cross entropy with gradient", kind.name, dtype, samples, classes),
            [=](Buffers& m) {
              const CrossEntropy c = cross_entropy_of(m, dtype, samples, classes, kind);
              CrossEntropyJoined j;
              j.diff_scores = m.floats(dtype, samples * classes);
              j.scores = j.diff_scores;
              j.diff_loss = m.floats(1);
              j.loss = m.floats(1);
              j.scratch = m.zeros(cross_entropy_scratch(c));
              return cross_entropy_joined(c, j, nullptr);
            });
}

void add_distillation(Table& table) {
  table.row("distillation", [](Buffers& m) {
    Distillation d;
    d.rows = 20;
    d.classes = 1000;
    d.ignores = true;
    d.ignore_index = 3;
    d.student = m.floats(d.rows * d.classes);
    d.teacher = m.floats(d.rows * d.classes);
    d.labels = m.whole(d.rows, d.classes);
    void* const scratch = m.zeros(distillation_scratch(d.rows));
    if (const cudaError_t error = distillation_loss(d, m.floats(1), scratch, nullptr)) return error;
    return distillation_grad(d, m.floats(1), m.floats(d.rows * d.classes), scratch, nullptr);
  });
}

void add_measures(Table& table) {
  table.row("rows for metrics", [](Buffers& m) {
    constexpr int64_t kRows = 70, kClasses = 33;
    const float* const scores = m.floats(kRows * kClasses);
    const int64_t* const labels = m.whole(kRows, kClasses);
    for (const int64_t likelihood : {0, 1, 2}) {
      const ClassMeasures measures{kRows, kClasses, true, 3, likelihood};
      auto* const facts = m.blank<double>(kRows * 5);
      if (const cudaError_t error = measure_classes(measures, scores, labels, facts, nullptr)) {
        return error;
      }
    }
    return measure_values(kRows, scores, m.floats(kRows), m.blank<double>(2 * kRows), nullptr);
  });
}

void add_mean_losses(Table& table) {
  constexpr int64_t kNumel = 9000;
  for (const MeanLoss kind : {MeanLoss::kSquares, MeanLoss::kLogits}) {
    table.row(named(kind == MeanLoss::kSquares ? "mean of squares" : "mean of logits"),
              [=](Buffers& m) {
                const float *x = m.floats(kNumel), *t = m.positive(kNumel);
                void* const scratch = m.zeros(mean_loss_scratch(kNumel));
                if (const cudaError_t error =
                        mean_loss(kind, x, t, kNumel, m.floats(1), scratch, nullptr)) {
                  return error;
                }
                return mean_loss_grad(kind, m.floats(1), x, t, kNumel, m.floats(kNumel), nullptr);
              });
  }
}

// Two ranks; some of their rows are missing.
void add_contrastive(Table& table) {
  constexpr int64_t kRows = 70, kWidth = 45, kMax = 300, kBlock = 304, kHeader = 16;
  table.row("contrastive", [=](Buffers& m) -> cudaError_t {
    const float *a = m.floats(kRows * kWidth), *b = m.floats(kRows * kWidth);
    OFSDP_CUDA_TRY(unit_rows(kRows, kWidth, a, m.floats(kRows * kWidth), nullptr));
    OFSDP_CUDA_TRY(unit_rows_grad(kRows, kWidth, b, a, m.floats(kRows * kWidth), nullptr));
    const int64_t part = kHeader + kMax * 3;
    Scores s;
    s.rows = kRows;
    s.block = kBlock;
    float* const joined = m.floats(2 * part);
    joined[0] = kRows;
    joined[part] = kMax;
    s.of = {joined, 2, part, kHeader, kMax, 3};
    float* const scores = m.floats(kRows * s.row());
    float *const sums = m.floats(2 * kRows), *const losses = m.floats(kRows);
    OFSDP_CUDA_TRY(contrastive_sums(s, scores, 0, sums, nullptr));
    OFSDP_CUDA_TRY(contrastive_sums(s, scores, 1, sums, nullptr));
    OFSDP_CUDA_TRY(
        contrastive_mean({kRows, kWidth, 2.0f, a, b, sums, losses, m.floats(1)}, nullptr));
    float* const terms = m.floats(3 * kRows);
    OFSDP_CUDA_TRY(contrastive_terms(kRows, m.floats(1), sums, terms, nullptr));
    return contrastive_weights(s, terms, 1, 0, scores, nullptr);
  });
}

// More states than a block has threads, and labels that repeat.
void add_ctc(Table& table, bool time_first) {
  table.row(
      named("ctc", time_first ? "time first" : "samples first"), [=](Buffers& m) -> cudaError_t {
        CtcParams s;
        s.samples = 2;
        s.places = 150;
        s.classes = 30;
        s.steps = 310;
        s.ignore = -100;
        s.space = 3;
        s.time_first = time_first;
        const int64_t rows = s.samples * s.steps;
        const float* const scores = m.floats(rows * s.classes);
        int64_t* const labels = m.whole(s.samples * s.places, s.classes - 1);
        for (int64_t i = 0; i < s.samples * s.places; ++i) ++labels[i];
        void* const scratch = m.zeros(ctc_scratch(s));
        OFSDP_CUDA_TRY(ctc_loss(s, scores, labels, m.floats(1), scratch, nullptr));
        OFSDP_CUDA_TRY(
            ctc_grad(s, m.floats(1), scores, labels, m.floats(rows * s.classes), scratch, nullptr));
        return ctc_measure(s, scores, labels, m.blank<double>(4 * s.samples),
                           m.zeros(ctc_measure_scratch(s)), nullptr);
      });
}

}  // namespace

void add_loss_rows(Table& table) {
  const LossKind kinds[] = {{"mean", LossReduction::kMean, false, 0, 1},
                            {"sum smoothed", LossReduction::kSum, true, 0.1, 1},
                            {"each", LossReduction::kNone, false, 0, 1},
                            {"mean of columns", LossReduction::kMean, true, 0.1, 5}};
  for (const DType dtype : table.floats()) {
    for (const int64_t classes : table.all() ? std::vector<int64_t>{10, 97, 1001, 5000, 9001}
                                             : std::vector<int64_t>{97, 1501}) {
      for (const LossKind& kind : kinds) add_cross_entropy(table, dtype, 9, classes, kind);
    }
  }
  add_cross_entropy(table, DType::kFloat32, 4500, 3, kinds[0]);  // several blocks of labels
  add_mean_losses(table);
  add_distillation(table);
  add_measures(table);
  add_contrastive(table);
  add_ctc(table, false);
  add_ctc(table, true);
  table.row("matches", [](Buffers& m) {
    MatchCount c{70, 50, true, 3};
    return count_matches(c, m.floats(70 * 50), m.whole(70, 50), m.blank<int64_t>(2),
                         m.zeros(match_scratch(c)), nullptr);
  });
}

}  // namespace ofsdp::races
