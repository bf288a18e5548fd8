// The operations of a chain (kernels/core/chain.h). A header of its own, since CUDA sources include
// it.
#pragma once

#include <cstdint>

namespace ofsdp::kernels {

enum class ChainOp : uint8_t {
  kNumber,
  kRound,  // to the element type, as a result is rounded that one node stores and another reads
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
  // (gradient, y) for Relu, Sigmoid and Tanh, else (gradient, x)
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
