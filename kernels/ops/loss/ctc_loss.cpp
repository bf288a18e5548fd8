// Connectionist temporal classification: labels without positions for scores of every time step
// (Graves et al., "Connectionist Temporal Classification", 2006).
//
// ofsdp.CtcLoss(scores [rows, C], labels [N, S]) -> the mean over N of a sample's loss divided by
// its number of labels, as torch.nn.CTCLoss has it. rows = N * T; a sample's rows are neighbours,
// or, with attribute time_first, rows t * N + n are time step t of all samples. Scores go through
// log_softmax, which leaves log-probabilities as they are. Attributes: blank; ignore_index, the
// value of labels that are padding.
//
// A path is a class for each step. It spells a sample's labels after equal neighbours are merged
// and blanks removed. The loss is -ln of the probability of all paths that spell them. With the
// labels between blanks, l = blank, y1, blank, y2, ..., blank, and log-probabilities p:
//
//   alpha_t(s) = p_t(l_s) + ln (e^alpha_t-1(s) + e^alpha_t-1(s-1) + e^alpha_t-1(s-2))
//
// The third term is left out if l_s is blank or l_s-2. beta is the same from the end, without step
// t. d loss / d score_t(c) = e^p_t(c) - sum over s with l_s = c of e^(alpha_t(s) + beta_t(s) +
// loss). Samples are computed in double, each by one thread.
//
// ofsdp.MeasureCtc(scores, labels): float64 [N, 4], by greedy decoding: the edit distance of the
// classes to the labels, the number of labels, and both again in words. Attribute space: the class
// between words; -1: a row is a word.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/formulas/edit_distance.h"
#include "kernels/ops/loss/ctc_shape.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace ctc_loss {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();  // ln 0

Status check(const TensorDesc& scores, const TensorDesc& labels, const Attributes& attributes) {
  const bool fits = is_floating(scores.dtype) && scores.shape.rank() == 2 &&
                    labels.dtype == DType::kInt64 && labels.shape.rank() >= 1 &&
                    (labels.shape[0] == 0 || scores.shape[0] % labels.shape[0] == 0);
  if (!fits) {
    return input_error(
        "expected scores [samples * steps, C] and int64 labels [samples, places], "
        "found {} and {}",
        scores.text(), labels.text());
  }
  const int64_t blank = attributes.i("blank", 0), classes = scores.shape[1];
  if (blank >= 0 && blank < classes) return ok_status();
  return input_error("expected the blank among 0..{}, found {}", classes - 1, blank);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check(c.inputs[0], c.inputs[1], c.attributes));
  return std::vector{TensorDesc{DType::kFloat32, {}}};
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check(c.inputs[1], c.inputs[2], c.attributes));
  return std::vector{c.inputs[1]};
}

Result<std::vector<TensorDesc>> infer_measure(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check(c.inputs[0], c.inputs[1], c.attributes));
  return std::vector{TensorDesc{DType::kFloat64, {c.inputs[1].shape[0], kSequenceFacts}}};
}

void grad(GradBuilder& b) {
  const Attributes attributes = b.attributes();
  b.set_grad(0,
             b.emit1("ofsdp.CtcLossGrad", {b.grad_output(0), b.input(0), b.input(1)}, attributes));
}

double log_sum(double a, double b) {
  const double most = std::max(a, b);
  return most == kNever ? kNever : most + std::log1p(std::exp(std::min(a, b) - most));
}

// One sample's numbers, in memory that the caller gives.
struct Work {
  static size_t doubles(const CtcShape& s) {
    return static_cast<size_t>(2 * s.steps * s.states() + s.steps + 2 * s.states() + s.classes +
                               s.places);
  }

  Work(const CtcShape& s, double* memory) : log_probs(memory) {
    const auto table = static_cast<size_t>(s.steps * s.states());
    alpha = log_probs + table;
    log_sums = alpha + table;
    beta = log_sums + s.steps;
    after = beta + s.states();
    share = after + s.states();
    spelled = reinterpret_cast<int64_t*>(share + s.classes);
  }

  double* log_probs;  // [steps, states]
  double* alpha;      // [steps, states]
  double* log_sums;   // for each step ln of the sum over classes
  double *beta, *after;
  double* share;  // of each class
  int64_t* spelled;
};

// Reads a sample's labels and returns how many there are. Returns an error for a label that is no
// class, and for more labels than the steps can spell.
Result<size_t> read_labels(const CtcShape& s, int64_t sample, const auto* labels,
                           int64_t* spelled) {
  size_t count = 0;
  int64_t repeats = 0;
  for (int64_t i = 0; i < s.places; ++i) {
    const auto label = static_cast<int64_t>(labels[sample * s.places + i]);
    if (label == s.ignore) continue;
    if (label < 0 || label >= s.classes || label == s.blank) {
      return input_error(
          "label {} of sample {}: expected a class from 0 to {} other than the "
          "blank {}",
          label, sample, s.classes - 1, s.blank);
    }
    repeats += count > 0 && spelled[count - 1] == label ? 1 : 0;
    spelled[count++] = label;
  }
  const int64_t least = static_cast<int64_t>(count) + repeats;
  if (least <= s.steps) return count;
  return input_error(
      "sample {}: expected at least {} time steps for {} labels, {} of them like "
      "the label before; found {}",
      sample, least, count, repeats, s.steps);
}

class Sample {
 public:
  Sample(const CtcShape& s, int64_t sample, const auto* scores, size_t labels, const Work& work)
      : s_(s), work_(work), states_(2 * labels + 1), steps_(static_cast<size_t>(s.steps)) {
    for (size_t t = 0; t < steps_; ++t) {
      const auto* row = scores + s.row(sample, static_cast<int64_t>(t)) * s.classes;
      double most = kNever, sum = 0;
      for (int64_t c = 0; c < s.classes; ++c) most = std::max(most, static_cast<double>(row[c]));
      for (int64_t c = 0; c < s.classes; ++c) sum += std::exp(static_cast<double>(row[c]) - most);
      work.log_sums[t] = most + std::log(sum);
      for (size_t k = 0; k < states_; ++k) {
        work.log_probs[t * states_ + k] = static_cast<double>(row[class_of(k)]) - work.log_sums[t];
      }
    }
  }

  size_t states() const { return states_; }
  int64_t class_of(size_t state) const {
    return state % 2 == 0 ? s_.blank : work_.spelled[state / 2];
  }

  // Fills alpha; returns the loss.
  double forward() const {
    if (steps_ == 0) return 0;
    std::fill_n(work_.alpha, steps_ * states_, kNever);
    for (size_t k = 0; k < std::min<size_t>(2, states_); ++k) work_.alpha[k] = work_.log_probs[k];
    for (size_t t = 1; t < steps_; ++t) {
      const double* before = work_.alpha + (t - 1) * states_;
      for (size_t k = 0; k < states_; ++k) {
        double sum = before[k];
        if (k > 0) sum = log_sum(sum, before[k - 1]);
        if (skips(k)) sum = log_sum(sum, before[k - 2]);
        work_.alpha[t * states_ + k] = sum + work_.log_probs[t * states_ + k];
      }
    }
    const double* last = work_.alpha + (steps_ - 1) * states_;
    return -log_sum(last[states_ - 1], states_ > 1 ? last[states_ - 2] : kNever);
  }

  // Fills beta of step t from `after`, that of step t + 1.
  void backward(size_t t) const {
    const double *after = work_.after, *probs = work_.log_probs + (t + 1) * states_;
    for (size_t k = 0; k < states_; ++k) {
      if (t + 1 == steps_) {
        work_.beta[k] = k + 2 >= states_ ? 0 : kNever;
        continue;
      }
      double sum = after[k] + probs[k];
      if (k + 1 < states_) sum = log_sum(sum, after[k + 1] + probs[k + 1]);
      if (k + 2 < states_ && skips(k + 2)) sum = log_sum(sum, after[k + 2] + probs[k + 2]);
      work_.beta[k] = sum;
    }
  }

 private:
  // Returns whether a path may come to the state from two states before.
  bool skips(size_t k) const { return k % 2 == 1 && k > 1 && class_of(k) != class_of(k - 2); }

  const CtcShape& s_;
  const Work& work_;
  size_t states_, steps_;
};

double sample_loss(const CtcShape& s, int64_t n, const auto* scores, size_t labels,
                   const Work& work) {
  return Sample(s, n, scores, labels, work).forward() /
         static_cast<double>(std::max<size_t>(labels, 1));
}

// Writes the gradient of one sample's loss times `scale`.
template <typename T>
void sample_grad(const CtcShape& s, int64_t n, const T* scores, size_t labels, double scale,
                 T* diff, Work& work) {
  const Sample sample(s, n, scores, labels, work);
  const double loss = sample.forward();
  scale /= static_cast<double>(std::max<size_t>(labels, 1));
  for (auto t = static_cast<size_t>(s.steps); t-- > 0;) {
    sample.backward(t);
    std::fill_n(work.share, s.classes, 0.0);
    for (size_t k = 0; k < sample.states(); ++k) {
      work.share[sample.class_of(k)] +=
          std::exp(work.alpha[t * sample.states() + k] + work.beta[k] + loss);
    }
    const int64_t row = s.row(n, static_cast<int64_t>(t)) * s.classes;
    for (int64_t c = 0; c < s.classes; ++c) {
      const double p = std::exp(static_cast<double>(scores[row + c]) - work.log_sums[t]);
      diff[row + c] = static_cast<T>(scale * (p - work.share[c]));
    }
    std::swap(work.beta, work.after);
  }
}

// Calls f(sample, labels, work) for each sample. The first error in order of samples counts.
Status for_each_sample(const CtcShape& s, const auto* labels, double* memory, const auto& f) {
  const auto work_of = [&](int64_t n) {
    return Work(s, memory + static_cast<size_t>(n) * Work::doubles(s));
  };
  for (int64_t n = 0; n < s.samples; ++n) {
    OFSDP_RETURN_IF_ERROR(read_labels(s, n, labels, work_of(n).spelled).status());
  }
  parallel_each(s.samples, 1, [&](int64_t n) {
    Work work = work_of(n);
    if (const auto count = read_labels(s, n, labels, work.spelled); count.ok()) f(n, *count, work);
  });
  return ok_status();
}

size_t work_doubles(const CtcShape& s) { return static_cast<size_t>(s.samples) * Work::doubles(s); }

std::unique_ptr<Kernel> create(const Problem& p) {
  const CtcShape s(p.in(0).shape, p.in(1).shape, p.attributes);
  const size_t samples = static_cast<size_t>(s.samples);
  auto run = [s, samples](const KernelArgs& a) -> Status {
    auto* losses = reinterpret_cast<double*>(a.workspace);
    OFSDP_RETURN_IF_ERROR(for_each_sample(
        s, a.in<int64_t>(1), losses + samples, [&](int64_t n, size_t labels, const Work& work) {
          losses[n] = sample_loss(s, n, a.in<float>(0), labels, work);
        }));
    double sum = 0;
    for (int64_t n = 0; n < s.samples; ++n) sum += losses[n];
    *a.out<float>(0) =
        s.samples == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(s.samples));
    return ok_status();
  };
  return make_kernel(run, (samples + work_doubles(s)) * sizeof(double));
}

std::unique_ptr<Kernel> create_grad(const Problem& p) {
  const CtcShape s(p.in(1).shape, p.in(2).shape, p.attributes);
  auto run = [s](const KernelArgs& a) -> Status {
    const double scale =
        static_cast<double>(*a.in<float>(0)) / static_cast<double>(std::max<int64_t>(s.samples, 1));
    return for_each_sample(s, a.in<int64_t>(2), reinterpret_cast<double*>(a.workspace),
                           [&](int64_t n, size_t labels, Work& work) {
                             sample_grad(s, n, a.in<float>(1), labels, scale, a.out<float>(0),
                                         work);
                           });
  };
  return make_kernel(run, work_doubles(s) * sizeof(double));
}

// Returns the sum over all paths by trying each, which shares nothing with alpha and beta.
double loss_by_paths(const CtcShape& s, int64_t n, const std::vector<double>& scores,
                     const std::vector<int64_t>& spelled) {
  std::vector<int64_t> path(static_cast<size_t>(s.steps));
  double total = 0;
  for (;;) {
    std::vector<int64_t> merged;
    double probability = 1;
    for (size_t t = 0; t < path.size(); ++t) {
      const double* row = scores.data() + s.row(n, static_cast<int64_t>(t)) * s.classes;
      double sum = 0;
      for (int64_t c = 0; c < s.classes; ++c) sum += std::exp(row[c]);
      probability *= std::exp(row[path[t]]) / sum;
      if (path[t] != s.blank && (t == 0 || path[t] != path[t - 1])) merged.push_back(path[t]);
    }
    if (merged == spelled) total += probability;
    size_t t = 0;
    while (t < path.size() && ++path[t] == s.classes) path[t++] = 0;
    if (t == path.size()) break;
  }
  return -std::log(total) / static_cast<double>(std::max<size_t>(spelled.size(), 1));
}

constexpr double kMostPaths = 20000;  // of a sample, to be tried one by one

// Calls f(sample, labels, work) with labels that are known to be right.
void for_each_reference(const CtcShape& s, const std::vector<double>& labels, const auto& f) {
  std::vector<double> memory(work_doubles(s));
  OFSDP_CHECK(for_each_sample(s, labels.data(), memory.data(), f).ok(), "labels of a sample");
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const CtcShape s(c.inputs[0].desc.shape, c.inputs[1].desc.shape, c.attributes);
  const std::vector<double>& scores = c.inputs[0].values;
  const double paths = std::pow(static_cast<double>(s.classes), static_cast<double>(s.steps));
  std::vector<double> losses(static_cast<size_t>(s.samples));
  for_each_reference(s, c.inputs[1].values, [&](int64_t n, size_t labels, const Work& work) {
    losses[static_cast<size_t>(n)] =
        paths <= kMostPaths ? loss_by_paths(s, n, scores, {work.spelled, work.spelled + labels})
                            : sample_loss(s, n, scores.data(), labels, work);
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return {{c.output_descs[0], {s.samples == 0 ? 0 : sum / static_cast<double>(s.samples)}}};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  const CtcShape s(c.inputs[1].desc.shape, c.inputs[2].desc.shape, c.attributes);
  RefTensor diff = zeros(c.output_descs[0]);
  const double scale = c.inputs[0].values[0] / static_cast<double>(std::max<int64_t>(s.samples, 1));
  for_each_reference(s, c.inputs[2].values, [&](int64_t n, size_t labels, Work& work) {
    sample_grad(s, n, c.inputs[1].values.data(), labels, scale, diff.values.data(), work);
  });
  return {diff};
}

Acceptance accepts(const Problem& p) {
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const DType dtype = p.in(i).dtype;
    if (dtype != DType::kFloat32 && dtype != DType::kInt64) {
      return Acceptance::refuse("scores that are not float32");
    }
  }
  return accept_if(p.all_plain(), "not the plain layout");
}

// --- greedy decoding ---

size_t measure_numbers(const CtcShape& s) {
  return static_cast<size_t>(3 * s.steps + 3 * s.places + s.places + 1);
}

void measure_sample(const CtcShape& s, int64_t n, const auto* scores, const auto* labels,
                    int64_t* memory, double* facts) {
  int64_t *decoded = memory, *expected = memory + 3 * s.steps;
  int64_t* const row = expected + 3 * s.places;
  int64_t count = 0, wanted = 0, before = s.blank;
  for (int64_t t = 0; t < s.steps; ++t) {
    const auto* step = scores + s.row(n, t) * s.classes;
    const int64_t best = std::max_element(step, step + s.classes) - step;
    if (best != s.blank && best != before) decoded[count++] = best;
    before = best;
  }
  for (int64_t i = 0; i < s.places; ++i) {
    const auto label = static_cast<int64_t>(labels[n * s.places + i]);
    if (label != s.ignore) expected[wanted++] = label;
  }
  SequenceParts here{decoded, decoded + s.steps, decoded + 2 * s.steps};
  SequenceParts there{expected, expected + s.places, expected + 2 * s.places};
  here.take_each(count);
  there.take_each(wanted);
  facts[0] = static_cast<double>(edit_distance(here, there, row));
  facts[1] = static_cast<double>(wanted);
  here.split(count, s.space);
  there.split(wanted, s.space);
  facts[2] = static_cast<double>(edit_distance(here, there, row));
  facts[3] = static_cast<double>(there.count);
}

std::vector<RefTensor> measure_reference(const ReferenceContext& c) {
  const CtcShape s(c.inputs[0].desc.shape, c.inputs[1].desc.shape, c.attributes);
  RefTensor facts = zeros(c.output_descs[0]);
  std::vector<int64_t> memory(measure_numbers(s));
  for (int64_t n = 0; n < s.samples; ++n) {
    measure_sample(s, n, c.inputs[0].values.data(), c.inputs[1].values.data(), memory.data(),
                   facts.values.data() + n * kSequenceFacts);
  }
  return {facts};
}

std::unique_ptr<Kernel> create_measure(const Problem& p) {
  const CtcShape s(p.in(0).shape, p.in(1).shape, p.attributes);
  const size_t numbers = measure_numbers(s);
  auto run = [s, numbers](const KernelArgs& a) {
    parallel_each(s.samples, 1, [&](int64_t n) {
      auto* memory = reinterpret_cast<int64_t*>(a.workspace) + static_cast<size_t>(n) * numbers;
      measure_sample(s, n, a.in<float>(0), a.in<int64_t>(1), memory,
                     a.out<double>(0) + n * kSequenceFacts);
    });
    return ok_status();
  };
  return make_kernel(run, static_cast<size_t>(s.samples) * numbers * sizeof(int64_t));
}

}  // namespace
}  // namespace ctc_loss

void add_ctc_loss(Registry& registry) {
  using namespace ctc_loss;
  registry.add_own(make_op("CtcLoss", {infer, grad, reference}, {{"samples", accepts, create}},
                           {.min_inputs = 2, .float32_only = true}));
  registry.add_own(make_op("CtcLossGrad", {infer_grad, nullptr, grad_reference},
                           {{"samples", accepts, create_grad}}, {.min_inputs = 3}));
  registry.add_own(make_op("MeasureCtc", {infer_measure, nullptr, measure_reference},
                           {{"samples", accepts, create_measure}},
                           {.min_inputs = 2, .float32_only = true}));
}

}  // namespace ofsdp::kernels::ops
