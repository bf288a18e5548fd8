// Shapes and operands of RNN, GRU and LSTM, for kernels on every device. The CUDA library compiles
// this file too, so it must not need the CPU kernels.
#include "kernels/ops/recurrent/recurrent_shape.h"

#include <algorithm>
#include <cctype>

namespace ofsdp::kernels::ops {
namespace {

// --- activations by name ---

using Kind = GateActivation::Kind;

struct Known {
  const char* name;
  Kind kind;
  bool has_alpha, has_beta;
  float alpha, beta;  // if the node gives none
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

// --- shapes ---

TensorDesc at(const std::vector<TensorDesc>& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : TensorDesc{};
}

Status expect(const std::vector<TensorDesc>& inputs, size_t i, const char* name,
              const Shape& shape) {
  const TensorDesc desc = at(inputs, i);
  if (!desc.present() || desc.shape == shape) return ok_status();
  return input_error("{}: expected {}, found {}", name, shape.text(), desc.shape.text());
}

Result<std::vector<GateActivation>> activations(const RecurrentShape& s,
                                                const Attributes& attributes) {
  std::vector<std::string> names;
  for (int64_t d = 0; d < s.directions; ++d) {
    if (s.kind != RecurrentKind::kRnn) names.push_back("Sigmoid");
    names.push_back("Tanh");
    if (s.is_lstm()) names.push_back("Tanh");
  }
  OFSDP_ASSIGN_OR_RETURN(auto made, gate_activations(attributes, std::move(names)));
  for (size_t i = 2; s.is_lstm() && i < made.size(); i += 3) made[i].clip = 0;
  return made;
}

Status check_operands(const RecurrentShape& s, const std::vector<TensorDesc>& inputs) {
  const int64_t rows = s.gates() * s.hidden;
  OFSDP_RETURN_IF_ERROR(expect(inputs, 1, "W", {s.directions, rows, s.in}));
  OFSDP_RETURN_IF_ERROR(expect(inputs, 2, "R", {s.directions, rows, s.hidden}));
  OFSDP_RETURN_IF_ERROR(expect(inputs, 3, "B", {s.directions, 2 * rows}));
  OFSDP_RETURN_IF_ERROR(expect(inputs, 4, "sequence_lens", {s.batch}));
  OFSDP_RETURN_IF_ERROR(expect(inputs, 5, "initial_h", s.state_shape()));
  if (at(inputs, 4).present() && at(inputs, 4).dtype != DType::kInt32) {
    return input_error("sequence_lens: expected int32, found {}", at(inputs, 4).text());
  }
  if (!s.is_lstm()) return ok_status();
  OFSDP_RETURN_IF_ERROR(expect(inputs, 6, "initial_c", s.state_shape()));
  return expect(inputs, 7, "P", {s.directions, 3 * s.hidden});
}

}  // namespace

bool RecurrentShape::keeps_arguments() const {
  for (size_t i = 0; i < activations.size(); ++i) {
    const bool of_gate = i % functions() < 2;
    if (of_gate && slope_needs_argument(activations[i])) return true;
  }
  return false;
}

Shape RecurrentShape::x_shape() const {
  return batch_first ? Shape{batch, steps, in} : Shape{steps, batch, in};
}
Shape RecurrentShape::y_shape() const {
  return batch_first ? Shape{batch, steps, directions, hidden}
                     : Shape{steps, directions, batch, hidden};
}
Shape RecurrentShape::state_shape() const {
  return batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
}

Result<RecurrentShape> infer_recurrent(RecurrentKind kind, const Attributes& attributes,
                                       const std::vector<TensorDesc>& inputs) {
  const Shape &x = inputs[0].shape, &r = inputs[2].shape;
  if (x.rank() != 3 || r.rank() != 3) {
    return input_error("X and R must have 3 axes, found {} and {}", x.text(), r.text());
  }
  RecurrentShape s;
  s.kind = kind;
  s.batch_first = attributes.i("layout", 0) != 0;
  s.steps = x[s.batch_first ? 1 : 0];
  s.batch = x[s.batch_first ? 0 : 1];
  s.in = x[2];
  s.hidden = r[2];
  if (attributes.i("hidden_size", s.hidden) != s.hidden) {
    return input_error("hidden_size is {}, but R is {}", attributes.i("hidden_size", 0), r.text());
  }
  const std::string direction = attributes.s("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    return input_error("direction: expected forward, reverse or bidirectional, found {}",
                       direction);
  }
  s.directions = direction == "bidirectional" ? 2 : 1;
  s.first_reversed = direction == "reverse";
  s.linear_before_reset = s.is_gru() && attributes.i("linear_before_reset", 0) != 0;
  s.input_forget = s.is_lstm() && attributes.i("input_forget", 0) != 0;
  OFSDP_ASSIGN_OR_RETURN(s.activations, activations(s, attributes));
  OFSDP_RETURN_IF_ERROR(check_operands(s, inputs));
  return s;
}

RecurrentShape known_recurrent(RecurrentKind kind, const Attributes& attributes,
                               const std::vector<TensorDesc>& inputs) {
  Result<RecurrentShape> shape = infer_recurrent(kind, attributes, inputs);
  OFSDP_CHECK(shape.ok(), "{}", shape.error().message());
  return *shape;
}

}  // namespace ofsdp::kernels::ops
