// RNN, GRU and LSTM again, in double and a value at a time: the oracle of the tests.
//
// reference_recurrent gives ONNX's outputs and the saved values. The gradient has no definition of
// its own: reference_recurrent_grad is the float64 kernel, which the tests hold against finite
// differences of reference_recurrent. Owns: values. Threads: any.
#pragma once

#include "kernels/ops/recurrent/recurrent_kernel.h"

namespace ofsdp::kernels::ops {

std::vector<RefTensor> reference_recurrent(RecurrentKind kind, const ReferenceContext& context);
std::vector<RefTensor> reference_recurrent_grad(RecurrentKind kind,
                                                const ReferenceContext& context);

}  // namespace ofsdp::kernels::ops
