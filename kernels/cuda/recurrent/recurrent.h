// The steps of RNN, GRU and LSTM and their gradients in float32: the arithmetic between the
// products with W and R, a thread per state element. kernels/ops/recurrent/recurrent.cpp has
// the formulas; kernels/ops/recurrent/recurrent_shape.h defines operands and saved values.
//
// H is `hidden`, G the gate count. A row is a step of a sample: [steps, batch], or [batch, steps]
// if `by_sample`. gates [rows, G H] holds X W^T + b on entry, recurrent [batch, G H] the step's h
// R^T. Gates have ONNX's order: z, r, n in a GRU; i, o, f, c in an LSTM. t is a time: if
// `reversed`, the first step has t = steps - 1. A sample that has ended keeps its state. The caller
// makes the products. Functions return the error of the launch.
#pragma once

#include "kernels/cuda/device/types.h"
#include "kernels/formulas/gates.h"

namespace ofsdp::kernels::cuda {

enum class CellKind : uint8_t { kRnn, kGru, kGruResetFirst, kLstm };

struct RecurrentParams {
  CellKind kind = CellKind::kRnn;
  int64_t steps = 0, batch = 0, hidden = 0, directions = 1;
  int64_t direction = 0;
  bool batch_first = false;  // layout of Y and states
  bool by_sample = false;    // row layout
  // keeps_arguments: saved values end with the arguments of all gates.
  bool reversed = false, input_forget = false, keeps_arguments = false;
  GateActivation f, g, h;
  const int32_t* lens = nullptr;  // [batch]; nullptr: all samples have all steps

  __host__ __device__ int64_t gates() const {
    return kind == CellKind::kLstm ? 4 : kind == CellKind::kRnn ? 1 : 3;
  }
  __host__ __device__ int64_t saved() const { return results() + (keeps_arguments ? gates() : 0); }
  __host__ __device__ int64_t results() const {
    return kind == CellKind::kLstm ? 5 : kind == CellKind::kGru ? 4 : gates();
  }
  // Offsets in units of `hidden` elements, for step t of sample b.
  __host__ __device__ int64_t row(int64_t t, int64_t b) const {
    return by_sample ? b * steps + t : t * batch + b;
  }
  __host__ __device__ int64_t y_row(int64_t t, int64_t b) const {
    return batch_first ? (b * steps + t) * directions + direction
                       : (t * directions + direction) * batch + b;
  }
  __host__ __device__ int64_t saved_row(int64_t t, int64_t b) const {
    return (direction * steps + t) * batch + b;
  }
  __host__ __device__ int64_t state_row(int64_t b) const {
    return batch_first ? b * directions + direction : direction * batch + b;
  }
  __host__ __device__ int64_t time_before(int64_t t) const { return reversed ? t + 1 : t - 1; }
};

struct RecurrentForward {
  RecurrentParams extent;
  float *gates = nullptr, *recurrent = nullptr;  // overwritten
  float *state = nullptr, *cell = nullptr;       // [batch, H], updated by a step; cell: LSTM
  float* reset = nullptr;                        // [batch, H]: r h, for a GRU that resets first
  const float *peep = nullptr,
              *bias_n = nullptr;         // P [3 H]; bias [H] of h R_n^T in a GRU; or nullptr
  float *y = nullptr, *saved = nullptr;  // may be nullptr
};
// Computes step t. For a GRU that resets first, rest = false computes r h; rest = true finishes the
// step, with recurrent [batch, H] = r h R_n^T.
cudaError_t recurrent_step(const RecurrentForward& r, int64_t t, bool rest, cudaStream_t stream);

// For ofsdp.RoundedLSTM: rounds states [batch, H] to 256 steps between their least and largest
// value and 0, over the samples that run at step t, as DynamicQuantizeLinear does. `rounded` may be
// `states`. One block.
cudaError_t round_states(const RecurrentParams& e, int64_t t, const float* states, float* rounded,
                         cudaStream_t stream);

struct RecurrentBackward {
  RecurrentParams extent;
  const float *y = nullptr, *saved = nullptr, *initial_h = nullptr, *initial_c = nullptr;
  const float *peep = nullptr, *diff_y = nullptr;  // may be nullptr
  const float* product = nullptr;                  // [batch, H]: the step's gate gradients times R
  float* before = nullptr;                         // [rows, H]: the state before each step
  float *state = nullptr, *cell = nullptr;         // [batch, H]: gradients of h and C, updated
  float* past = nullptr;  // [batch, H]: the part of dh(t - 1) that bypasses R
  float *diff_gates = nullptr, *diff_recurrent = nullptr;  // [rows, G H]; diff_recurrent: GRU
  // For a GRU that resets first: gradient of n and r h, both [rows, H]; diff_recurrent is [rows, 2
  // H].
  float *diff_last = nullptr, *reset = nullptr;
};
// Backward: the caller sets state and cell to the gradients of Y_h and Y_c. states_before writes
// `before`. Then for each t, the last step first:
//   recurrent_back        writes row t of diff_gates, diff_recurrent, diff_last, reset; past; cell
//   recurrent_back_rest   for a GRU that resets first, after product = diff_last R_n: the rest
//   recurrent_add         after product = diff_recurrent R (diff_gates R, if no GRU)
cudaError_t states_before(const RecurrentBackward& r, cudaStream_t stream);
cudaError_t recurrent_back(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
cudaError_t recurrent_back_rest(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
// state = past + product, the gradient of the previous state.
cudaError_t recurrent_add(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
// Stores dP [3 H], after the last step.
cudaError_t peephole_gradient(const RecurrentBackward& r, float* diff_peep, cudaStream_t stream);

// bias [width] = Wb + Rb for gates below `both`, only Wb from there on; b is [Wb, Rb].
cudaError_t recurrent_bias(const float* b, int64_t width, int64_t both, float* bias,
                           cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
