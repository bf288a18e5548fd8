// LAMB. A launch covers up to kMaxLambParts parameter parts, which are kernel arguments; a block
// handles 4096 elements of one part, found by binary search.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/training/stored_states.cuh"
#include "kernels/optimizers/parameter_updates.h"

namespace ofsdp::kernels::cuda {
namespace {

using updates::Lamb;

constexpr int64_t kBlock = 4096;  // elements per block

struct Part {
  int64_t begin, count, parameter;
  int32_t first_block;
  float weight_decay;
};

struct Launch {
  Part parts[kMaxLambParts];
  int32_t count;
  int32_t blocks;
};

struct View {
  float* param;
  StoredState average, square;
  double *squares, *partials;
  const ofsdp_run_state* state;
  const ofsdp_step_numbers* numbers;
  double base_lr;
  OptimizerSettings settings;
};

template <bool kEncoded>
__device__ inline float direction(const View& v, const Lamb::Direction& f, float weight_decay,
                                  int64_t i) {
  if constexpr (kEncoded) {
    return f(decoded(v.average, i), decoded(v.square, i), weight_decay, v.param[i]);
  } else {
    return f(reinterpret_cast<const float*>(v.average.elements)[i],
             reinterpret_cast<const float*>(v.square.elements)[i], weight_decay, v.param[i]);
  }
}

__device__ inline bool stands_still(const View& v) {
  return v.state->skip != 0 || v.state->stop != 0;
}

// Returns the part that contains `block`: the last one whose first block is not after it.
__device__ inline int part_of(const Launch& launch, int block) {
  int low = 0, high = launch.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (launch.parts[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The elements of a part that a block covers.
struct Stretch {
  int64_t begin, end;
};
__device__ inline Stretch stretch_of(const Part& part, int block) {
  const int64_t first = part.begin + (block - part.first_block) * kBlock;
  const int64_t end = part.begin + part.count;
  return {first, first + kBlock < end ? first + kBlock : end};
}

// A block writes the squared norms of parameter and direction over 4096 elements; thread 0 shares
// the step's factors.
template <bool kEncoded>
OFSDP_CUDA_KERNEL squares_kernel(Launch launch, View v) {
  __shared__ Lamb::Direction shared;
  __shared__ double spare[kThreads / kWarp];
  if (stands_still(v)) return;
  const int block = static_cast<int>(blockIdx.x);
  const Part part = launch.parts[part_of(launch, block)];
  if (threadIdx.x == 0) shared = Lamb::direction(v.settings, v.state->optimizer_step);
  __syncthreads();
  const Lamb::Direction f = shared;
  const Stretch s = stretch_of(part, block);
  double of_param = 0, of_direction = 0;
  for (int64_t i = s.begin + threadIdx.x; i < s.end; i += kThreads) {
    const double p = v.param[i], d = direction<kEncoded>(v, f, part.weight_decay, i);
    of_param += p * p;
    of_direction += d * d;
  }
  of_param = group_reduce<kThreads>(of_param, Add(), spare);
  of_direction = group_reduce<kThreads>(of_direction, Add(), spare);
  if (threadIdx.x != 0) return;
  v.partials[2 * block] = of_param;
  v.partials[2 * block + 1] = of_direction;
}

// A block per part sums the partials of the part's blocks: each thread a run of them, then the
// block in a fixed order.
OFSDP_CUDA_KERNEL sum_kernel(Launch launch, View v) {
  __shared__ double spare[kThreads / kWarp];
  if (stands_still(v)) return;
  const int index = static_cast<int>(blockIdx.x);
  const Part part = launch.parts[index];
  const int first = part.first_block;
  const int last = index + 1 < launch.count ? launch.parts[index + 1].first_block : launch.blocks;
  const int run = (last - first + kThreads - 1) / kThreads;
  const int begin = first + static_cast<int>(threadIdx.x) * run;
  double of_param = 0, of_direction = 0;
  for (int b = begin; b < begin + run && b < last; ++b) {
    of_param += v.partials[2 * b];
    of_direction += v.partials[2 * b + 1];
  }
  of_param = group_reduce<kThreads>(of_param, Add(), spare);
  of_direction = group_reduce<kThreads>(of_direction, Add(), spare);
  if (threadIdx.x != 0) return;
  v.squares[2 * part.parameter] += of_param;
  v.squares[2 * part.parameter + 1] += of_direction;
}

// A block updates 4096 elements; thread 0 shares the trust ratio and the step's factors.
template <bool kEncoded>
OFSDP_CUDA_KERNEL step_kernel(Launch launch, View v) {
  __shared__ Lamb::Direction shared;
  __shared__ float length;
  if (stands_still(v)) return;
  const int block = static_cast<int>(blockIdx.x);
  const Part part = launch.parts[part_of(launch, block)];
  if (threadIdx.x == 0) {
    const double p = sqrt(v.squares[2 * part.parameter]);
    const double d = sqrt(v.squares[2 * part.parameter + 1]);
    length = updates::f32(Lamb::step_length(updates::rate_of(*v.numbers, v.base_lr), p, d));
    shared = Lamb::direction(v.settings, v.state->optimizer_step);
  }
  __syncthreads();
  const Lamb::Direction f = shared;
  const Stretch s = stretch_of(part, block);
  for (int64_t i = s.begin + threadIdx.x; i < s.end; i += kThreads) {
    v.param[i] -= length * direction<kEncoded>(v, f, part.weight_decay, i);
  }
}

View view_of(const OptimizerSettings& s, const ofsdp_parameter_parts& p, const StoredState& average,
             const StoredState& square) {
  return {p.param, average, square, p.squares, p.partials, p.state, p.numbers, p.base_lr, s};
}

View view_of(const OptimizerSettings& s, const ofsdp_parameter_parts& p) {
  const auto state = [&](int i) {
    return StoredState{StateForm::kFloat32, reinterpret_cast<std::byte*>(p.states[i])};
  };
  return view_of(s, p, state(0), state(1));
}

// Launches up to kMaxLambParts parts at a time; empty parts have no block.
template <typename F>
cudaError_t in_launches(const ofsdp_parameter_parts& p, const F& run) {
  Launch launch{};
  const auto flush = [&] {
    const cudaError_t error = launch.count == 0 ? cudaSuccess : run(launch);
    launch.count = launch.blocks = 0;
    return error;
  };
  for (int64_t i = 0; i < p.num_parts; ++i) {
    const ofsdp_parameter_part& part = p.parts[i];
    if (part.count == 0) continue;
    const int64_t blocks = blocks_for(part.count, kBlock);
    if (launch.count == kMaxLambParts || launch.blocks + blocks > kMaxBlocks) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    launch.parts[launch.count++] = {part.begin, part.count, part.parameter, launch.blocks,
                                    static_cast<float>(part.weight_decay)};
    launch.blocks += static_cast<int32_t>(blocks);
  }
  return flush();
}

template <bool kEncoded>
cudaError_t add_squares(const View& view, const ofsdp_parameter_parts& parts, cudaStream_t stream) {
  return in_launches(parts, [&](const Launch& launch) {
    const cudaError_t error =
        launch_blocks(stream, launch.blocks, kThreads, squares_kernel<kEncoded>, launch, view);
    if (error != cudaSuccess) return error;
    return launch_blocks(stream, launch.count, kThreads, sum_kernel, launch, view);
  });
}

template <bool kEncoded>
cudaError_t take_step(const View& view, const ofsdp_parameter_parts& parts, cudaStream_t stream) {
  return in_launches(parts, [&](const Launch& launch) {
    return launch_blocks(stream, launch.blocks, kThreads, step_kernel<kEncoded>, launch, view);
  });
}

}  // namespace

cudaError_t add_lamb_squares(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                             cudaStream_t stream) {
  return add_squares<false>(view_of(settings, parts), parts, stream);
}

cudaError_t take_lamb_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream) {
  return take_step<false>(view_of(settings, parts), parts, stream);
}

cudaError_t add_lamb_squares_encoded(const OptimizerSettings& settings,
                                     const ofsdp_parameter_parts& parts,
                                     const EncodedStates& states, cudaStream_t stream) {
  return add_squares<true>(view_of(settings, parts, states.states[0], states.states[1]), parts,
                           stream);
}

cudaError_t take_lamb_step_encoded(const OptimizerSettings& settings,
                                   const ofsdp_parameter_parts& parts, const EncodedStates& states,
                                   cudaStream_t stream) {
  return take_step<true>(view_of(settings, parts, states.states[0], states.states[1]), parts,
                         stream);
}

}  // namespace ofsdp::kernels::cuda
