// CPU optimizers: a vectorized loop over each formula in updates.h, and the list.
#include "kernels/cpu/parallel.h"
#include "kernels/optimizers/parameter_updates.h"
#include "kernels/optimizers/updates.h"

namespace ofsdp::kernels {
namespace {

using updates::Element;

template <typename Update, int states>
OFSDP_MULTIARCH void update_elements(float* __restrict param, const float* __restrict grad,
                                     float* __restrict state0, float* __restrict state1, int64_t n,
                                     typename Update::Factors f) {
  for (int64_t i = 0; i < n; ++i) {
    Element e{Update::kMovesParam ? param[i] : 0,
              {states > 0 ? state0[i] : 0, states > 1 ? state1[i] : 0}};
    Update::step(e, grad[i], f);
    if (Update::kMovesParam) param[i] = e.param;
    if (states > 0) state0[i] = e.state[0];
    if (states > 1) state1[i] = e.state[1];
  }
}

constexpr int count_of(const OptimizerTraits& traits) {
  return (traits.states[0] != nullptr) + (traits.states[1] != nullptr);
}
constexpr bool has_momentum(const OptimizerTraits& traits) {
  return (traits.takes & kTakesMomentum) != 0;
}

template <typename Update, int states, bool momentum>
OptimizerDef definition(const char* name, const OptimizerTraits& traits) {
  OptimizerDef def;
  def.name = name;
  def.states = [traits](const OptimizerSettings& s) {
    std::vector<std::string> names(traits.states.begin(), traits.states.begin() + states);
    if (momentum && s.momentum != 0) names.emplace_back("momentum_buffer");
    return names;
  };
  def.update = [](const OptimizerSettings& s, const OptimizerSpan<float>& span) {
    const bool moves = momentum && s.momentum != 0;
    const auto loop =
        moves ? update_elements<Update, states + momentum> : update_elements<Update, states>;
    const int count = states + (moves ? 1 : 0);
    loop(span.param, span.grad, count > 0 ? span.state[0] : nullptr,
         count > 1 ? span.state[1] : nullptr, span.count,
         Update::factors({s, span.lr, span.weight_decay, span.step}));
  };
  def.reference = Update::reference;
  def.traits = traits;
  return def;
}

OFSDP_MULTIARCH void lamb_direction(const OptimizerSpan<float>& span, const float* __restrict param,
                                    const float* __restrict average, const float* __restrict square,
                                    float* __restrict out, updates::Lamb::Direction direction) {
  const auto weight_decay = static_cast<float>(span.weight_decay);
  for (int64_t i = 0; i < span.count; ++i) {
    out[i] = direction(average[i], square[i], weight_decay, param[i]);
  }
}

template <typename Update>
void add_steps(OptimizerDef&) {}

template <>
void add_steps<updates::Lamb>(OptimizerDef& lamb) {
  lamb.direction = [](const OptimizerSettings& s, const OptimizerSpan<float>& span, float* out) {
    lamb_direction(span, span.param, span.state[0], span.state[1], out,
                   updates::Lamb::direction(s, span.step));
  };
  lamb.step_length = [](const OptimizerSettings&, const ParameterNorms& n) {
    return updates::Lamb::step_length(n.lr, n.param, n.direction);
  };
}

OFSDP_MULTIARCH void adafactor_direction(const float* __restrict grad,
                                         const float* __restrict variance, float* __restrict out,
                                         int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = updates::Adafactor::direction(grad[i], variance[i]);
}

template <>
void add_steps<updates::Adafactor>(OptimizerDef& adafactor) {
  adafactor.direction = [](const OptimizerSettings&, const OptimizerSpan<float>& span, float* out) {
    adafactor_direction(span.grad, span.state[0], out, span.count);
  };
  adafactor.step_length = [](const OptimizerSettings&, const ParameterNorms& n) {
    return updates::Adafactor::step_length(n);
  };
}

// Writes directions to `out`, which may be the gradient itself.
OFSDP_MULTIARCH void look_ahead(const float* grad, const float* average, float* out, int64_t n,
                                updates::Lerp lerp) {
  for (int64_t i = 0; i < n; ++i) out[i] = lerp(grad[i], average[i]);
}

template <>
void add_steps<updates::Muon>(OptimizerDef& muon) {
  muon.direction = [](const OptimizerSettings& s, const OptimizerSpan<float>& span, float* out) {
    if (s.momentum == 0) {
      std::copy_n(span.grad, span.grad == out ? 0 : span.count, out);
    } else {
      look_ahead(span.grad, span.state[0], out, span.count, updates::Muon::look_ahead(s));
    }
  };
  muon.step_length = [](const OptimizerSettings&, const ParameterNorms& n) {
    return n.lr * n.adjust;
  };
}

}  // namespace

std::vector<OptimizerDef> optimizer_list() {
  std::vector<OptimizerDef> list;
#define OPTIMIZER(name, Update, ...)                                                 \
  list.push_back(definition<updates::Update, count_of(OptimizerTraits{__VA_ARGS__}), \
                            has_momentum(OptimizerTraits{__VA_ARGS__})>(             \
      #name, OptimizerTraits{__VA_ARGS__}));                                         \
  add_steps<updates::Update>(list.back());
#include "kernels/optimizers/optimizers.inc"
  return list;
}

const OptimizerDef* find_optimizer(const std::string& name) {
  static const std::vector<OptimizerDef> list =
      optimizer_list();  // constant: definitions, no state
  for (const OptimizerDef& optimizer : list) {
    if (optimizer.name == name) return &optimizer;
  }
  return nullptr;
}

}  // namespace ofsdp::kernels
