// Adam, Adagrad and Momentum of ai.onnx.preview.training: kernels/cuda/training/training.h.
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/training/training.h"
#include "kernels/ops/training/training_update.h"

namespace ofsdp::kernels::cuda {
namespace {

bool accepts(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32) return false;
  for (size_t i = 2; i < p.inputs.size(); ++i) {
    if (p.in(i).dtype != DType::kFloat32 || p.in(i).layout != Layout::kPlain) return false;
  }
  return true;
}

// Tensors, their gradients, then each kind of state, tensor after tensor; outputs likewise without
// the gradients.
template <Training kind>
std::unique_ptr<CudaKernel> create(ofsdp_device&, const Problem& p) {
  constexpr size_t kStates = kind == Training::kAdam ? 2 : 1;
  const size_t tensors = (p.inputs.size() - 2) / (kStates + 2);
  std::vector<int64_t> counts;
  for (size_t k = 0; k < tensors; ++k) counts.push_back(p.in(2 + k).numel());
  return make_cuda_kernel([attributes = ops::training_attributes(p.attributes), counts](
                              cudaStream_t stream, const ofsdp_launch& l) {
    const size_t n = counts.size();
    const auto in = [&](size_t i) { return static_cast<const float*>(l.inputs[2 + i]); };
    const auto out = [&](size_t i) { return static_cast<float*>(l.outputs[i]); };
    for (size_t k = 0; k < n; ++k) {
      TrainingTensors t{in(k), in(n + k), {in(2 * n + k)}, out(k), {out(n + k)}, counts[k]};
      if (kStates == 2) t.states[1] = in(3 * n + k), t.new_states[1] = out(2 * n + k);
      const cudaError_t error =
          training_update(kind, attributes, static_cast<const float*>(l.inputs[0]),
                          static_cast<const int64_t*>(l.inputs[1]), t, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

}  // namespace

void add_training(CudaImplementations& list) {
  const std::string domain = std::string(ops::kTrainingDomain) + ".";
  list.push_back({domain + "Adam", "own", accepts, create<Training::kAdam>});
  list.push_back({domain + "Adagrad", "own", accepts, create<Training::kAdagrad>});
  list.push_back({domain + "Momentum", "own", accepts, create<Training::kMomentum>});
}

}  // namespace ofsdp::kernels::cuda
