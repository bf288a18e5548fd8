// One thread per block computes the factors that depend on the step, in double: only the device
// knows how many updates were skipped. --fmad=false keeps the CPU's roundings.
#include <cstring>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/optimizers/updates.h"

namespace ofsdp::kernels::cuda {
namespace {

struct Assign : updates::ElementUpdate {
  struct Factors {};
  __device__ static Factors factors(const updates::UpdateNumbers&) { return {}; }
  __device__ static void step(updates::Element& e, float g, const Factors&) { e.param = g; }
};

template <typename Update, typename From>
__global__ void __launch_bounds__(256)
    update_kernel(ofsdp_device_update u, OptimizerSettings settings) {
  if (u.state->skip != 0 || u.state->stop != 0) return;
  __shared__ typename Update::Factors shared;
  if (threadIdx.x == 0) {
    shared = Update::factors({settings, u.numbers->lr, u.weight_decay, u.state->optimizer_step});
  }
  __syncthreads();
  const typename Update::Factors f = shared;
  const float scale = u.state->gradient_factor;
  float* const* states = u.states;
  OFSDP_CUDA_LOOP(i, u.count) {
    float g = gradient_at<From>(u.gradient, i);
    if (u.scaled != 0) g = g * scale;
    updates::Element e{
        Update::kMovesParam ? u.param[i] : 0,
        {states[0] == nullptr ? 0 : states[0][i], states[1] == nullptr ? 0 : states[1][i]}};
    Update::step(e, g, f);
    if (Update::kMovesParam) u.param[i] = e.param;
    if (states[0] != nullptr) states[0][i] = e.state[0];
    if (states[1] != nullptr) states[1][i] = e.state[1];
  }
}

template <typename Update>
cudaError_t update(const OptimizerSettings& settings, const ofsdp_device_update& u,
                   cudaStream_t stream) {
  return with_float(static_cast<DType>(u.gradient.dtype), [&]<typename From>(From) {
    return strided_launch(u.count, stream, update_kernel<Update, From>, u, settings);
  });
}

struct Named {
  const char* name;
  DeviceUpdate update;
};
constexpr Named kUpdates[] = {
#define OPTIMIZER(name, Update, ...) {#name, update<updates::Update>},
#include "kernels/optimizers/optimizers.inc"
    {"assign", update<Assign>}};

}  // namespace

DeviceUpdate find_update(const char* name) {
  for (const Named& known : kUpdates) {
    if (std::strcmp(known.name, name) == 0) return known.update;
  }
  return nullptr;
}

}  // namespace ofsdp::kernels::cuda
