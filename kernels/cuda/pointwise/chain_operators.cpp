// ofsdp.Chain and ofsdp.ChainGrad: compiled by NVRTC if possible, else interpreted (chain.h).
#include <algorithm>

#include "kernels/core/chain.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/pointwise/chain.h"

namespace ofsdp::kernels::cuda {
namespace {

static_assert(Chain::kMaxInputs <= kMaxChainInputs && Chain::kMaxSteps <= kMaxChainSteps);

// Returns whether `in` is a scalar, has the output's shape and layout, or (plain layout) the
// output's trailing axes.
bool fits(const TensorDesc& in, const TensorDesc& out) {
  if (in.numel() == 1 || (in.shape == out.shape && in.layout == out.layout)) return true;
  return in.layout == Layout::kPlain && out.layout == Layout::kPlain &&
         is_trailing(in.shape, out.shape);
}

Acceptance accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const auto out = std::ranges::find_if(p.outputs, &TensorDesc::present);
  const bool some_out = out != p.outputs.end();
  const auto fits_out = [&](const TensorDesc& in) { return fits(in, *out); };
  return accept(
      {floats(dtype),
       alike(p.all_dtype(dtype)),
       {some_out && p.outputs.size() <= size_t{kMaxChainResults}, "it has too many results"},
       {some_out && std::ranges::all_of(p.inputs, fits_out),
        "an operand is repeated other than along leading axes"}});
}

std::unique_ptr<CudaKernel> create(DeviceState& device, const Problem& p) {
  const ChainProgram program = chain_program(p);
  std::vector<bool> wanted;
  for (size_t i = 0; i < p.outputs.size(); ++i) wanted.push_back(p.has_out(i));
  const CompiledChain compiled = compile_chain(device, program, wanted);
  return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) {
    void* y[kMaxChainResults] = {};
    for (size_t i = 0; i < wanted.size(); ++i) y[i] = l.out(i);
    return compiled ? compiled(l.inputs.data(), y, stream)
                    : chain(program, l.inputs.data(), y, stream);
  });
}

}  // namespace

void add_chains(CudaImplementations& list) {
  list.insert(list.end(), {{"ofsdp.Chain", "own", accepts, create},
                           {"ofsdp.ChainGrad", "own", accepts, create}});
}

}  // namespace ofsdp::kernels::cuda
