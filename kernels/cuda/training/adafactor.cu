// Adafactor. A block handles 4096 elements of a parameter part. One thread per block computes the
// factors of the step, since only the device knows how many updates were skipped. --fmad=false
// keeps the CPU's roundings.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/optimizers/parameter_updates.h"

namespace ofsdp::kernels::cuda {
namespace {

using updates::Adafactor;

constexpr int kRowsAtOnce = kThreads / kWarp;
constexpr int64_t kElements = 4096;  // elements per block

struct Squares {
  ofsdp_matrix_squares m;
  int64_t first_row, row_end;  // rows that this rank's elements touch

  __device__ int64_t from(int64_t at) const { return at > m.first ? at : m.first; }
  __device__ int64_t to(int64_t at) const {
    return at < m.first + m.count ? at : m.first + m.count;
  }
};

__device__ inline double square_of(float value) { return static_cast<double>(value) * value; }

// A warp per row of a matrix sums the squares of this rank's elements.
OFSDP_CUDA_KERNEL row_squares(Squares s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row =
      s.first_row + int64_t{blockIdx.x} * kRowsAtOnce + static_cast<int64_t>(threadIdx.x) / kWarp;
  if (row >= s.row_end) return;
  const int64_t end = s.to((row + 1) * s.m.columns);
  double sum = 0;
  for (int64_t i = s.from(row * s.m.columns) + lane; i < end; i += kWarp) {
    sum += square_of(s.m.gradient[i - s.m.first]);
  }
  sum = warp_reduce(sum, Add{});
  if (lane == 0) s.m.row_sums[row] = static_cast<float>(sum);
}

// A block per 32 columns of a matrix. Lane = column, warp = every 8th row; `sums` combines the
// warps in order.
OFSDP_CUDA_KERNEL column_squares(Squares s, int64_t first_matrix, int64_t groups) {
  __shared__ double sums[kRowsAtOnce][kWarp + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            place = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t matrix = first_matrix + blockIdx.x / groups;
  const int64_t column = blockIdx.x % groups * kWarp + lane;
  double sum = 0;
  if (column < s.m.columns) {
    for (int64_t row = place; row < s.m.rows; row += kRowsAtOnce) {
      const int64_t i = (matrix * s.m.rows + row) * s.m.columns + column;
      if (s.from(i) == i && i < s.m.first + s.m.count) {
        sum += square_of(s.m.gradient[i - s.m.first]);
      }
    }
  }
  sums[place][lane] = sum;
  __syncthreads();
  if (place != 0 || column >= s.m.columns) return;
  for (int k = 1; k < kRowsAtOnce; ++k) sum += sums[k][lane];
  s.m.column_sums[matrix * s.m.columns + column] = static_cast<float>(sum);
}

// A thread per factor; thread 0 of each block shares the step's weight.
OFSDP_CUDA_KERNEL advance_kernel(ofsdp_factor_advance a) {
  __shared__ updates::Lerp shared;
  if (a.state->skip != 0 || a.state->stop != 0) return;
  if (threadIdx.x == 0) {
    shared = updates::Lerp::of(Adafactor::weight(a.state->optimizer_step));
  }
  __syncthreads();
  const updates::Lerp lerp = shared;
  OFSDP_CUDA_ITEM(i, a.count);
  a.factors[i] = lerp(a.factors[i], a.sums[i] / static_cast<float>(a.length));
}

// A warp per matrix averages the row factors.
OFSDP_CUDA_KERNEL mean_kernel(const float* factors, int64_t rows, int64_t matrices, float* means) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t matrix =
      int64_t{blockIdx.x} * kRowsAtOnce + static_cast<int64_t>(threadIdx.x) / kWarp;
  if (matrix >= matrices) return;
  double sum = 0;
  for (int64_t r = lane; r < rows; r += kWarp) sum += factors[matrix * rows + r];
  sum = warp_reduce(sum, Add{});
  const auto mean = static_cast<float>(sum / static_cast<double>(rows));
  if (lane == 0) means[matrix] = mean < Adafactor::kEps ? Adafactor::kEps : mean;
}

struct FactoredPart {
  ofsdp_parameter_part part;
  float* param;  // first element of the part, as `gradient`
  const float* gradient;
  double *squares, *partials;
  const ofsdp_run_state* state;
  const ofsdp_step_numbers* numbers;
  double base_lr;
};

__device__ inline float direction_at(const FactoredPart& f, int64_t i) {
  const ofsdp_parameter_part& p = f.part;
  float variance = 0;
  if (p.columns == 0) {
    variance = p.states[0][p.begin + i];
  } else {
    const int64_t at = p.first + i, row = at / p.columns, matrix = row / p.rows;
    const int64_t column = at - row * p.columns;
    variance = p.states[0][row] * p.states[1][matrix * p.columns + column] / p.means[matrix];
  }
  return Adafactor::direction(f.gradient[i], variance);
}

// A block writes the squared norms of parameter and direction over 4096 elements.
OFSDP_CUDA_KERNEL part_squares(FactoredPart f) {
  __shared__ double spare[kRowsAtOnce];
  if (f.state->skip != 0 || f.state->stop != 0) return;
  const int64_t begin = int64_t{blockIdx.x} * kElements;
  const int64_t end = begin + kElements < f.part.count ? begin + kElements : f.part.count;
  double of_param = 0, of_direction = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    of_param += square_of(f.param[i]);
    of_direction += square_of(direction_at(f, i));
  }
  of_param = group_reduce<kThreads>(of_param, Add{}, spare);
  of_direction = group_reduce<kThreads>(of_direction, Add{}, spare);
  if (threadIdx.x != 0) return;
  f.partials[2 * int64_t{blockIdx.x}] = of_param;
  f.partials[2 * int64_t{blockIdx.x} + 1] = of_direction;
}

// One block adds all partials of a part to the parameter's squares.
OFSDP_CUDA_KERNEL part_sum(FactoredPart f, int64_t blocks) {
  __shared__ double spare[kRowsAtOnce];
  if (f.state->skip != 0 || f.state->stop != 0) return;
  double of_param = 0, of_direction = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    of_param += f.partials[2 * b];
    of_direction += f.partials[2 * b + 1];
  }
  of_param = group_reduce<kThreads>(of_param, Add{}, spare);
  of_direction = group_reduce<kThreads>(of_direction, Add{}, spare);
  if (threadIdx.x != 0) return;
  f.squares[0] += of_param;
  f.squares[1] += of_direction;
}

// A block updates 4096 elements; thread 0 shares step length and decay.
OFSDP_CUDA_KERNEL part_step(FactoredPart f) {
  __shared__ float length;
  __shared__ float keep;
  if (f.state->skip != 0 || f.state->stop != 0) return;
  if (threadIdx.x == 0) {
    const double lr = updates::rate_of(*f.numbers, f.base_lr), decay = f.part.weight_decay;
    ParameterNorms norms{};
    norms.param = sqrt(f.squares[0]);
    norms.direction = sqrt(f.squares[1]);
    norms.count = f.part.numel;
    norms.lr = lr;
    norms.step = f.state->optimizer_step;
    length = updates::f32(Adafactor::step_length(norms));
    keep = decay != 0 ? updates::f32(1 - lr * decay) : 1.0f;
  }
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kElements;
  const int64_t end = begin + kElements < f.part.count ? begin + kElements : f.part.count;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    f.param[i] = f.param[i] * keep - length * direction_at(f, i);
  }
}

template <typename F>
cudaError_t for_parts(const ofsdp_parameter_parts& p, const F& run) {
  double* partials = p.partials;
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const ofsdp_parameter_part& part = p.parts[i];
    const int64_t blocks = blocks_for(part.count, kElements);
    if (blocks == 0) continue;
    OFSDP_CUDA_TRY(
        run(FactoredPart{part, p.param + part.begin, p.gradient + part.begin,
                         p.squares + 2 * part.parameter, partials, p.state, p.numbers, p.base_lr},
            blocks));
    partials += 2 * blocks;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t sum_matrix_squares(const ofsdp_matrix_squares& m, cudaStream_t stream) {
  if (m.count == 0) return cudaSuccess;
  const int64_t size = m.rows * m.columns, last = m.first + m.count;
  const Squares s{m, m.first / m.columns, blocks_for(last, m.columns)};
  const int64_t matrices = blocks_for(last, size) - m.first / size;
  const int64_t groups = blocks_for(m.columns, kWarp);
  OFSDP_CUDA_TRY(launch_blocks(stream, blocks_for(s.row_end - s.first_row, kRowsAtOnce), kThreads,
                               row_squares, s));
  return launch_blocks(stream, matrices * groups, kThreads, column_squares, s, m.first / size,
                       groups);
}

cudaError_t advance_factors(const ofsdp_factor_advance& a, cudaStream_t stream) {
  return over(a.count, stream, advance_kernel, a);
}

cudaError_t mean_rows(const float* factors, int64_t rows, int64_t matrices, float* means,
                      cudaStream_t stream) {
  return launch_blocks(stream, blocks_for(matrices, kRowsAtOnce), kThreads, mean_kernel, factors,
                       rows, matrices, means);
}

cudaError_t add_adafactor_squares(const OptimizerSettings&, const ofsdp_parameter_parts& parts,
                                  cudaStream_t stream) {
  return for_parts(parts, [&](const FactoredPart& f, int64_t blocks) {
    OFSDP_CUDA_TRY(launch_blocks(stream, blocks, kThreads, part_squares, f));
    return launch_blocks(stream, 1, kThreads, part_sum, f, blocks);
  });
}

cudaError_t take_adafactor_step(const OptimizerSettings&, const ofsdp_parameter_parts& parts,
                                cudaStream_t stream) {
  return for_parts(parts, [&](const FactoredPart& f, int64_t blocks) {
    return launch_blocks(stream, blocks, kThreads, part_step, f);
  });
}

}  // namespace ofsdp::kernels::cuda
