// The attributes of RNN, GRU and LSTM that say which activations their gates have.
#include <algorithm>
#include <cctype>

#include "kernels/ops/recurrent/recurrent_activation.h"

namespace ofsdp::kernels::ops {
namespace {

using Kind = GateActivation::Kind;

struct Known {
  const char* name;
  Kind kind;
  bool has_alpha, has_beta;
  float alpha, beta;  // when the node gives none
};

constexpr Known kKnown[] = {{"sigmoid", Kind::kSigmoid, false, false, 0, 0},
                            {"tanh", Kind::kTanh, false, false, 0, 0},
                            {"relu", Kind::kRelu, false, false, 0, 0},
                            {"affine", Kind::kAffine, true, true, 1, 0},
                            {"leakyrelu", Kind::kLeakyRelu, true, false, 0.01f, 0},
                            {"thresholdedrelu", Kind::kThresholdedRelu, true, false, 1, 0},
                            {"scaledtanh", Kind::kScaledTanh, true, true, 1, 1},
                            {"hardsigmoid", Kind::kHardSigmoid, true, true, 0.2f, 0.5f},
                            {"elu", Kind::kElu, true, false, 1, 0},
                            {"softsign", Kind::kSoftsign, false, false, 0, 0},
                            {"softplus", Kind::kSoftplus, false, false, 0, 0}};

}  // namespace

Result<std::vector<GateActivation>> gate_activations(const Attributes& attributes,
                                                     std::vector<std::string> defaults) {
  const auto names = attributes.get("activations", defaults);
  if (names.size() != defaults.size()) {
    return input_error("activations: expected {} names, found {}", defaults.size(), names.size());
  }
  const auto alphas = attributes.get("activation_alpha", std::vector<float>{});
  const auto betas = attributes.get("activation_beta", std::vector<float>{});
  size_t next_alpha = 0, next_beta = 0;
  std::vector<GateActivation> made;
  for (const std::string& name : names) {
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const Known* found = std::ranges::find(kKnown, lower, &Known::name);
    if (found == std::end(kKnown)) return input_error("activations: '{}' is unknown", name);
    GateActivation a{.kind = found->kind, .alpha = found->alpha, .beta = found->beta};
    a.clip = attributes.f("clip", 0.0f);
    if (found->has_alpha && next_alpha < alphas.size()) a.alpha = alphas[next_alpha++];
    if (found->has_beta && next_beta < betas.size()) a.beta = betas[next_beta++];
    made.push_back(a);
  }
  return made;
}

}  // namespace ofsdp::kernels::ops
