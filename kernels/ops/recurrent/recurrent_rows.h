// One row (a sample at one step) of the gates of RNN, GRU and LSTM, forward and backward. A row of
// gates holds G rows of `n` = H values one after another, in ONNX's order. float32 is compiled for
// each instruction set.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include "kernels/ops/recurrent/recurrent_activation.h"

namespace ofsdp::kernels::ops {

template <typename T>
struct ForwardRow {
  int64_t n;
  const GateActivation *f, *g, *h;
  T* gates;         // X W^T + b; becomes the gates
  T* recurrent;     // h R^T; scratch afterwards
  T* state;         // h, in place
  T* cell;          // LSTM's C, in place
  const T* peep;    // LSTM's P or null
  const T* bias_n;  // GRU: R_n's bias, added before the reset
  bool input_forget;
};

template <typename T>
struct BackwardRow {
  int64_t n;
  const GateActivation *f, *g, *h;
  const T* saved;
  const T* before;       // h of the step before
  const T* cell_before;  // LSTM: C of the step before
  const T* peep;
  T* diff_state;      // gradient of h: in that of this step, out what goes past the product with R
  T* diff_cell;       // LSTM: gradient of C, in and out
  T* diff_gates;      // out: gradient of X W^T + b
  T* diff_recurrent;  // GRU: out: gradient of h R^T (for the reset before the product: of r h, in)
  T* scratch;         // n values
  bool input_forget;
};

void rnn_row(const ForwardRow<float>& row);
void rnn_row(const ForwardRow<double>& row);
void lstm_row(const ForwardRow<float>& row);
void lstm_row(const ForwardRow<double>& row);
void gru_row(const ForwardRow<float>& row);  // linear before reset; recurrent's third becomes q
void gru_row(const ForwardRow<double>& row);
// Reset first: gates z and r, and r h into recurrent's first third; then, when recurrent holds the
// product of that with R_n^T, the rest.
void gru_reset_row(const ForwardRow<float>& row);
void gru_reset_row(const ForwardRow<double>& row);
void gru_last_row(const ForwardRow<float>& row);
void gru_last_row(const ForwardRow<double>& row);

void rnn_grad_row(const BackwardRow<float>& row);
void rnn_grad_row(const BackwardRow<double>& row);
void lstm_grad_row(const BackwardRow<float>& row);
void lstm_grad_row(const BackwardRow<double>& row);
void gru_grad_row(const BackwardRow<float>& row);
void gru_grad_row(const BackwardRow<double>& row);
// Reset first: gradients of z and n; then, when diff_recurrent holds the gradient of r h, that of
// r.
void gru_first_grad_row(const BackwardRow<float>& row);
void gru_first_grad_row(const BackwardRow<double>& row);
void gru_reset_grad_row(const BackwardRow<float>& row);
void gru_reset_grad_row(const BackwardRow<double>& row);

}  // namespace ofsdp::kernels::ops
