// LSTM: of each direction, with gates i, o, f, c (W, R and B in this order), peepholes P (i, o, f):
//   i = f(W_i x + R_i h + P_i C + b), f likewise, c = g(W_c x + R_c h + b),
//   C' = f C + i c,  o = f(W_o x + R_o h + P_o C' + b),  h' = o h(C');
//   f = sigmoid, g = h = tanh unless given; input_forget: gate f = 1 - i.
// Backward from the last step, with dh and dC the gradients of h' and C':
//   do = dh h(C') f'(o), dC += dh o h'(C') + P_o do,
//   di = dC c f'(i), df = dC C f'(f), dc = dC i g'(c), dC = dC f + P_i di + P_f df;
//   dP_i = sum of di C, dP_f = sum of df C, dP_o = sum of do C';
//   dW, dR, dB, dx as in rnn.cpp (ofsdp.LSTMGrad, recurrent_kernel.h).
// https://onnx.ai/onnx/operators/onnx__LSTM.html
#include "kernels/ops/operators.h"
#include "kernels/ops/recurrent/recurrent.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<SampleCase> samples() {
  std::vector<RecurrentSample> list = common_recurrent_samples();
  list.push_back({.name = "peepholes",
                  .steps = 4,
                  .batch = 3,
                  .in = 4,
                  .hidden = 5,
                  .attributes = {{"direction", std::string("bidirectional")}},
                  .bias = true,
                  .lens = true,
                  .initial = true,
                  .peepholes = true});
  list.push_back({.name = "coupled",
                  .steps = 3,
                  .batch = 2,
                  .in = 4,
                  .hidden = 5,
                  .attributes = {{"input_forget", int64_t{1}}},
                  .bias = true,
                  .initial = true,
                  .peepholes = true});
  list.push_back(
      {.name = "activations",
       .steps = 3,
       .batch = 2,
       .in = 4,
       .hidden = 5,
       .attributes = {{"activations", std::vector<std::string>{"HardSigmoid", "Softsign", "Elu"}}},
       .bias = true});
  return recurrent_samples(RecurrentKind::kLstm, list);
}

std::vector<SampleCase> grad_samples() {
  return recurrent_grad_samples(RecurrentKind::kLstm, samples());
}

}  // namespace

void add_lstm(Registry& registry) {
  add_recurrent(registry, RecurrentKind::kLstm, samples, grad_samples);
}

}  // namespace ofsdp::kernels::ops
