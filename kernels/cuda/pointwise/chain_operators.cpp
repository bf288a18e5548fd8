// ofsdp.Chain and ofsdp.ChainGrad: compiled (compiled_chain.h), else interpreted
// (kernels/cuda/pointwise/chain.h).
#include <algorithm>

#include "kernels/core/chain.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/chain_source.h"
#include "kernels/cuda/pointwise/compiled_chain.h"

namespace ofsdp::kernels::cuda {
namespace {

static_assert(Chain::kMostInputs <= kMostChainInputs && Chain::kMostSteps <= kMostChainSteps);

// Of the output's shape and layout, one element, or (plain) its trailing axes.
bool fits(const TensorDesc& in, const TensorDesc& out) {
  if (in.numel() == 1 || (in.shape == out.shape && in.layout == out.layout)) return true;
  return in.layout == Layout::kPlain && out.layout == Layout::kPlain &&
         is_trailing(in.shape, out.shape);
}

bool accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const auto out = std::ranges::find_if(p.outputs, &TensorDesc::present);
  return is_float(dtype) && p.all_dtype(dtype) && out != p.outputs.end() &&
         p.outputs.size() <= size_t{kMostChainResults} &&
         std::ranges::all_of(p.inputs, [&](const TensorDesc& in) { return fits(in, *out); });
}

std::unique_ptr<CudaKernel> create(ofsdp_device& device, const Problem& p) {
  const ChainProgram program = chain_program(p);
  std::vector<bool> wanted;
  for (size_t i = 0; i < p.outputs.size(); ++i) wanted.push_back(p.has_out(i));
  const std::shared_ptr<CompiledChain> compiled = compile_chain(device, program, wanted);
  return make_cuda_kernel([=](cudaStream_t stream, const ofsdp_launch& l) {
    void* y[kMostChainResults] = {};
    for (size_t i = 0; i < wanted.size(); ++i) y[i] = wanted[i] ? l.outputs[i] : nullptr;
    return compiled != nullptr ? compiled->run(l.inputs, y, stream)
                               : chain(program, l.inputs, y, stream);
  });
}

}  // namespace

void add_chains(CudaImplementations& list) {
  list.push_back({"ofsdp.Chain", "own", accepts, create});
  list.push_back({"ofsdp.ChainGrad", "own", accepts, create});
}

}  // namespace ofsdp::kernels::cuda
