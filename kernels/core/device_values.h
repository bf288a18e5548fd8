// The values that the program and a device exchange in memory: numbers of a step, the run's state,
// and the arguments of Device's calls for gradients and updates (kernels/core/device.h).
//
// Plain structs without constructors, since CUDA sources read them too. Pointers are device memory
// unless a comment says otherwise. dtypes are numbers of kernels/core/dtype.h.
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr int OFSDP_MOST_OPTIMIZER_STATES = 4;
inline constexpr int OFSDP_EXACT_LIMBS = 16;
inline constexpr size_t OFSDP_GROUP_KEY_BYTES = 128;

// Handles. Each implementation of Device has structs of its own for them.
struct ofsdp_stream;
struct ofsdp_event;
struct ofsdp_device_graph;
struct ofsdp_device_optimizer;
struct ofsdp_group;  // ranks, each with a device, that communicate

// Numbers that change from micro-batch to micro-batch, uploaded before it. `samples` global sample
// numbers (int64) follow.
struct ofsdp_step_numbers {
  uint64_t seed;
  int64_t step;  // updates, from 0
  int64_t samples;
  double lr;
  float loss_share;  // this micro-batch's share of the global mean
  uint32_t reserved;
  // `lr` counts with so many skipped updates. Device::begin writes lr_if_skipped in its place if
  // the state has more: the update before was skipped after the host had sent these.
  int64_t skipped_updates;
  double lr_if_skipped;
};

// The first node that found data it cannot go on with: an index out of range, a length. The node
// takes 0 instead; `note_loss` stops all later updates.
struct ofsdp_data_fault {
  uint64_t node;   // its number when it was launched; 0: none
  int64_t value;   // one of the values
  int64_t extent;  // the size that bounds it; 0: not known
};

// State that the device keeps from update to update. The host gets copies, one step late.
struct ofsdp_run_state {
  float loss_weight;  // loss_share times the loss scale: where backward starts
  float loss;         // of the last micro-batch
  int64_t matches[2];
  double loss_scale, scale_used;
  double squared_norm;  // of this rank's spans, this update, scaled
  double global_norm;   // after clip: unscaled
  int64_t good_updates, skipped_updates;
  int64_t steps_before;    // of the optimizer, before the run
  int64_t optimizer_step;  // from 1, without skipped ones
  float gradient_factor;
  int32_t skip;  // this update's gradients are not finite
  int32_t stop;  // a loss was NaN, or data were at fault: no further updates
  uint32_t reserved;
  ofsdp_data_fault fault;
};

// A gradient on its way: read from a slot, rounded to the dtype that ranks reduce in, added onto
// the earlier sum.
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
  int64_t norm_first, norm_count;  // their squares are added to the norm; 0: none
  double* partials;                // count / 4096 + 2 of them
  ofsdp_run_state* state;
};

struct ofsdp_optimizer_settings {
  double momentum, beta1, beta2, eps, rho;
  int32_t nesterov;
  int32_t no_bias_correction;  // of adamw
};

struct ofsdp_device_update {
  ofsdp_gradient gradient;
  float* param;
  float* states[OFSDP_MOST_OPTIMIZER_STATES];
  int64_t count;
  double weight_decay;
  int32_t scaled;      // the gradient is multiplied by gradient_factor
  int32_t copy_dtype;  // of 16 bits
  void* copy;          // the new parameter, rounded; or null. Optimizers whose steps come later
                       // leave it alone
  const ofsdp_run_state* state;  // nothing is updated if `skip` or `stop` is set
  const ofsdp_step_numbers* numbers;
};

// A stretch of a shard that belongs to one parameter, for optimizers that need norms of whole
// parameters.
struct ofsdp_parameter_part {
  int64_t begin, count;  // elements of the shard
  int64_t parameter;     // its squares are the two numbers from squares + 2 parameter on
  double weight_decay;
  // Set for optimizers that keep the gradient. `numel`: elements of the whole parameter; the part
  // begins at its element `first`. A state is indexed by elements of the shard; with `columns`, the
  // states are factors, indexed by rows and columns of all matrices, and `means` holds the mean of
  // the row factors of each matrix.
  int64_t numel = 0, first = 0;
  int64_t rows = 0, columns = 0;  // of a matrix
  const float* states[2] = {};
  const float* means = nullptr;
  double adjust = 1;  // of the step (kernels/core/optimizer.h)
};

struct ofsdp_parameter_parts {
  float* param;  // of the shard, as the states
  float* states[OFSDP_MOST_OPTIMIZER_STATES];
  const ofsdp_parameter_part* parts;  // host memory, read by the call; in order, disjoint
  int64_t num_parts;
  double* squares;               // of each parameter, and of the direction of its step
  double* partials;              // 2 (count / 4096 + 1) of each part
  const ofsdp_run_state* state;  // as in ofsdp_device_update
  const ofsdp_step_numbers* numbers;
  const float* gradient = nullptr;  // of the shard, where the optimizer keeps it
};

// Elements [first, first + count) of a parameter of matrices, and sums of their squares over each
// row and column, numbered through all matrices.
struct ofsdp_matrix_squares {
  int64_t rows, columns;  // of a matrix
  int64_t first, count;
  const float* gradient;  // of element `first`
  float* row_sums;        // sums of other rows and columns are left alone
  float* column_sums;
};

// Factors on their way to the means of their squares: sums over `length` elements each.
struct ofsdp_factor_advance {
  float* factors;
  const float* sums;
  int64_t count, length;
  const ofsdp_run_state* state;  // as in ofsdp_device_update
};

// Asked again and again by a call that waits for other ranks; 0: the call gives up.
struct ofsdp_patience {
  int32_t (*goes_on)(void* context);
  void* context;
};

// Limb i counts units of 2^(32 i - 256). The two limbs after the last take the bits above it.
struct ofsdp_exact_sum {
  uint64_t limbs[OFSDP_EXACT_LIMBS + 2];
  uint64_t not_finite;
};

enum ofsdp_reduction { OFSDP_SUM, OFSDP_LARGEST };

enum {
  OFSDP_MAY_ROUND_TO_TF32 = 1,  // operands of products of float32
  OFSDP_MAY_VARY = 2            // other bits from run to run: choices by time, sums in any order
};
