// RNN: of each direction, h_t = f(W x_t + R h_{t-1} + b_W + b_R), f = tanh unless given; h_0 is
// initial_h or 0. Y has every h_t, Y_h the last ones.
// Backward from the last step, with dh the sum of dY_t and what comes from step t+1:
//   da_t = dh f'(a_t),  dh_{t-1} = R^T da_t,
//   dW = sum of da_t x_t^T,  dR = sum of da_t h_{t-1}^T,  db_W = db_R = sum of da_t,  dx_t = W^T da_t
// (ofsdp.RNNGrad, recurrent_kernel.h). f' is written with h_t, which the forward leaves.
// https://onnx.ai/onnx/operators/onnx__RNN.html
#include "kernels/ops/operators.h"
#include "kernels/ops/recurrent/recurrent.h"

namespace ofsdp::kernels::ops {
namespace {

std::vector<SampleCase> samples() {
  std::vector<RecurrentSample> list = common_recurrent_samples();
  const auto with = [&list](const char* name, const char* activation, Attributes attributes = {}) {
    attributes.set("activations", std::vector<std::string>{activation});
    list.push_back({.name = name,
                    .steps = 3,
                    .batch = 2,
                    .in = 4,
                    .hidden = 5,
                    .attributes = attributes,
                    .bias = true});
  };
  with("relu", "Relu");
  with("affine", "Affine",
       {{"activation_alpha", std::vector<float>{0.4f}},
        {"activation_beta", std::vector<float>{0.1f}}});
  with("leaky_relu", "LeakyRelu", {{"activation_alpha", std::vector<float>{0.2f}}});
  with("thresholded_relu", "ThresholdedRelu", {{"activation_alpha", std::vector<float>{0.3f}}});
  with("scaled_tanh", "ScaledTanh",
       {{"activation_alpha", std::vector<float>{1.5f}},
        {"activation_beta", std::vector<float>{0.7f}}});
  with("hard_sigmoid", "HardSigmoid");
  with("elu", "Elu", {{"activation_alpha", std::vector<float>{0.8f}}});
  with("softsign", "Softsign");
  with("softplus", "Softplus");
  with("sigmoid", "sigmoid");
  return recurrent_samples(RecurrentKind::kRnn, list);
}

std::vector<SampleCase> grad_samples() {
  return recurrent_grad_samples(RecurrentKind::kRnn, samples());
}

}  // namespace

void add_rnn(Registry& registry) {
  add_recurrent(registry, RecurrentKind::kRnn, samples, grad_samples);
}

}  // namespace ofsdp::kernels::ops
