// Elementwise optimizers. One thread per block computes the factors of the step in double, since
// only the device knows how many updates were skipped. --fmad=false keeps the CPU's roundings.
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/optimizers/parameter_updates.h"
#include "kernels/optimizers/updates.h"

namespace ofsdp::kernels::cuda {
namespace {

struct Assign : updates::ElementUpdate {
  struct Factors {};
  __device__ static Factors factors(const updates::UpdateNumbers&) { return {}; }
  __device__ static void step(updates::Element& e, float g, const Factors&) { e.param = g; }
};

// Writes Muon's direction in place of the parameter.
struct MuonDirection : updates::ElementUpdate {
  using Factors = updates::Lerp;
  __device__ static Factors factors(const updates::UpdateNumbers& n) {
    return updates::Muon::look_ahead(n.settings);
  }
  __device__ static void step(updates::Element& e, float g, const Factors& f) {
    e.param = f(g, e.state[0]);
  }
};

template <int V>
__device__ inline void load_state(const float* state, int64_t i, float* to) {
  if (state != nullptr) {
    load<V>(state + i, to);
  } else {
    unrolled<V>([&](int k) { to[k] = 0; });
  }
}

// Rounds as a separate conversion (arithmetic.cu).
template <int V>
__device__ inline void store_copy(const ofsdp_device_update& u, int64_t i, const float* values) {
  if (u.copy_dtype == static_cast<int32_t>(DType::kBFloat16)) {
    store<V>(static_cast<__nv_bfloat16*>(u.copy) + i, values);
  } else {
    store<V>(static_cast<__half*>(u.copy) + i, values);
  }
}

// Updates elements i .. i + V - 1.
template <typename Update, typename From, int V>
__device__ inline void update_pack(const ofsdp_device_update& u, int64_t i, float scale,
                                   const typename Update::Factors& factors) {
  float g[V], param[V] = {}, first[V], second[V];
  load_gradient<From, V>(u.gradient, i, g);
  if (Update::kMovesParam) load<V>(u.param + i, param);
  load_state<V>(u.states[0], i, first);
  load_state<V>(u.states[1], i, second);
  unrolled<V>([&](int k) {
    if (u.scaled != 0) g[k] = g[k] * scale;
    updates::Element e{param[k], {first[k], second[k]}};
    Update::step(e, g[k], factors);
    param[k] = e.param;
    first[k] = e.state[0];
    second[k] = e.state[1];
  });
  if (Update::kMovesParam) store<V>(u.param + i, param);
  if (Update::kMovesParam && u.copy != nullptr) store_copy<V>(u, i, param);
  if (u.states[0] != nullptr) store<V>(u.states[0] + i, first);
  if (u.states[1] != nullptr) store<V>(u.states[1] + i, second);
}

// A thread per pack or element; thread 0 of each block shares the step's factors.
template <typename Update, typename From>
__global__ void __launch_bounds__(256)
    update_kernel(SpanPacks span, ofsdp_device_update u, OptimizerSettings settings) {
  if (u.state->skip != 0 || u.state->stop != 0) return;
  __shared__ typename Update::Factors shared;
  if (threadIdx.x == 0) {
    const typename Update::Factors made =
        Update::factors({settings, u.numbers->lr, u.weight_decay, u.state->optimizer_step});
    shared = made;
  }
  __syncthreads();
  const typename Update::Factors f = shared;
  const float scale = u.state->gradient_factor;
  for_span(span, [&]<int V>(int64_t i) { update_pack<Update, From, V>(u, i, scale, f); });
}

template <typename Update>
cudaError_t update(const OptimizerSettings& settings, const ofsdp_device_update& u,
                   cudaStream_t stream) {
  const auto* const copy =
      static_cast<const __half*>(u.copy);  // 2 bytes per element, whatever the dtype
  return with_float(static_cast<DType>(u.gradient.dtype), [&]<typename From>(From) {
    const auto* const source = static_cast<const From*>(u.gradient.src);
    const SpanPacks span =
        split_span(u.count, source, u.gradient.onto, u.param, u.states[0], u.states[1], copy);
    return launch_over_span(span, stream, update_kernel<Update, From>, u, settings);
  });
}

struct Named {
  const char* name;
  DeviceUpdate update;
};
constexpr Named kUpdates[] = {
#define OPTIMIZER(name, Update, ...) {#name, update<updates::Update>},
#include "kernels/optimizers/optimizers.inc"
    {"assign", update<Assign>}, {"muon_direction", update<MuonDirection>}};

}  // namespace

DeviceUpdate find_update(const char* name) {
  for (const Named& known : kUpdates) {
    if (std::strcmp(known.name, name) == 0) return known.update;
  }
  return nullptr;
}

}  // namespace ofsdp::kernels::cuda
