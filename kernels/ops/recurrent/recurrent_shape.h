// Shared by RNN, GRU and LSTM: the numbers of the problem and the activations of the gates.
//
//   X [T, B, I], W [D, G H, I], R [D, G H, H], B [D, 2 G H], sequence_lens [B] int32,
//   initial_h [D, B, H], LSTM's initial_c [D, B, H] and P [D, 3 H]
//   Y [T, D, B, H], Y_h [D, B, H], LSTM's Y_c [D, B, H]; with layout 1 X, Y and the states have
//   the batch in front.
//
// Samples shorter than T keep their state and give Y = 0 after their end. `clip` bounds what goes
// into the activations of gates, not into LSTM's h(C): as ONNX Runtime has it.
//
// The output after ONNX's own is ours, asked for by the gradient: what each step leaves, saved as
// [D, T, B, S H]. RNN: h. GRU: z, r, n, and with linear_before_reset q = h R_n + b. LSTM: i, o, f,
// c, C. Then, if the derivative of a gate needs it (recurrent_activation.h), the arguments of all
// gates. Values; any thread. Errors: kInput.
#pragma once

#include <array>
#include <vector>

#include "kernels/core/op_def.h"
#include "kernels/ops/recurrent/recurrent_activation.h"

namespace ofsdp::kernels::ops {

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
  // Rows of results among the saved ones.
  int64_t results() const {
    return is_gru() ? (linear_before_reset ? 4 : 3) : kind == RecurrentKind::kRnn ? 1 : 5;
  }
  // Returns whether the arguments of gates are saved. That of LSTM's h(C) is C.
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
  // Step number `step` of direction d handles this time.
  int64_t time(int64_t d, int64_t step) const {
    return (d == 1 || first_reversed) ? steps - 1 - step : step;
  }

  // The time before t in direction d; outside of 0 .. steps-1 at the beginning.
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

}  // namespace ofsdp::kernels::ops
