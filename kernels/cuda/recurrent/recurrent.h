// The steps of RNN, GRU and LSTM, forwards and backwards, in float32: what comes between the
// products with W and R, a thread an element of a state. kernels/ops/recurrent/recurrent.cpp has
// the formulas, recurrent_shape.h the meaning of every operand and what is saved.
//
// Rows of a step and a sample are [steps, batch] or, by_sample, [batch, steps]. gates [rows, G H]
// is X W^T + b on its way in; recurrent [batch, G H] is h R^T of this step. Memory: a step reads
// and writes each of its values once, from the cache where the model is small.
#pragma once

#include "kernels/cuda/device/types.h"

namespace ofsdp::kernels::cuda {

enum class CellKind : uint8_t { kRnn, kGru, kGruResetFirst, kLstm };

struct GateFunction {  // kind: those of kernels/ops/recurrent/recurrent_shape.h, in its order
  int32_t kind = 1;
  float alpha = 0, beta = 0, clip = 0;
  bool needs_argument = false;  // its slope
};

struct RecurrentExtent {
  CellKind kind = CellKind::kRnn;
  int64_t steps = 0, batch = 0, hidden = 0, directions = 1;
  int64_t direction = 0;
  bool batch_first = false;  // Y and states
  bool by_sample = false;    // rows
  bool reversed = false, input_forget = false, keeps_arguments = false;
  GateFunction f, g, h;
  const int32_t* lens = nullptr;  // null: all samples have all steps

  __host__ __device__ int64_t gates() const {
    return kind == CellKind::kLstm ? 4 : kind == CellKind::kRnn ? 1 : 3;
  }
  __host__ __device__ int64_t saved() const { return results() + (keeps_arguments ? gates() : 0); }
  __host__ __device__ int64_t results() const {
    return kind == CellKind::kLstm ? 5 : kind == CellKind::kGru ? 4 : gates();
  }
  // Beginnings of rows, counted in rows.
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
  RecurrentExtent extent;
  float *gates = nullptr, *recurrent = nullptr;    // both are scratch afterwards
  float *state = nullptr, *cell = nullptr;         // [batch, H]; cell of LSTM
  float* reset = nullptr;                          // GRU with the reset first: r h [batch, H]
  const float *peep = nullptr, *bias_n = nullptr;  // P [3 H] or null; R_n's bias [H] of GRU
  float *y = nullptr, *saved = nullptr;            // null: not wanted
};
// Takes step t. A GRU with the reset first has two parts: up to r h, and, when recurrent [batch, H]
// is r h R_n^T, the rest.
cudaError_t recurrent_step(const RecurrentForward& r, int64_t t, bool rest, cudaStream_t stream);

struct RecurrentBackward {
  RecurrentExtent extent;
  const float *y = nullptr, *saved = nullptr, *initial_h = nullptr, *initial_c = nullptr;
  const float *peep = nullptr, *diff_y = nullptr;  // null: none
  const float* product = nullptr;                  // [batch, H], of the step's gradients with R
  float* before = nullptr;                         // [rows, H]: states before each step
  float *state = nullptr, *cell = nullptr;         // [batch, H]: gradients of h and C
  float* past = nullptr;                           // [batch, H]: of h, past the products
  float *diff_gates = nullptr, *diff_recurrent = nullptr;  // [rows, G H]; the latter of GRU
  // GRU with the reset first: of n, and r h [rows, H]; diff_recurrent is [rows, 2 H]
  float *diff_last = nullptr, *reset = nullptr;
};
cudaError_t states_before(const RecurrentBackward& r, cudaStream_t stream);
cudaError_t recurrent_back(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
cudaError_t recurrent_back_rest(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
// state = past + product.
cudaError_t recurrent_add(const RecurrentBackward& r, int64_t t, cudaStream_t stream);
// dP [3 H], when all steps are done.
cudaError_t peephole_gradient(const RecurrentBackward& r, float* diff_peep, cudaStream_t stream);

// bias [G H]: B's half for W and that for R, but of the gates from `both` on the first alone.
cudaError_t recurrent_bias(const float* b, int64_t width, int64_t both, float* bias,
                           cudaStream_t stream);

}  // namespace ofsdp::kernels::cuda
