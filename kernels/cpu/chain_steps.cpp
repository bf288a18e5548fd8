#include "kernels/cpu/chain_steps.h"

#include "kernels/base/status.h"
#include "kernels/cpu/real_math.h"
#include "kernels/formulas/activation.h"
#include "kernels/formulas/gelu.h"

namespace ofsdp::kernels {
namespace {

using M = FloatMath;

PointwiseLoops loops_of(ChainOp op) {
  switch (op) {
    case ChainOp::kNumber:
      break;
    case ChainOp::kAdd:
      return binary_loops<OFSDP_AB(a + b)>();
    case ChainOp::kSub:
      return binary_loops<OFSDP_AB(a - b)>();
    case ChainOp::kMul:
      return binary_loops<OFSDP_AB(a * b)>();
    case ChainOp::kDiv:
      return binary_loops<OFSDP_AB(a / b)>();
    case ChainOp::kNeg:
      return unary_loops<OFSDP_X(-x)>();
    case ChainOp::kRelu:
      return unary_loops<OFSDP_X(relu_of(x))>();
    case ChainOp::kSigmoid:
      return unary_loops<OFSDP_X(sigmoid_of<M>(x))>();
    case ChainOp::kTanh:
      return unary_loops<OFSDP_X(M::tanh(x))>();
    case ChainOp::kExp:
      return unary_loops<OFSDP_X(M::exp(x))>();
    case ChainOp::kLog:
      return unary_loops<OFSDP_X(M::log(x))>();
    case ChainOp::kSqrt:
      return unary_loops<OFSDP_X(M::sqrt(x))>();
    case ChainOp::kReciprocal:
      return unary_loops<OFSDP_X(decltype(x)(1) / x)>();
    case ChainOp::kErf:
      return unary_loops<OFSDP_X(M::erf(x))>();
    case ChainOp::kSoftplus:
      return unary_loops<OFSDP_X(softplus_of<M>(x))>();
    case ChainOp::kGelu:
      return unary_loops<OFSDP_X(gelu_of<M>(x))>();
    case ChainOp::kGeluTanh:
      return unary_loops<OFSDP_X(gelu_tanh_of<M>(x))>();
    case ChainOp::kReluGrad:
      return binary_loops<OFSDP_DX(relu_grad(d, x))>();
    case ChainOp::kSigmoidGrad:
      return binary_loops<OFSDP_DX(sigmoid_grad(d, x))>();
    case ChainOp::kTanhGrad:
      return binary_loops<OFSDP_DX(tanh_grad(d, x))>();
    case ChainOp::kErfGrad:
      return binary_loops<OFSDP_DX(erf_grad<M>(d, x))>();
    case ChainOp::kSoftplusGrad:
      return binary_loops<OFSDP_DX(softplus_grad<M>(d, x))>();
    case ChainOp::kGeluGrad:
      return binary_loops<OFSDP_DX(d * gelu_slope<M>(x))>();
    case ChainOp::kGeluTanhGrad:
      return binary_loops<OFSDP_DX(d * gelu_tanh_slope<M>(x))>();
  }
  OFSDP_CHECK(false, "no loop of a chain step");
}

}  // namespace

PointwiseLoops chain_loops(ChainOp op) { return loops_of(op); }

}  // namespace ofsdp::kernels
