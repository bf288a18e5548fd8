#include "kernels/cpu/chain_steps.h"

#include "kernels/base/status.h"
#include "kernels/cpu/gelu_formulas.h"
#include "kernels/cpu/real_math.h"

namespace ofsdp::kernels {
namespace {

#define OFSDP_CHAIN_LOOP(name, formula)                                                          \
  OFSDP_MULTIARCH void name(const BinaryRow<float>& row) {                                       \
    binary_row(row, []([[maybe_unused]] float a, [[maybe_unused]] float b) { return formula; }); \
  }

OFSDP_CHAIN_LOOP(add, a + b)
OFSDP_CHAIN_LOOP(sub, a - b)
OFSDP_CHAIN_LOOP(mul, a* b)
OFSDP_CHAIN_LOOP(div, a / b)
OFSDP_CHAIN_LOOP(neg, -a)
OFSDP_CHAIN_LOOP(relu, a < 0.0f ? 0.0f : a)
OFSDP_CHAIN_LOOP(sigmoid, math::sigmoid(a))
OFSDP_CHAIN_LOOP(tanh, math::tanh(a))
OFSDP_CHAIN_LOOP(exp, math::exp(a))
OFSDP_CHAIN_LOOP(log, math::log(a))
OFSDP_CHAIN_LOOP(sqrt, math::sqrt(a))
OFSDP_CHAIN_LOOP(reciprocal, 1.0f / a)
OFSDP_CHAIN_LOOP(erf, math::erf(a))
OFSDP_CHAIN_LOOP(softplus, (a < 0.0f ? 0.0f : a) + math::log1p(math::exp(-math::fabs(a))))
OFSDP_CHAIN_LOOP(gelu, ofsdp::kernels::gelu_erf(a))
OFSDP_CHAIN_LOOP(gelu_by_tanh, ofsdp::kernels::gelu_tanh(a))
OFSDP_CHAIN_LOOP(relu_grad, b > 0.0f ? a : 0.0f)
OFSDP_CHAIN_LOOP(sigmoid_grad, a* b*(1.0f - b))
OFSDP_CHAIN_LOOP(tanh_grad, a*(1.0f - b * b))
OFSDP_CHAIN_LOOP(erf_grad, a*(1.12837916709551257390f * math::exp(-b * b)))
OFSDP_CHAIN_LOOP(softplus_grad, a* math::sigmoid(b))
OFSDP_CHAIN_LOOP(gelu_grad, a* gelu_erf_slope(b))
OFSDP_CHAIN_LOOP(gelu_by_tanh_grad, a* gelu_tanh_slope(b))

#undef OFSDP_CHAIN_LOOP

}  // namespace

ChainLoop chain_loop(ChainOp op) {
  switch (op) {
    case ChainOp::kNumber:
      break;
    case ChainOp::kAdd:
      return add;
    case ChainOp::kSub:
      return sub;
    case ChainOp::kMul:
      return mul;
    case ChainOp::kDiv:
      return div;
    case ChainOp::kNeg:
      return neg;
    case ChainOp::kRelu:
      return relu;
    case ChainOp::kSigmoid:
      return sigmoid;
    case ChainOp::kTanh:
      return tanh;
    case ChainOp::kExp:
      return exp;
    case ChainOp::kLog:
      return log;
    case ChainOp::kSqrt:
      return sqrt;
    case ChainOp::kReciprocal:
      return reciprocal;
    case ChainOp::kErf:
      return erf;
    case ChainOp::kSoftplus:
      return softplus;
    case ChainOp::kGelu:
      return gelu;
    case ChainOp::kGeluTanh:
      return gelu_by_tanh;
    case ChainOp::kReluGrad:
      return relu_grad;
    case ChainOp::kSigmoidGrad:
      return sigmoid_grad;
    case ChainOp::kTanhGrad:
      return tanh_grad;
    case ChainOp::kErfGrad:
      return erf_grad;
    case ChainOp::kSoftplusGrad:
      return softplus_grad;
    case ChainOp::kGeluGrad:
      return gelu_grad;
    case ChainOp::kGeluTanhGrad:
      return gelu_by_tanh_grad;
  }
  OFSDP_CHECK(false, "no loop of a chain step");
}

}  // namespace ofsdp::kernels
