// GRU: of each direction, with gates z, r, n (W, R and B in this order),
//   z = f(W_z x + R_z h + b), r = f(W_r x + R_r h + b), b = W's bias and R's,
//   n = g(W_n x + b_Wn + R_n (r h) + b_Rn), linear_before_reset: g(W_n x + b_Wn + r (R_n h + b_Rn)),
//   h' = (1 - z) n + z h; f = sigmoid and g = tanh unless given.
// Backward from the last step, with dh the gradient of h': dz = dh (h - n) f'(z),
//   dn = dh (1 - z) g'(n), past the products dh z; then
//   reset first: d(r h) = R_n^T dn, dr = d(r h) h f'(r), and d(r h) r goes to h;
//   linear first, with q = R_n h + b_Rn: dr = dn q f'(r), dq = dn r;
//   dW, dR, dB, dx as in rnn.cpp (ofsdp.GRUGrad, recurrent_kernel.h).
// https://onnx.ai/onnx/operators/onnx__GRU.html
#include "kernels/ops/operators.h"
#include "kernels/ops/recurrent/recurrent.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<SampleCase> samples() {
  std::vector<RecurrentSample> list = common_recurrent_samples();
  std::vector<std::string> names;  // of what the list points at
  names.reserve(8);
  for (RecurrentSample r : common_recurrent_samples()) {
    r.attributes.set("linear_before_reset", int64_t{1});
    names.push_back("linear_" + std::string(r.name));
    r.name = names.back().c_str();
    list.push_back(r);
  }
  list.push_back(
      {.name = "activations",
       .steps = 3,
       .batch = 2,
       .in = 4,
       .hidden = 5,
       .attributes = {{"activations", std::vector<std::string>{"HardSigmoid", "Softsign"}}},
       .bias = true});
  return recurrent_samples(RecurrentKind::kGru, list);
}

std::vector<SampleCase> grad_samples() {
  return recurrent_grad_samples(RecurrentKind::kGru, samples());
}

}  // namespace

void add_gru(Registry& registry) {
  add_recurrent(registry, RecurrentKind::kGru, samples, grad_samples);
}

}  // namespace ofsdp::kernels::ops
