// Adam, Adagrad and Momentum of ai.onnx.preview.training (training.h).
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/training/training.h"
#include "kernels/ops/training/training_update.h"

namespace ofsdp::kernels::cuda {
namespace {

Acceptance accepts(const Problem& p) {
  const auto simple = [](const TensorDesc& in) {
    return in.dtype == DType::kFloat32 && in.layout == Layout::kPlain;
  };
  return accept_if(
      p.in(0).dtype == DType::kFloat32 && std::all_of(p.inputs.begin() + 2, p.inputs.end(), simple),
      "an operand is not float32 in the plain layout");
}

// Inputs: rate, count, tensors, gradients, then each kind of state, tensor by tensor. Outputs: new
// tensors and states.
template <Training kind>
std::unique_ptr<CudaKernel> create(DeviceState&, const Problem& p) {
  constexpr size_t kStates = kind == Training::kAdam ? 2 : 1;
  const size_t tensors = (p.inputs.size() - 2) / (kStates + 2);
  std::vector<int64_t> counts;
  for (size_t k = 0; k < tensors; ++k) counts.push_back(p.in(2 + k).numel());
  return make_cuda_kernel([attributes = ops::training_attributes(p.attributes), counts](
                              cudaStream_t stream, const Launch& l) {
    const size_t n = counts.size();
    const auto in = [&](size_t i) { return l.in<float>(2 + i); };
    const auto out = [&](size_t i) { return l.out<float>(i); };
    for (size_t k = 0; k < n; ++k) {
      TrainingTensors t{in(k), in(n + k), {in(2 * n + k)}, out(k), {out(n + k)}, counts[k]};
      if (kStates == 2) t.states[1] = in(3 * n + k), t.new_states[1] = out(2 * n + k);
      OFSDP_CUDA_TRY(
          training_update(kind, attributes, l.in<float>(0), l.in<int64_t>(1), t, stream));
    }
    return cudaSuccess;
  });
}

}  // namespace

void add_training(CudaImplementations& list) {
  const std::string domain = std::string(ops::kTrainingDomain) + ".";
  list.insert(list.end(), {{domain + "Adam", "own", accepts, create<Training::kAdam>},
                           {domain + "Adagrad", "own", accepts, create<Training::kAdagrad>},
                           {domain + "Momentum", "own", accepts, create<Training::kMomentum>}});
}

}  // namespace ofsdp::kernels::cuda
