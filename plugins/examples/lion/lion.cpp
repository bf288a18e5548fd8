// --optimizer plugin:lion: one state tensor, elementwise, so any part of a shard can be updated
// alone. With g the gradient and m the state:
//
//   p -= lr weight_decay p;   p -= lr sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
//
// https://arxiv.org/abs/2302.06675
#include <ofsdp_plugin.h>

namespace {

float sign(float x) { return x > 0 ? 1.0f : (x < 0 ? -1.0f : 0.0f); }

void update(const ofsdp_host*, const ofsdp_update* u) {
  float* m = u->state[0];
  const float lr = static_cast<float>(u->lr);
  const float keep = static_cast<float>(1 - u->lr * u->weight_decay);
  const float beta1 = static_cast<float>(u->beta1), rest1 = static_cast<float>(1 - u->beta1);
  const float beta2 = static_cast<float>(u->beta2), rest2 = static_cast<float>(1 - u->beta2);
  for (int64_t i = 0; i < u->count; ++i) {
    const float g = u->grad[i];
    u->param[i] = u->param[i] * keep - lr * sign(m[i] * beta1 + g * rest1);
    m[i] = m[i] * beta2 + g * rest2;
  }
}

const char* const kStates[] = {"exp_avg"};
const ofsdp_optimizer kLion = {
    sizeof(ofsdp_optimizer), "lion", kStates, 1, update, nullptr, nullptr};
const ofsdp_optimizer* const kOptimizers[] = {&kLion};
const ofsdp_plugin kPlugin = {
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "lion", "1.0", nullptr, 0, kOptimizers, 1};

}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) { return &kPlugin; }
