// RNN, GRU and LSTM: activations of gates, shapes, and operands of the kernels.
//
// The activations of gates, ONNX's list: applied in place to a row, and their derivatives. With a
// clip c the argument is bounded to -c .. c first; the derivative is 0 if that happened.
//
// Most derivatives follow from the result y, which is saved anyhow. Some attributes lose the
// argument, as LeakyRelu with an alpha of 0: then the derivative needs x.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/op_def.h"

namespace ofsdp::kernels::ops {

struct GateActivation {
  enum class Kind {
    kSigmoid,
    kTanh,
    kRelu,
    kAffine,
    kLeakyRelu,
    kThresholdedRelu,
    kScaledTanh,
    kHardSigmoid,
    kElu,
    kSoftsign,
    kSoftplus
  };
  Kind kind = Kind::kTanh;
  float alpha = 0, beta = 0;
  float clip = 0;  // 0: none
};

// Returns f(x) of one value, by the definition.
double reference_activation(const GateActivation& activation, double x);

// y[i] = f(y[i]), of float or double.
template <typename T>
void activate(const GateActivation& activation, T* y, int64_t n);

// Returns whether f'(x) depends on x beyond the result f(x).
inline bool slope_needs_argument(const GateActivation& a) {
  switch (a.kind) {
    case GateActivation::Kind::kLeakyRelu:
    case GateActivation::Kind::kElu:
      return a.alpha <= 0;
    case GateActivation::Kind::kThresholdedRelu:
      return a.alpha < 0;
    default:
      return false;
  }
}

// d[i] *= f'(x[i]) where y[i] = f(x[i]). Reads x only if slope_needs_argument, else y only.
template <typename T>
void activate_grad(const GateActivation& activation, const T* x, const T* y, T* d, int64_t n);

// Shared by RNN, GRU and LSTM: the numbers of the problem and the activations of the gates.
//
//   X [T, B, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H], sequence_lens [B] int32,
//   initial_h [D, B, H], LSTM's initial_c [D, B, H] and P [D, 3 H]
//   Y [T, D, B, H], Y_h [D, B, H], LSTM's Y_c [D, B, H]; with layout 1 X, Y and the states have
//   the batch in front.
//
// Samples shorter than T keep their state and give Y = 0 after their end. `clip` bounds the
// arguments of the gates' activations, not of LSTM's h(C), as in ONNX Runtime.
//
// The output after ONNX's own is ours, for the gradient: the values of each step, saved as [D, T,
// B, S H]. RNN: h. GRU: z, r, n, and with linear_before_reset q = h R_n + b. LSTM: i, o, f, c, C.
// Then, if the derivative of a gate needs it (recurrent_shape.h), the arguments of all gates.

enum class RecurrentKind { kRnn, kGru, kLstm };

struct RecurrentShape {
  RecurrentKind kind = RecurrentKind::kRnn;
  int64_t steps = 0, batch = 0, in = 0, hidden = 0, directions = 1;
  bool first_reversed = false;  // a second direction is always reversed
  bool batch_first = false;
  bool linear_before_reset = false;
  bool input_forget = false;
  std::vector<GateActivation> activations;  // of each direction one after another

  int64_t gates() const { return kind == RecurrentKind::kRnn ? 1 : is_gru() ? 3 : 4; }
  int64_t saved() const { return results() + (keeps_arguments() ? gates() : 0); }
  // Returns the number of saved rows that hold results.
  int64_t results() const {
    return is_gru() ? (linear_before_reset ? 4 : 3) : kind == RecurrentKind::kRnn ? 1 : 5;
  }
  // Returns whether the arguments of gates are saved. The argument of LSTM's h(C) is C itself.
  bool keeps_arguments() const;
  int64_t width() const { return gates() * hidden; }
  // Gates in the product of a step's states with R; backward.
  int64_t recurrent_width() const { return resets_first() ? 2 * hidden : width(); }
  bool is_gru() const { return kind == RecurrentKind::kGru; }
  bool is_lstm() const { return kind == RecurrentKind::kLstm; }
  bool resets_first() const { return is_gru() && !linear_before_reset; }
  size_t outputs() const { return is_lstm() ? 3 : 2; }  // of ONNX
  // Returns a function of direction d: 0 f, 1 g, 2 h.
  const GateActivation& activation(int64_t d, size_t which) const {
    return activations[static_cast<size_t>(d) * functions() + which];
  }
  size_t functions() const { return kind == RecurrentKind::kRnn ? 1 : is_gru() ? 2 : 3; }
  // Returns the time that step `step` of direction d handles.
  int64_t time(int64_t d, int64_t step) const {
    return (d == 1 || first_reversed) ? steps - 1 - step : step;
  }

  // Returns the time before t in direction d; outside 0 .. steps-1 at the beginning.
  int64_t time_before(int64_t d, int64_t t) const {
    return d == 1 || first_reversed ? t + 1 : t - 1;
  }

  // The beginnings of rows, in elements.
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

Result<RecurrentShape> infer_recurrent(RecurrentKind kind, const Attributes& attributes,
                                       const std::vector<TensorDesc>& inputs);
RecurrentShape known_recurrent(RecurrentKind kind, const Attributes& attributes,
                               const std::vector<TensorDesc>& inputs);

// Kernels of RNN, GRU and LSTM and of their gradients, float32 and float64.
//
// Forward: inputs and outputs as ONNX has them (recurrent_shape.h), then the saved values.
// Gradient: takes X, W, R, B, sequence_lens, initial_h, initial_c, P, Y, saved, dY, dY_h, dY_c,
// gives dX, dW, dR, dB, d initial_h, d initial_c, dP; an empty output is not wanted.
//
// [Note: recurrent kernels] One matrix product makes X W^T of all steps, then each step has one (a
// GRU with its reset before the product: two) of the states with R^T, and the gates row by row.
// Backward, each step multiplies the gates' gradients with R; the gradients of W, R and X are
// products over all steps at the end.

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

// The operators in double, one value at a time: the oracle of the tests. Returns ONNX's outputs and
// the saved values. The gradient's reference is the float64 kernel; tests compare that with finite
// differences of reference_recurrent.
std::vector<RefTensor> reference_recurrent(RecurrentKind kind, const ReferenceContext& context);
std::vector<RefTensor> reference_recurrent_grad(RecurrentKind kind,
                                                const ReferenceContext& context);

}  // namespace ofsdp::kernels::ops
