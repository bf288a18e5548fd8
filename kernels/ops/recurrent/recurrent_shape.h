// RNN, GRU and LSTM: gate activations, shapes, and the kernels' operands.
//
// kernels/formulas/gates.h has the activations' formulas. Most derivatives follow from the result
// y, which is saved anyhow; slope_needs_argument says which need x too.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/op_def.h"
#include "kernels/formulas/gates.h"

namespace ofsdp::kernels::ops {

// Returns f(x) by the definition.
double reference_activation(const GateActivation& activation, double x);

// y[i] = f(y[i]); T is float or double.
template <typename T>
void activate(const GateActivation& activation, T* y, int64_t n);

// d[i] *= f'(x[i]), with y[i] = f(x[i]). Reads x if slope_needs_argument, else only y.
template <typename T>
void activate_grad(const GateActivation& activation, const T* x, const T* y, T* d, int64_t n);

// The sizes of an RNN, GRU or LSTM, and the gate activations. T: steps, B: batch, I: in, H: hidden,
// D: directions, G: gates, S: saved.
//
//   X [T, B, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H], sequence_lens [B] int32,
//   initial_h [D, B, H], LSTM's initial_c [D, B, H] and P [D, 3 H]
//   Y [T, D, B, H], Y_h [D, B, H], LSTM's Y_c [D, B, H]; with layout 1 X, Y and the states have
//   the batch in front.
//
// If a sample is shorter than T, it keeps its state and gives Y = 0 after its end. `clip` bounds
// the arguments of gate activations, but not of LSTM's h(C), as in ONNX Runtime.
//
// The output after ONNX's own is ours, for the gradient: each step's values, saved as
// [D, T, B, S H]. RNN: h. GRU: z, r, n, and with linear_before_reset q = h R_n + b. LSTM: i, o, f,
// c, C. Then, if a gate's derivative needs it, the arguments of all gates.

// kRoundedLstm is ofsdp.RoundedLSTM: an LSTM whose product with R reads the states as
// DynamicQuantizeLinear rounds them, with the range of the samples that run. Straight through
// for the gradient.
enum class RecurrentKind { kRnn, kGru, kLstm, kRoundedLstm };

struct RecurrentShape {
  RecurrentKind kind = RecurrentKind::kRnn;
  int64_t steps = 0, batch = 0, in = 0, hidden = 0, directions = 1;
  bool first_reversed = false;  // a second direction is always reversed
  bool batch_first = false;
  bool linear_before_reset = false;
  bool input_forget = false;
  std::vector<GateActivation> activations;  // direction after direction

  int64_t gates() const { return kind == RecurrentKind::kRnn ? 1 : is_gru() ? 3 : 4; }
  int64_t saved() const { return results() + (keeps_arguments() ? gates() : 0); }
  // Returns how many saved rows hold results.
  int64_t results() const {
    return is_gru() ? (linear_before_reset ? 4 : 3) : kind == RecurrentKind::kRnn ? 1 : 5;
  }
  // Returns whether gate arguments are saved. The argument of LSTM's h(C) is C itself.
  bool keeps_arguments() const;
  int64_t width() const { return gates() * hidden; }
  // For the backward pass: the gate width in the product of a step's states with R.
  int64_t recurrent_width() const { return resets_first() ? 2 * hidden : width(); }
  bool is_gru() const { return kind == RecurrentKind::kGru; }
  bool is_lstm() const { return kind == RecurrentKind::kLstm || rounds_states(); }
  bool rounds_states() const { return kind == RecurrentKind::kRoundedLstm; }
  bool resets_first() const { return is_gru() && !linear_before_reset; }
  size_t outputs() const { return is_lstm() ? 3 : 2; }  // ONNX's
  // Returns direction d's function: 0 f, 1 g, 2 h.
  const GateActivation& activation(int64_t d, size_t which) const {
    return activations[static_cast<size_t>(d) * functions() + which];
  }
  size_t functions() const { return kind == RecurrentKind::kRnn ? 1 : is_gru() ? 2 : 3; }
  // Returns which time direction d handles in step `step`.
  int64_t time(int64_t d, int64_t step) const {
    return (d == 1 || first_reversed) ? steps - 1 - step : step;
  }

  // Returns the time before t in direction d; outside 0 .. steps-1 if t is the first.
  int64_t time_before(int64_t d, int64_t t) const {
    return d == 1 || first_reversed ? t + 1 : t - 1;
  }

  // Row offsets, in elements.
  int64_t x_at(int64_t t, int64_t b) const {
    return (batch_first ? b * steps + t : t * batch + b) * in;
  }
  int64_t y_at(int64_t t, int64_t d, int64_t b) const {
    return (batch_first ? (b * steps + t) * directions + d : (t * directions + d) * batch + b) *
           hidden;
  }
  int64_t state_at(int64_t d, int64_t b) const {
    return (batch_first ? b * directions + d : d * batch + b) * hidden;
  }
  int64_t saved_at(int64_t t, int64_t d, int64_t b) const {
    return ((d * steps + t) * batch + b) * saved() * hidden;
  }

  Shape x_shape() const;
  Shape y_shape() const;
  Shape state_shape() const;
  Shape saved_shape() const { return {directions, steps, batch, saved() * hidden}; }
};

// infer_recurrent checks the node; kInput. known_recurrent reads a node that has been checked.
Result<RecurrentShape> infer_recurrent(RecurrentKind kind, const Attributes& attributes,
                                       const std::vector<TensorDesc>& inputs);
RecurrentShape known_recurrent(RecurrentKind kind, const Attributes& attributes,
                               const std::vector<TensorDesc>& inputs);

// Kernels for RNN, GRU, LSTM and their gradients, in float32 and float64.
//
// Forward: ONNX's inputs and outputs, then the saved values. Gradient: takes X, W, R, B,
// sequence_lens, initial_h, initial_c, P, Y, saved, dY, dY_h, dY_c; returns dX, dW, dR, dB, d
// initial_h, d initial_c, dP. An empty output is not wanted.
//
// [Note: recurrent kernels] One matrix product makes X W^T for all steps. Then each step multiplies
// the states by R^T (a GRU with the reset before the product does two products) and computes the
// gates row by row. Backward, each step multiplies the gates' gradients by R; the gradients of W, R
// and X are products over all steps at the end.

enum RecurrentInput : size_t {
  kX,
  kW,
  kR,
  kB,
  kLens,
  kInitialH,
  kInitialC,
  kP,
  kY,
  kSaved,
  kDiffY,
  kDiffYh,
  kDiffYc,
  kRecurrentInputs
};
enum RecurrentGradient : size_t { kDiffX, kDiffW, kDiffR, kDiffB, kDiffH0, kDiffC0, kDiffP };

std::unique_ptr<Kernel> make_recurrent(const RecurrentShape& shape, const Problem& problem);
std::unique_ptr<Kernel> make_recurrent_grad(const RecurrentShape& shape, const Problem& problem);

// The operators in double, one value at a time: the tests' oracle. Returns ONNX's outputs and the
// saved values. The gradient's reference is the float64 kernel; tests compare it with finite
// differences of reference_recurrent.
std::vector<RefTensor> reference_recurrent(RecurrentKind kind, const ReferenceContext& context);
std::vector<RefTensor> reference_recurrent_grad(RecurrentKind kind,
                                                const ReferenceContext& context);

}  // namespace ofsdp::kernels::ops
