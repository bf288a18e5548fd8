// Launchers of the step's arithmetic that is no node: the update's numbers, conversions and sums of
// gradients, the norm, clipping, optimizers. Meaning and operands: kernels/core/device.h.
//
// Views; nothing is owned. Threads: one a device. Errors: those of the launch;
// cudaErrorNotSupported for a dtype other than float32, float16 and bfloat16.
#pragma once

#include <string_view>

#include "kernels/core/optimizer.h"
#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

cudaError_t begin_update(ofsdp_run_state* state, ofsdp_step_numbers* numbers, bool update,
                         bool scales, cudaStream_t stream);
cudaError_t note_loss(ofsdp_run_state* state, const float* loss, bool stops, cudaStream_t stream);
cudaError_t convert(const void* src, int32_t from, void* dst, int32_t to, int64_t n,
                    cudaStream_t stream);
cudaError_t add_onto(const void* src, int32_t from, float* dst, int64_t n, cudaStream_t stream);
cudaError_t round_values(float* values, int32_t to, int64_t n, cudaStream_t stream);
cudaError_t reduce_gradient(const ofsdp_reduce& r, cudaStream_t stream);
cudaError_t clip(ofsdp_run_state* state, double most, bool scales, cudaStream_t stream);
cudaError_t mark(int64_t* pinned, int64_t value, cudaStream_t stream);

// --- The optimizers of kernels/optimizers/updates.h on the device: gradient (of any float type,
// scaled by the clip factor), parameter and states are read once and written once.
//
// Memory per element, in bytes, without the gradient: 24 with two states, 16 with one, 8 with none.

using DeviceUpdate = cudaError_t (*)(const OptimizerSettings& settings,
                                     const ofsdp_device_update& update, cudaStream_t stream);

// Returns the update called `name`, null if there is none. "assign" writes the gradient to the
// parameter: results that were computed elsewhere.
DeviceUpdate find_update(const char* name);

// --- LAMB's step, once `m` and `v` are advanced (optimizers.cu): squared norms of each parameter
// and of its direction d, and p -= lr |p| / |d| d. The arithmetic is that of
// kernels/optimizers/parameter_updates.h. The sums run over blocks of 4096 elements, by one thread
// block each in a fixed order, then over a part's blocks in a fixed order. No atomics: the same
// bits in every run.
//
// The parts of a shard go by kernel arguments, kMaxLambParts a launch: one pass over the shard for
// the squares, one for the step, however many parameters it holds. d is not stored but computed
// twice.
//
// Memory per element: 12 bytes for the squares, 16 for the step.

inline constexpr int kMaxLambParts = 96;

// Two numbers for every block of a launch.
cudaError_t add_lamb_squares(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                             cudaStream_t stream);
cudaError_t take_lamb_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream);

// --- Adafactor's, once its second moments are advanced; kernels/optimizers/factors.h and
// parameter_updates.h have the formulas. Sums are in double: a warp a row, a thread block 32
// columns of a matrix, and squares as LAMB's; no atomics. A part is a launch of its own, of which
// there are several.
//
// Memory per element: 4 bytes for each of the sums; 8 for the squares and 12 for the step, and the
// factors from the cache.

cudaError_t sum_matrix_squares(const ofsdp_matrix_squares& m, cudaStream_t stream);
cudaError_t advance_factors(const ofsdp_factor_advance& a, cudaStream_t stream);
cudaError_t mean_rows(const float* factors, int64_t rows, int64_t matrices, float* means,
                      cudaStream_t stream);
cudaError_t add_adafactor_squares(const OptimizerSettings& settings,
                                  const ofsdp_parameter_parts& parts, cudaStream_t stream);
cudaError_t take_adafactor_step(const OptimizerSettings& settings,
                                const ofsdp_parameter_parts& parts, cudaStream_t stream);

// --- Muon's: values over their norm and times a number, between which orthogonal_plan.h has its
// products, and p = (1 - lr weight_decay) p - lr adjust d with the direction d in the place of the
// gradient. Squares are summed as LAMB's.
//
// Memory per element: 12 bytes for the norm, 8 for scaling, 12 for the step.

cudaError_t normalize(float* values, int64_t count, double least, double* scratch,
                      cudaStream_t stream);
cudaError_t scale(float* values, int64_t count, float by, cudaStream_t stream);
cudaError_t take_muon_step(const OptimizerSettings& settings, const ofsdp_parameter_parts& parts,
                           cudaStream_t stream);

// How the optimizer of that name takes its steps from whole parameters; LAMB's for others.
struct DeviceSteps {
  cudaError_t (*add_squares)(const OptimizerSettings&, const ofsdp_parameter_parts&, cudaStream_t);
  cudaError_t (*take_step)(const OptimizerSettings&, const ofsdp_parameter_parts&, cudaStream_t);
};
inline DeviceSteps find_steps(std::string_view name) {
  if (name == "muon") return {nullptr, take_muon_step};
  if (name == "adafactor") return {add_adafactor_squares, take_adafactor_step};
  return {add_lamb_squares, take_lamb_step};
}

// --- A sum of squares that depends on no order and no cut: runtime/engine/exact_squares.h has the
// format, which these kernels follow bit for bit. Limbs are whole numbers, so atomic additions give
// the same sum in any order; a value adds less than 2^33 to each of three limbs of 64 bits. At most
// 2^31 values until a sum is taken.
//
// Memory: 4 bytes an element.

cudaError_t add_exact_squares(const float* values, int64_t count, ofsdp_exact_sum* sum,
                              cudaStream_t stream);
// As OFSDP_EXACT_LIMBS doubles, which ranks add up; the sum is 0 again.
cudaError_t take_exact_sum(ofsdp_exact_sum* sum, double* limbs, cudaStream_t stream);
cudaError_t exact_norm(const double* limbs, double* squared_norm, cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
