// The CTC loss, its gradient and greedy decoding (ctc.h).
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/ctc.h"
#include "kernels/formulas/edit_distance.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr double kNever = -HUGE_VAL;  // ln 0

__host__ __device__ inline int64_t ctc_states(const CtcParams& s) { return 2 * s.places + 1; }
__host__ __device__ inline int64_t ctc_doubles(const CtcParams& s) {
  return 2 * s.steps * ctc_states(s) + s.steps + 2 * ctc_states(s) + s.classes + s.places;
}
__device__ inline int64_t ctc_row(const CtcParams& s, int64_t sample, int64_t step) {
  return (s.time_first ? step * s.samples + sample : sample * s.steps + step) * s.classes;
}

__device__ inline double log_sum(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  return most == kNever ? kNever : most + log1p(exp(least - most));
}

// One sample's numbers, in memory that its block alone uses.
struct CtcWork {
  double *log_probs, *alpha;  // [steps, states]
  double* log_sums;           // for each step ln of the sum over classes
  double *beta, *after;
  double* share;  // of each class
  int64_t* spelled;

  __device__ CtcWork(const CtcParams& s, double* memory)
      : log_probs(memory),
        alpha(log_probs + s.steps * ctc_states(s)),
        log_sums(alpha + s.steps * ctc_states(s)),
        beta(log_sums + s.steps),
        after(beta + ctc_states(s)),
        share(after + ctc_states(s)),
        spelled(reinterpret_cast<int64_t*>(share + s.classes)) {}
};

// Reads a sample's labels and returns how many there are.
__device__ inline int64_t read_labels(const CtcParams& s, const int64_t* labels, int64_t* spelled) {
  int64_t count = 0, repeats = 0;
  for (int64_t i = 0; i < s.places; ++i) {
    const int64_t label = labels[i];
    if (label == s.ignore) continue;
    if (label < 0 || label >= s.classes || label == s.blank) {
      note(s.fault, label, s.classes);
      return 0;
    }
    repeats += count > 0 && spelled[count - 1] == label ? 1 : 0;
    spelled[count++] = label;
  }
  if (count + repeats <= s.steps) return count;
  note(s.fault, count + repeats, s.steps);
  return 0;
}

// A block's view of its sample. All threads call each function.
struct CtcSample {
  const CtcParams& s;
  const CtcWork& work;
  int64_t sample, count;

  __device__ int64_t states() const { return 2 * count + 1; }
  __device__ int64_t class_of(int64_t state) const {
    return state % 2 == 0 ? s.blank : work.spelled[state / 2];
  }
  // Returns whether a path may come to the state from two states before.
  __device__ bool skips(int64_t k) const {
    return k % 2 == 1 && k > 1 && class_of(k) != class_of(k - 2);
  }

  __device__ void find_log_probs(const float* scores, double* spare) const {
    for (int64_t t = 0; t < s.steps; ++t) {
      const float* const row = scores + ctc_row(s, sample, t);
      double most = kNever, sum = 0;
      for (int64_t c = threadIdx.x; c < s.classes; c += kThreads) {
        most = Largest{}(most, static_cast<double>(row[c]));
      }
      most = group_reduce<kThreads>(most, Largest{}, spare);
      for (int64_t c = threadIdx.x; c < s.classes; c += kThreads) {
        sum += exp(static_cast<double>(row[c]) - most);
      }
      sum = most + log(group_reduce<kThreads>(sum, Add{}, spare));
      if (threadIdx.x == 0) work.log_sums[t] = sum;
      for (int64_t k = threadIdx.x; k < states(); k += kThreads) {
        work.log_probs[t * states() + k] = static_cast<double>(row[class_of(k)]) - sum;
      }
    }
    __syncthreads();
  }

  // Fills alpha; returns the loss.
  __device__ double forward() const {
    if (s.steps == 0) return 0;
    for (int64_t t = 0; t < s.steps; ++t) {
      const double* const before = work.alpha + (t - 1) * states();
      for (int64_t k = threadIdx.x; k < states(); k += kThreads) {
        double sum = k < 2 ? 0 : kNever;
        if (t > 0) {
          sum = before[k];
          if (k > 0) sum = log_sum(sum, before[k - 1]);
          if (skips(k)) sum = log_sum(sum, before[k - 2]);
        }
        work.alpha[t * states() + k] = sum + work.log_probs[t * states() + k];
      }
      __syncthreads();
    }
    const double* const last = work.alpha + (s.steps - 1) * states();
    return -log_sum(last[states() - 1], states() > 1 ? last[states() - 2] : kNever);
  }

  // Fills `beta` of step t from `after`, that of step t + 1.
  __device__ void backward(int64_t t, double* beta, const double* after) const {
    const double* const probs = work.log_probs + (t + 1) * states();
    for (int64_t k = threadIdx.x; k < states(); k += kThreads) {
      double sum = k + 2 >= states() ? 0 : kNever;
      if (t + 1 < s.steps) {
        sum = after[k] + probs[k];
        if (k + 1 < states()) sum = log_sum(sum, after[k + 1] + probs[k + 1]);
        if (k + 2 < states() && skips(k + 2)) sum = log_sum(sum, after[k + 2] + probs[k + 2]);
      }
      beta[k] = sum;
    }
    __syncthreads();
  }

  __device__ double part(int64_t t, int64_t k, const double* beta, double loss) const {
    return exp(work.alpha[t * states() + k] + beta[k] + loss);
  }

  // Fills `share` of step t: a thread sums the states of the label that it meets first.
  __device__ void find_shares(int64_t t, const double* beta, double loss, double* spare) const {
    for (int64_t c = threadIdx.x; c < s.classes; c += kThreads) work.share[c] = 0;
    double blanks = 0;
    for (int64_t i = threadIdx.x; i <= count; i += kThreads) blanks += part(t, 2 * i, beta, loss);
    blanks = group_reduce<kThreads>(blanks, Add{}, spare);  // a barrier after the zeros too
    if (threadIdx.x == 0) work.share[s.blank] = blanks;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      bool first = true;
      for (int64_t j = 0; j < i; ++j) first = first && work.spelled[j] != work.spelled[i];
      if (!first) continue;
      double sum = 0;
      for (int64_t j = i; j < count; ++j) {
        if (work.spelled[j] == work.spelled[i]) sum += part(t, 2 * j + 1, beta, loss);
      }
      work.share[work.spelled[i]] = sum;
    }
    __syncthreads();
  }
};

// A block per sample. Without `diff` losses[sample] is its loss; else its gradient goes there,
// times diff_loss / samples.
OFSDP_CUDA_KERNEL ctc_samples(CtcParams s, const float* scores, const int64_t* labels,
                              double* memory, double* losses, const float* diff_loss, float* diff) {
  __shared__ double spare[kThreads / kWarp];
  __shared__ int64_t labels_here;
  const int64_t n = blockIdx.x;
  const CtcWork work(s, memory + n * ctc_doubles(s));
  if (threadIdx.x == 0) labels_here = read_labels(s, labels + n * s.places, work.spelled);
  __syncthreads();
  const CtcSample sample{s, work, n, labels_here};
  sample.find_log_probs(scores, spare);
  const double loss = sample.forward();
  const auto divisor = static_cast<double>(sample.count > 0 ? sample.count : 1);
  if (diff == nullptr) {
    if (threadIdx.x == 0) losses[n] = loss / divisor;
    return;
  }
  const double scale = static_cast<double>(*diff_loss) / static_cast<double>(s.samples) / divisor;
  for (int64_t t = s.steps; t-- > 0;) {
    double* const beta = t % 2 == 0 ? work.beta : work.after;
    sample.backward(t, beta, t % 2 == 0 ? work.after : work.beta);
    sample.find_shares(t, beta, loss, spare);
    const int64_t row = ctc_row(s, n, t);
    for (int64_t c = threadIdx.x; c < s.classes; c += kThreads) {
      const double p = exp(static_cast<double>(scores[row + c]) - work.log_sums[t]);
      diff[row + c] = static_cast<float>(scale * (p - work.share[c]));
    }
    __syncthreads();
  }
}

// One block.
OFSDP_CUDA_KERNEL ctc_mean(int64_t samples, const double* losses, float* loss) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0;
  for (int64_t n = threadIdx.x; n < samples; n += kThreads) sum += losses[n];
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  if (threadIdx.x == 0)
    *loss = samples == 0 ? 0 : static_cast<float>(sum / static_cast<double>(samples));
}

__host__ __device__ inline int64_t measure_numbers(const CtcParams& s) {
  return 3 * s.steps + 4 * s.places + 1;
}

// A thread per step: its first largest class goes to the begin of the sample's numbers.
OFSDP_CUDA_KERNEL ctc_best(CtcParams s, const float* scores, int64_t* memory) {
  OFSDP_CUDA_ITEM(i, s.samples * s.steps);
  const int64_t sample = i / s.steps, step = i % s.steps;
  const float* const row = scores + ctc_row(s, sample, step);
  int64_t best = 0;
  for (int64_t c = 1; c < s.classes; ++c) {
    if (row[best] < row[c]) best = c;
  }
  memory[sample * measure_numbers(s) + step] = best;
}

// A thread per sample.
OFSDP_CUDA_KERNEL ctc_distances(CtcParams s, const int64_t* labels, int64_t* memory,
                                double* facts) {
  OFSDP_CUDA_ITEM(n, s.samples);
  int64_t* const decoded = memory + n * measure_numbers(s);
  int64_t* const expected = decoded + 3 * s.steps;
  int64_t* const row = expected + 3 * s.places;
  int64_t count = 0, wanted = 0, before = s.blank;
  for (int64_t t = 0; t < s.steps; ++t) {
    const int64_t best =
        decoded[t];  // before a class is written to the same place or an earlier one
    if (best != s.blank && best != before) decoded[count++] = best;
    before = best;
  }
  for (int64_t i = 0; i < s.places; ++i) {
    const int64_t label = labels[n * s.places + i];
    if (label != s.ignore) expected[wanted++] = label;
  }
  SequenceParts here{decoded, decoded + s.steps, decoded + 2 * s.steps};
  SequenceParts there{expected, expected + s.places, expected + 2 * s.places};
  here.take_each(count);
  there.take_each(wanted);
  double* const out = facts + n * 4;
  out[0] = static_cast<double>(edit_distance(here, there, row));
  out[1] = static_cast<double>(wanted);
  here.split(count, s.space);
  there.split(wanted, s.space);
  out[2] = static_cast<double>(edit_distance(here, there, row));
  out[3] = static_cast<double>(there.count);
}

}  // namespace

size_t ctc_scratch(const CtcParams& s) {
  return static_cast<size_t>(s.samples * (1 + ctc_doubles(s))) * sizeof(double);
}

cudaError_t ctc_loss(const CtcParams& s, const float* scores, const int64_t* labels, float* loss,
                     void* scratch, cudaStream_t stream) {
  auto* const losses = static_cast<double*>(scratch);
  OFSDP_CUDA_TRY(launch_blocks(stream, s.samples, kThreads, ctc_samples, s, scores, labels,
                               losses + s.samples, losses, nullptr, nullptr));
  return launch_blocks(stream, 1, kThreads, ctc_mean, s.samples, losses, loss);
}

cudaError_t ctc_grad(const CtcParams& s, const float* diff_loss, const float* scores,
                     const int64_t* labels, float* diff, void* scratch, cudaStream_t stream) {
  return launch_blocks(stream, s.samples, kThreads, ctc_samples, s, scores, labels,
                       static_cast<double*>(scratch), nullptr, diff_loss, diff);
}

size_t ctc_measure_scratch(const CtcParams& s) {
  return static_cast<size_t>(s.samples * measure_numbers(s)) * sizeof(int64_t);
}

cudaError_t ctc_measure(const CtcParams& s, const float* scores, const int64_t* labels,
                        double* facts, void* scratch, cudaStream_t stream) {
  auto* const memory = static_cast<int64_t*>(scratch);
  OFSDP_CUDA_TRY(over(s.samples * s.steps, stream, ctc_best, s, scores, memory));
  return over(s.samples, stream, ctc_distances, s, labels, memory, facts);
}

}  // namespace ofsdp::kernels::cuda
