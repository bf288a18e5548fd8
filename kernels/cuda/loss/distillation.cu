// ofsdp.DistillationLoss and its gradient. A block per row: the largest scores of student and
// teacher, then sums in double in a fixed order; so runs give the same bits. The rows of ignored
// labels are not read. kernels/ops/loss/distillation_loss.cpp has the formulas.
#include <cmath>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/loss/loss.h"

namespace ofsdp::kernels::cuda {
namespace {

__device__ inline bool is_kept(const Distillation& d, int64_t row) {
  if (d.labels == nullptr || !d.ignores) return true;
  const int64_t label = d.wide_labels ? static_cast<const int64_t*>(d.labels)[row]
                                      : static_cast<const int32_t*>(d.labels)[row];
  return label != d.ignore_index;
}

// The largest scores of a row, and its sums over the classes.
struct RowSums {
  float most_student, most_teacher;
  double student;  // e^s
  double teacher;  // e^t
  double cross;    // e^t (t - s)
};

// All threads of the block call.
__device__ inline RowSums sums_of(const Distillation& d, const float* student,
                                  const float* teacher) {
  __shared__ float spare_most[kThreads / kWarp];
  __shared__ double spare[kThreads / kWarp];
  RowSums sums{student[0], teacher[0], 0, 0, 0};
  for (int64_t c = threadIdx.x; c < d.classes; c += kThreads) {
    sums.most_student = Largest{}(sums.most_student, student[c]);
    sums.most_teacher = Largest{}(sums.most_teacher, teacher[c]);
  }
  sums.most_student = group_reduce<kThreads>(sums.most_student, Largest{}, spare_most);
  sums.most_teacher = group_reduce<kThreads>(sums.most_teacher, Largest{}, spare_most);
  for (int64_t c = threadIdx.x; c < d.classes; c += kThreads) {
    const float s = (student[c] - sums.most_student) * d.scale;
    const float t = (teacher[c] - sums.most_teacher) * d.scale;
    const float e = expf(t);
    sums.student += static_cast<double>(expf(s));
    sums.teacher += static_cast<double>(e);
    // A class with probability 0 adds nothing, even if both logits are infinite. NaN does.
    if (!(e <= 0.0f)) {
      sums.cross += static_cast<double>(e) * (static_cast<double>(t) - static_cast<double>(s));
    }
  }
  sums.student = group_reduce<kThreads>(sums.student, Add{}, spare);
  sums.teacher = group_reduce<kThreads>(sums.teacher, Add{}, spare);
  sums.cross = group_reduce<kThreads>(sums.cross, Add{}, spare);
  return sums;
}

OFSDP_CUDA_KERNEL row_divergence(Distillation d, double* each) {
  const int64_t row = blockIdx.x;
  if (!is_kept(d, row) || d.classes == 0) {
    if (threadIdx.x == 0) each[row] = 0;
    return;
  }
  const RowSums sums = sums_of(d, d.student + row * d.classes, d.teacher + row * d.classes);
  if (threadIdx.x != 0) return;
  each[row] = sums.cross / sums.teacher - log(sums.teacher) + log(sums.student);
}

// One block: the mean over kept rows of `each`, if given, to `loss`; their number to `count`.
OFSDP_CUDA_KERNEL mean_of_rows(Distillation d, const double* each, float* loss, int64_t* count) {
  __shared__ double spare[kThreads / kWarp];
  double sum = 0, kept = 0;
  for (int64_t row = threadIdx.x; row < d.rows; row += kThreads) {
    if (each != nullptr) sum += each[row];
    kept += is_kept(d, row) ? 1 : 0;
  }
  sum = group_reduce<kThreads>(sum, Add{}, spare);
  kept = group_reduce<kThreads>(kept, Add{}, spare);
  if (threadIdx.x != 0) return;
  if (count != nullptr) *count = static_cast<int64_t>(kept);
  if (loss != nullptr) *loss = kept == 0 ? 0.0f : static_cast<float>(sum / kept);
}

OFSDP_CUDA_KERNEL row_gradient(Distillation d, const float* diff_loss, const int64_t* count,
                               float* gradient) {
  const int64_t row = blockIdx.x;
  float* const out = gradient + row * d.classes;
  if (!is_kept(d, row)) {
    for (int64_t c = threadIdx.x; c < d.classes; c += kThreads) out[c] = 0;
    return;
  }
  if (d.classes == 0) return;
  const float* const student = d.student + row * d.classes;
  const float* const teacher = d.teacher + row * d.classes;
  const RowSums sums = sums_of(d, student, teacher);
  const double kept = static_cast<double>(*count < 1 ? 1 : *count);
  const double factor = static_cast<double>(*diff_loss) / d.temperature / kept;
  const auto by_student = static_cast<float>(factor / sums.student);
  const auto by_teacher = static_cast<float>(factor / sums.teacher);
  for (int64_t c = threadIdx.x; c < d.classes; c += kThreads) {
    out[c] = expf((student[c] - sums.most_student) * d.scale) * by_student -
             expf((teacher[c] - sums.most_teacher) * d.scale) * by_teacher;
  }
}

}  // namespace

size_t distillation_scratch(int64_t rows) {
  return round_up(static_cast<size_t>(rows + 1) * sizeof(double));
}

cudaError_t distillation_loss(const Distillation& d, float* loss, void* scratch,
                              cudaStream_t stream) {
  auto* const each = static_cast<double*>(scratch);
  OFSDP_CUDA_TRY(launch_blocks(stream, d.rows, kThreads, row_divergence, d, each));
  return launch_blocks(stream, 1, kThreads, mean_of_rows, d, each, loss, nullptr);
}

cudaError_t distillation_grad(const Distillation& d, const float* diff_loss, float* gradient,
                              void* scratch, cudaStream_t stream) {
  auto* const count = static_cast<int64_t*>(scratch);
  OFSDP_CUDA_TRY(launch_blocks(stream, 1, kThreads, mean_of_rows, d, nullptr, nullptr, count));
  return launch_blocks(stream, d.rows, kThreads, row_gradient, d, diff_loss, count, gradient);
}

}  // namespace ofsdp::kernels::cuda
