// Kernels of RNN, GRU and LSTM and of their gradients, float32 and float64.
//
// Forward: inputs and outputs as ONNX has them (recurrent_shape.h), then the saved values.
// Gradient: takes X, W, R, B, sequence_lens, initial_h, initial_c, P, Y, saved, dY, dY_h, dY_c,
// gives dX, dW, dR, dB, d initial_h, d initial_c, dP; an empty output is not wanted.
//
// [Note: recurrent kernels] One matrix product makes X W^T of all steps, then each step has one (a
// GRU with its reset before the product: two) of the states with R^T, and the gates row by row.
// Backward each step multiplies the gates' gradients with R; those of W, R and X are products over
// all steps at the end. Threads: as Kernel. No errors.
#pragma once

#include <memory>

#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {

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

// The operators again, in double and a value at a time: the oracle of the tests
// (recurrent_reference.cpp). Returns ONNX's outputs and the saved values. The gradient has no
// definition of its own: its reference is the float64 kernel, which the tests hold against finite
// differences of reference_recurrent.
std::vector<RefTensor> reference_recurrent(RecurrentKind kind, const ReferenceContext& context);
std::vector<RefTensor> reference_recurrent_grad(RecurrentKind kind,
                                                const ReferenceContext& context);

}  // namespace ofsdp::kernels::ops
