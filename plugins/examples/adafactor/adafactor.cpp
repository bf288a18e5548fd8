// --optimizer plugin:adafactor: Adafactor (Shazeer and Stern 2018, algorithms 4 to 6) as far as a
// shard lets it: the second moment is one state per element, not factored into rows and columns. It
// is sharded, so memory is no reason to, and sums over rows would need all ranks.
// With d = 1, eps2 = 1e-3:
//
//   beta2(t) = 1 - t^-0.8;   v = beta2(t) v + (1 - beta2(t)) (g^2 + eps);   u = g / sqrt(v)
//   p -= lr max(eps2, rms(p)) / max(1, rms(u) / d) u        both rms over the whole parameter
//
// `update` advances v and keeps u, which is the direction; `step_length` has the two norms. Weight
// decay comes first, decoupled: p -= lr weight_decay p. --eps is eps1 (the paper's: 1e-30).
// https://arxiv.org/abs/1804.04235
#include <ofsdp_plugin.h>

#include <algorithm>
#include <cmath>

namespace {

constexpr double kDecay = 0.8, kMinScale = 1e-3, kClip = 1;

void update(const ofsdp_host*, const ofsdp_update* u) {
  float* v = u->state[0];
  float* kept = u->state[1];
  const double beta2 = 1 - std::pow(static_cast<double>(u->step), -kDecay);
  const float keep = static_cast<float>(1 - u->lr * u->weight_decay);
  const float beta = static_cast<float>(beta2), rest = static_cast<float>(1 - beta2);
  const float eps = static_cast<float>(u->eps);
  for (int64_t i = 0; i < u->count; ++i) {
    const float g = u->grad[i];
    u->param[i] *= keep;
    v[i] = v[i] * beta + (g * g + eps) * rest;
    kept[i] = v[i] > 0 ? g / std::sqrt(v[i]) : 0.0f;
  }
}

void direction(const ofsdp_host*, const ofsdp_update* u, float* out) {
  std::copy(u->state[1], u->state[1] + u->count, out);
}

double step_length(const ofsdp_host*, const ofsdp_update* whole, double param_norm,
                   double direction_norm) {
  const double root = std::sqrt(static_cast<double>(whole->count));
  const double scale = std::max(kMinScale, param_norm / root);
  return whole->lr * scale / std::max(1.0, direction_norm / root / kClip);
}

const char* const kStates[] = {"exp_avg_sq", "direction"};
const ofsdp_optimizer kAdafactor = {
    sizeof(ofsdp_optimizer), "adafactor", kStates, 2, update, direction, step_length};
const ofsdp_optimizer* const kOptimizers[] = {&kAdafactor};
const ofsdp_plugin kPlugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "adafactor", "1.0", nullptr, 0, kOptimizers, 1};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
