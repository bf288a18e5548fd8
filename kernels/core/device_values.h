// Values that program and device exchange in memory: the step's numbers, the run's state, and
// arguments to Device calls for gradients and updates (kernels/core/device.h).
//
// CUDA sources read these plain structs too. Pointers are device memory unless a comment says
// otherwise; dtypes are DType numbers (kernels/core/dtype.h).
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr int kMaxOptimizerStates = 4;
inline constexpr int OFSDP_EXACT_LIMBS = 16;
inline constexpr int OFSDP_MAX_LOSSES = 16;
inline constexpr size_t OFSDP_GROUP_KEY_BYTES = 128;

// Handles. Each Device implementation defines structs for them.
struct ofsdp_stream;
struct ofsdp_event;
struct ofsdp_device_graph;
struct ofsdp_group;  // ranks, each with a device, that communicate

// Numbers that change with each micro-batch. The host uploads them before it, followed in memory by
// `samples` global sample numbers (int64).
struct ofsdp_step_numbers {
  uint64_t seed;
  int64_t step;  // the update's number, from 0
  int64_t samples;
  double lr;
  double factor;  // of the schedule: the rate of a group is its base rate times this
  float loss_shares[OFSDP_MAX_LOSSES];  // per loss: this micro-batch's share of the global mean
  // `lr` and `factor` assume that `skipped_updates` updates were skipped. If the state counts more,
  // because the previous update was skipped after the host had sent these numbers, Device::begin
  // replaces them by lr_if_skipped and factor_if_skipped.
  int64_t skipped_updates;
  double lr_if_skipped, factor_if_skipped;
};

// The first report of wrong data (an index out of range, a length). The reporting kernel continues
// with 0 instead; Device::note_loss then sets `stop`, so that nothing is updated any more.
struct ofsdp_data_fault {
  uint64_t node;   // the node's number, from 1; 0: nothing was reported
  int64_t value;   // a wrong value
  int64_t extent;  // the size that bounds it; 0: unknown
};

// State that the device keeps between updates. The host gets a copy after each micro-batch, and
// reads it one micro-batch later.
struct ofsdp_run_state {
  float loss_weights[OFSDP_MAX_LOSSES];  // loss share times loss scale: where backward starts
  float losses[OFSDP_MAX_LOSSES];        // of the last micro-batch
  int64_t matches[2];
  double loss_scale, scale_used;
  double squared_norm;  // of the scaled gradients in this rank's spans, in this update
  double global_norm;   // of all ranks' unscaled gradients; valid after `clip`
  int64_t good_updates, skipped_updates;
  int64_t steps_before;    // optimizer steps before the run
  int64_t optimizer_step;  // from 1, without skipped updates
  float gradient_factor;
  int32_t skip;  // this update's gradients are not finite
  int32_t stop;  // a loss was NaN, or data were at fault: no further updates
  uint32_t reserved;
  ofsdp_data_fault fault;
};

// A gradient to reduce: read from a slot, rounded to the dtype that ranks reduce in, added to the
// earlier sum.
struct ofsdp_gradient {
  const void* src;
  int32_t dtype;
  int32_t reduce_dtype;
  const float* onto;  // or null
};

struct ofsdp_reduce {
  ofsdp_gradient gradient;
  float* dst;  // null: only the norm is wanted
  int64_t count;
  int64_t norm_first, norm_count;  // the norm adds the squares of these elements; 0: none
  double* partials;                // scratch: count / 4096 + 2 doubles
  ofsdp_run_state* state;
};

struct ofsdp_device_update {
  ofsdp_gradient gradient;
  float* param;
  float* states[kMaxOptimizerStates];
  int64_t count;
  double weight_decay;
  int32_t scaled;      // multiply the gradient by gradient_factor
  int32_t copy_dtype;  // float16 or bfloat16
  void* copy;          // the new parameter, rounded, or null; optimizers that step later ignore it
  const ofsdp_run_state* state;  // updates nothing if `skip` or `stop` is set
  const ofsdp_step_numbers* numbers;
  double base_lr = -1;  // as in UpdateSpec
};

// A parameter's stretch in a shard, for optimizers that need whole-parameter norms.
struct ofsdp_parameter_part {
  int64_t begin, count;  // elements in the shard
  int64_t parameter;     // two sums of squares begin at squares + 2 parameter
  double weight_decay;
  // For optimizers that keep the gradient. The whole parameter has `numel` elements; this part
  // begins at element `first`. A state has one element per element of the shard. If `columns` is
  // not 0, the states are factors, one per row and one per column, counted through all matrices,
  // and `means` holds each matrix's mean row factor.
  int64_t numel = 0, first = 0;
  int64_t rows = 0, columns = 0;  // of each matrix
  const float* states[2] = {};
  const float* means = nullptr;
  double adjust = 1;  // factor on the step (kernels/core/optimizer.h)
};

struct ofsdp_parameter_parts {
  float* param;  // the shard, as are the states
  float* states[kMaxOptimizerStates];
  const ofsdp_parameter_part* parts;  // host memory, read by the call; in order, disjoint
  int64_t num_parts;
  double* squares;               // per parameter: |p|^2 and |direction|^2
  double* partials;              // scratch: 2 (count / 4096 + 1) doubles per part
  const ofsdp_run_state* state;  // as in ofsdp_device_update
  const ofsdp_step_numbers* numbers;
  const float* gradient = nullptr;  // the shard's gradient, if the optimizer keeps it
  double base_lr = -1;              // as in UpdateSpec
};

// Elements [first, first + count) in a parameter that holds matrices, and sums of their squares
// over each row and column, numbered through all matrices.
struct ofsdp_matrix_squares {
  int64_t rows, columns;  // of each matrix
  int64_t first, count;
  const float* gradient;  // element `first`
  float* row_sums;        // sums of other rows and columns stay untouched
  float* column_sums;
};

// Moves each factor towards the mean square, sums[i] / length.
struct ofsdp_factor_advance {
  float* factors;
  const float* sums;
  int64_t count, length;
  const ofsdp_run_state* state;  // as in ofsdp_device_update
};

// A call that waits for other ranks calls goes_on(context) repeatedly, and gives up if that returns
// 0.
struct ofsdp_patience {
  int32_t (*goes_on)(void* context);
  void* context;
};

// Limb i counts multiples of 2^(32 i - 256). The last two limbs hold the bits above.
struct ofsdp_exact_sum {
  uint64_t limbs[OFSDP_EXACT_LIMBS + 2];
  uint64_t not_finite;
};

enum ofsdp_reduction { OFSDP_SUM, OFSDP_LARGEST };

enum {
  OFSDP_MAY_ROUND_TO_TF32 = 1,  // operands of float32 products
  OFSDP_MAY_VARY = 2  // bits may differ between runs: kernels chosen by time, any sum order
};
