// Launchers for the parts of a training step that are not graph nodes: step numbers, dtype
// conversion, gradient sums and norm, clipping, optimizers. kernels/core/device.h describes
// operands: the run state, the numbers of a step, gradients, updates. A dtype as int32_t is a
// DType: float32, float16 or bfloat16; others return cudaErrorNotSupported. Counts are elements.
// All pointers but `pinned` are device memory. Each returns the launch's error.
#pragma once

#include "kernels/core/optimizer.h"
#include "kernels/core/stored_state.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

// Begins a micro-batch: sets the weights of the losses. `update`: it is the first of an update, so
// the norm and the decision to skip begin anew. `scales`: losses are multiplied by the loss scale.
cudaError_t begin_update(ofsdp_run_state* state, ofsdp_step_numbers* numbers, bool update,
                         bool scales, cudaStream_t stream);
// Stores loss term `index` in the run state. `stops`: a NaN, or a fault noted before, ends the run.
cudaError_t note_loss(ofsdp_run_state* state, int index, const float* loss, bool stops,
                      cudaStream_t stream);
// dst = src in another dtype; dst += src; values rounded to `to` and back; a gradient, scaled and
// summed as ofsdp_reduce says, with its sum of squares.
cudaError_t convert(const void* src, int32_t from, void* dst, int32_t to, int64_t n,
                    cudaStream_t stream);
cudaError_t add_onto(const void* src, int32_t from, float* dst, int64_t n, cudaStream_t stream);
cudaError_t round_values(float* values, int32_t to, int64_t n, cudaStream_t stream);
cudaError_t reduce_gradient(const ofsdp_reduce& r, cudaStream_t stream);
// Decides after the norm is known: the factor that clips it to `most` (0: no clipping); with
// `scales` also whether the update is skipped, and the next loss scale.
cudaError_t clip(ofsdp_run_state* state, double most, bool scales, cudaStream_t stream);
// Stores `value` in pinned host memory, for a host that waits for this point of the stream.
cudaError_t mark(int64_t* pinned, int64_t value, cudaStream_t stream);

// --- Elementwise optimizers (formulas: kernels/optimizers/updates.h). The gradient, any float
// type, is scaled by the clip factor. Each element is read and written once.
//
// Bytes per element besides the gradient: 24 with two states, 16 with one, 8 without.

using DeviceUpdate = cudaError_t (*)(const OptimizerSettings& settings,
                                     const ofsdp_device_update& update, cudaStream_t stream);

// Returns the update called `name`, or null. "assign" copies the gradient to the parameter, for
// results that are computed elsewhere.
DeviceUpdate find_update(const char* name);

// --state-dtype: the states of one parameter's part in fewer bits, in place of
// ofsdp_device_update::states. Element 0 has index `first` in the parameter, and a block of 256
// begins there. Each element is decoded, advanced and encoded once, and gets the bits that the
// CPU's update gives it. ofsdp_device_update::weight_decay and the like hold for these, too.
struct EncodedStates {
  StoredState states[2];  // without elements: the optimizer has no such state
  uint64_t seed;
  int64_t parameter, first;
};
using EncodedUpdate = cudaError_t (*)(const OptimizerSettings& settings,
                                      const ofsdp_device_update& update,
                                      const EncodedStates& states, cudaStream_t stream);
// Returns the update called `name`, or null if it takes float32 states only. LAMB's and Muon's
// updates advance the states and leave the parameters to take_lamb_step and take_muon_step.
EncodedUpdate find_encoded_update(const char* name);

// --ema: average = decay average + (1 - decay) param; in the optimizer's update number `first` the
// average becomes a copy of the parameters. 12 bytes per element. swap_arrays: 16.
struct AverageStep {
  const float* param;
  float* average;
  int64_t count;  // elements
  int64_t first;  // number of an update
  double decay;
  const ofsdp_run_state* state;
};
cudaError_t follow_average(const AverageStep& step, cudaStream_t stream);
cudaError_t swap_arrays(float* a, float* b, int64_t n, cudaStream_t stream);

// --- LAMB after optimizers.cu has advanced m and v (formulas:
// kernels/optimizers/parameter_updates.h): squared norms per parameter for p and the direction d,
// then p -= lr |p| / |d| d. A thread block sums 4096 elements; block sums are added in order,
// without atomics, so runs give the same bits.
//
// A launch takes kMaxLambParts parameter parts as kernel arguments. Two passes over the shard,
// however many parameters it has: norms, then step. d is computed twice instead of stored.
//
// Bytes per element: 12 for the norms, 16 for the step.

inline constexpr int kMaxLambParts = 96;

// Stores two sums per thread block.
cudaError_t add_lamb_squares(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                             cudaStream_t stream);
cudaError_t take_lamb_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream);
// The same for one part with states in fewer bits, which begin at the part's first element, as
// `parts.param` does. ofsdp_parameter_parts::states are not read.
cudaError_t add_lamb_squares_encoded(const OptimizerSettings& settings,
                                     const ofsdp_parameter_parts& parts,
                                     const EncodedStates& states, cudaStream_t stream);
cudaError_t take_lamb_step_encoded(const OptimizerSettings& settings,
                                   const ofsdp_parameter_parts& parts, const EncodedStates& states,
                                   cudaStream_t stream);

// --- Adafactor after advancing the second moments (formulas: kernels/core/optimizer.h and
// parameter_updates.h). Sums are double: one warp per matrix row, one thread block per 32 columns,
// squares as for LAMB; no atomics. Each part is a launch.
//
// Bytes per element: 4 for each sum, 8 for the squares, 12 for the step; factors come from the
// cache.

cudaError_t sum_matrix_squares(const ofsdp_matrix_squares& m, cudaStream_t stream);
cudaError_t advance_factors(const ofsdp_factor_advance& a, cudaStream_t stream);
cudaError_t mean_rows(const float* factors, int64_t rows, int64_t matrices, float* means,
                      cudaStream_t stream);
cudaError_t add_adafactor_squares(const OptimizerSettings& settings,
                                  const ofsdp_parameter_parts& parts, cudaStream_t stream);
cudaError_t take_adafactor_step(const OptimizerSettings& settings,
                                const ofsdp_parameter_parts& parts, cudaStream_t stream);

// --- Muon: dividing by a norm and scaling, between the matrix products planned by
// orthogonal_plan.h, then p = (1 - lr weight_decay) p - lr adjust d, with d stored in place of the
// gradient. Squares are summed as for LAMB.
//
// Bytes per element: 12 for the norm, 8 for scaling, 12 for the step.

// Divides by the Frobenius norm, or by `least` if the norm is smaller. `scratch`: 1 + ceil(count /
// 4096) doubles.
cudaError_t normalize(float* values, int64_t count, double least, double* scratch,
                      cudaStream_t stream);
cudaError_t scale(float* values, int64_t count, float by, cudaStream_t stream);
cudaError_t take_muon_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream);

// --- Exact sum of squares, independent of order and partition, bit for bit as in
// kernels/optimizers/squares.h. Limbs are integers, so atomic additions commute. A value adds less
// than 2^33 to each of three 64-bit limbs, so take the sum after at most 2^31 values.
//
// Bytes per element: 4.

cudaError_t add_exact_squares(const float* values, int64_t count, ofsdp_exact_sum* sum,
                              cudaStream_t stream);
// Stores the sum as OFSDP_EXACT_LIMBS doubles, which ranks can add up, and resets it to 0.
cudaError_t take_exact_sum(ofsdp_exact_sum* sum, double* limbs, cudaStream_t stream);
// Converts the limbs to one double.
cudaError_t exact_norm(const double* limbs, double* squared_norm, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
