// Elementwise optimizers. One thread per block computes the factors of the step in double, since
// only the device knows how many updates were skipped. --fmad=false keeps the CPU's roundings.
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/training/stored_states.cuh"
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
        Update::factors({settings, updates::rate_of(*u.numbers, u.base_lr), u.weight_decay,
                         u.state->optimizer_step});
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

// --- states in fewer bits (kernels/core/stored_state.h) ---

struct LargestInt {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

// All threads of a block call; `active`: the thread has an element.
__device__ inline void encode_state(const StoredState& s, int64_t i, bool active, float value,
                                    uint32_t random, int32_t* spare) {
  if (s.form == StateForm::kFloat32) {
    if (active) reinterpret_cast<float*>(s.elements)[i] = value;
  } else if (s.form == StateForm::kBFloat16) {
    if (active) reinterpret_cast<uint16_t*>(s.elements)[i] = rounded_bits(value, random & 0xffff);
  } else {
    const auto bits = static_cast<int32_t>(active ? __float_as_uint(value) : 0);
    const int32_t most = group_reduce<kStateBlock>(bits & 0x7fffffff, LargestInt{}, spare);
    const int32_t positive = group_reduce<kStateBlock>(bits > 0 ? bits : 0, LargestInt{}, spare);
    const float scale = largest_scale(most, positive);
    if (threadIdx.x == 0) s.scales[i / kStateBlock] = scale;
    const float x = value * (scale == 0 ? 0 : 1 / scale);
    const uint8_t code = s.form == StateForm::kSigned8 ? code_of<true>(signed_book, x)
                                                       : code_of<false>(unsigned_book, x);
    if (active) s.elements[i] = static_cast<std::byte>(code);
  }
}

// A thread block per kStateBlock elements, which share a scale; a thread per element.
template <typename Update, typename From>
__global__ void __launch_bounds__(kStateBlock)
    encoded_kernel(ofsdp_device_update u, EncodedStates states, OptimizerSettings settings) {
  if (u.state->skip != 0 || u.state->stop != 0) return;
  __shared__ typename Update::Factors shared;
  __shared__ PhiloxKey key;
  __shared__ int32_t spare[kStateBlock / kWarp];
  if (threadIdx.x == 0) {
    const typename Update::Factors made =
        Update::factors({settings, updates::rate_of(*u.numbers, u.base_lr), u.weight_decay,
                         u.state->optimizer_step});
    shared = made;
    key = philox_key(states.seed, static_cast<uint64_t>(states.parameter), u.state->optimizer_step);
  }
  __syncthreads();
  const int64_t i = int64_t{blockIdx.x} * kStateBlock + threadIdx.x;
  const bool active = i < u.count;
  updates::Element e{};
  if (active) {
    float g = 0;
    load_gradient<From, 1>(u.gradient, i, &g);
    if (u.scaled != 0) g = g * u.state->gradient_factor;
    e.param = u.param[i];
    for (int k = 0; k < 2; ++k) {
      if (states.states[k].elements != nullptr) e.state[k] = decoded(states.states[k], i);
    }
    Update::step(e, g, shared);
    if constexpr (Update::kMovesParam) {
      u.param[i] = e.param;
      if (u.copy != nullptr) store_copy<1>(u, i, &e.param);
    }
  }
  __syncthreads();  // all have read the block's scales
  const uint32_t random = rounding_bits(static_cast<uint32_t>(states.first + i), key);
  for (int k = 0; k < 2; ++k) {
    if (states.states[k].elements == nullptr) continue;
    encode_state(states.states[k], i, active, e.state[k], k == 0 ? random : random >> 16, spare);
  }
}

template <typename Update>
cudaError_t update_encoded(const OptimizerSettings& settings, const ofsdp_device_update& u,
                           const EncodedStates& states, cudaStream_t stream) {
  return with_float(static_cast<DType>(u.gradient.dtype), [&]<typename From>(From) {
    return launch_blocks(stream, blocks_for(u.count, kStateBlock), kStateBlock,
                         encoded_kernel<Update, From>, u, states, settings);
  });
}

// --- averages ---

// A thread per element.
OFSDP_CUDA_KERNEL average_kernel(AverageStep a, updates::Lerp lerp) {
  OFSDP_CUDA_ITEM(i, a.count);
  if (a.state->skip != 0 || a.state->stop != 0) return;
  const bool first = a.state->optimizer_step == a.first;
  a.average[i] = first ? a.param[i] : lerp(a.average[i], a.param[i]);
}

// A thread per element.
OFSDP_CUDA_KERNEL swap_kernel(float* a, float* b, int64_t n) {
  OFSDP_CUDA_ITEM(i, n);
  const float value = a[i];
  a[i] = b[i];
  b[i] = value;
}

// Adafactor's states are sums of rows and columns, which stay in float32.
template <typename Update>
constexpr EncodedUpdate encoded_update() {
  if constexpr (!std::is_same_v<Update, updates::Adafactor>) return update_encoded<Update>;
  return nullptr;
}

struct Named {
  const char* name;
  DeviceUpdate update;
  EncodedUpdate encoded;
};
constexpr Named kUpdates[] = {
#define OPTIMIZER(name, Update, ...) \
  {#name, update<updates::Update>, encoded_update<updates::Update>()},
#include "kernels/optimizers/optimizers.inc"
    {"assign", update<Assign>, nullptr},
    {"muon_direction", update<MuonDirection>, update_encoded<MuonDirection>}};

}  // namespace

DeviceUpdate find_update(const char* name) {
  for (const Named& known : kUpdates) {
    if (std::strcmp(known.name, name) == 0) return known.update;
  }
  return nullptr;
}

EncodedUpdate find_encoded_update(const char* name) {
  for (const Named& known : kUpdates) {
    if (std::strcmp(known.name, name) == 0) return known.encoded;
  }
  return nullptr;
}

cudaError_t follow_average(const AverageStep& step, cudaStream_t stream) {
  return over(step.count, stream, average_kernel, step, updates::Lerp::of(1 - step.decay));
}

cudaError_t swap_arrays(float* a, float* b, int64_t n, cudaStream_t stream) {
  return over(n, stream, swap_kernel, a, b, n);
}

}  // namespace ofsdp::kernels::cuda
