#include "kernels/cpu/chain_steps.h"

#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/formulas/gelu.h"

namespace ofsdp::kernels {
namespace {

// In the order of ChainOp.
std::array<PointwiseLoops, kChainOps> all_loops() {
  return {{{},  // kNumber
           binary_loops<OFSDP_AB(a + b)>(),
           binary_loops<OFSDP_AB(a - b)>(),
           binary_loops<OFSDP_AB(a * b)>(),
           binary_loops<OFSDP_AB(a / b)>(),
           unary_loops<OFSDP_X(-x)>(),
           unary_loops<OFSDP_X(relu_of(x))>(),
           unary_loops<OFSDP_X(sigmoid_of<M>(x))>(),
           unary_loops<OFSDP_X(M::tanh(x))>(),
           unary_loops<OFSDP_X(M::exp(x))>(),
           unary_loops<OFSDP_X(M::log(x))>(),
           unary_loops<OFSDP_X(M::sqrt(x))>(),
           unary_loops<OFSDP_X(decltype(x)(1) / x)>(),
           unary_loops<OFSDP_X(M::erf(x))>(),
           unary_loops<OFSDP_X(softplus_of<M>(x))>(),
           unary_loops<OFSDP_X(gelu_of<M>(x))>(),
           unary_loops<OFSDP_X(gelu_tanh_of<M>(x))>(),
           binary_loops<OFSDP_DX(relu_grad(d, x))>(),
           binary_loops<OFSDP_DX(sigmoid_grad(d, x))>(),
           binary_loops<OFSDP_DX(tanh_grad(d, x))>(),
           binary_loops<OFSDP_DX(erf_grad<M>(d, x))>(),
           binary_loops<OFSDP_DX(softplus_grad<M>(d, x))>(),
           binary_loops<OFSDP_DX(d * M::gelu_slope(x))>(),
           binary_loops<OFSDP_DX(d * gelu_tanh_slope<M>(x))>()}};
}

}  // namespace

PointwiseLoops chain_loops(ChainOp op) { return all_loops()[static_cast<size_t>(op)]; }

}  // namespace ofsdp::kernels
