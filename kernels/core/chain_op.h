// The operations of a Chain (kernels/core/chain.h), alone: for device code too.
#pragma once

#include <cstdint>

namespace ofsdp::kernels {

enum class ChainOp : uint8_t {
  kNumber,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kNeg,
  kRelu,
  kSigmoid,
  kTanh,
  kExp,
  kLog,
  kSqrt,
  kReciprocal,
  kErf,
  kSoftplus,
  kGelu,
  kGeluTanh,
  // of a gradient and the result (Relu, Sigmoid, Tanh) or the operand of the operation
  kReluGrad,
  kSigmoidGrad,
  kTanhGrad,
  kErfGrad,
  kSoftplusGrad,
  kGeluGrad,
  kGeluTanhGrad,
};
inline constexpr int kChainOps = static_cast<int>(ChainOp::kGeluTanhGrad) + 1;

}  // namespace ofsdp::kernels
