// The members of OpDef that RNN, GRU and LSTM share: rnn.cpp, gru.cpp and lstm.cpp have their
// formulas and sample cases.
//
// Owns: values. Threads: any. Errors: kInput from infer.
#pragma once

#include "kernels/core/registry.h"
#include "kernels/ops/recurrent/recurrent_kernel.h"
#include "kernels/ops/recurrent/recurrent_shape.h"

namespace ofsdp::kernels::ops {

// The operator, and its gradient in our own domain under the name of the operator and "Grad".
void add_recurrent(Registry& registry, RecurrentKind kind, std::vector<SampleCase> (*samples)(),
                   std::vector<SampleCase> (*grad_samples)());

// A sample: sizes, which optional inputs are there, attributes.
struct RecurrentSample {
  const char* name;
  int64_t steps, batch, in, hidden;
  Attributes attributes = {};
  bool bias = false, lens = false, initial = false, peepholes = false;
};
std::vector<SampleCase> recurrent_samples(RecurrentKind kind,
                                          const std::vector<RecurrentSample>& list);
// Those of the gradient: of the operator's samples, with everything given and everything wanted.
std::vector<SampleCase> recurrent_grad_samples(RecurrentKind kind,
                                               const std::vector<SampleCase>& forward);
// The samples that every kind has.
std::vector<RecurrentSample> common_recurrent_samples();

}  // namespace ofsdp::kernels::ops
