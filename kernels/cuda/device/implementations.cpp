#include "kernels/cuda/device/implementations.h"

#include <algorithm>

namespace ofsdp::kernels::cuda {
namespace {

bool writes_nothing(const Problem& p) {
  return std::ranges::all_of(
      p.outputs, [](const TensorDesc& out) { return !out.present() || out.numel() == 0; });
}

}  // namespace

const CudaImplementations& implementations() {
  static const CudaImplementations all = [] {
    CudaImplementations list;
    for (const auto add :
         {add_cudnn,        add_products,  add_pointwise,  add_chains,  add_movement,
          add_reductions,   add_norms,     add_batch_norm, add_softmax, add_losses,
          add_dropout,      add_gathers,   add_attention,  add_rotary,  add_pools,
          add_convolutions, add_scatters,  add_triangles,  add_top_k,   add_group_norm,
          add_axis_maps,    add_recurrent, add_folds,      add_einsum,  add_conv_transpose,
          add_random,       add_found,     add_sequences,  add_unpools, add_lp_pools,
          add_training}) {
      add(list);
    }
    return list;
  }();
  return all;
}

std::unique_ptr<CudaKernel> make_operator(ofsdp_device& device, const std::string& op,
                                          const Problem& problem) {
  for (const CudaImplementation& implementation : implementations()) {
    if (implementation.op != op) continue;
    if (writes_nothing(problem)) {
      return make_cuda_kernel([](cudaStream_t, const ofsdp_launch&) { return cudaSuccess; });
    }
    if (!implementation.accepts(problem)) continue;
    auto kernel = implementation.create(device, problem);
    if (kernel != nullptr) return kernel;
  }
  return nullptr;
}

}  // namespace ofsdp::kernels::cuda
