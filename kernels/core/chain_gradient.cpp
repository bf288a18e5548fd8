#include <map>

#include "kernels/base/status.h"
#include "kernels/core/chain.h"

namespace ofsdp::kernels {
namespace {

class Gradient {
 public:
  explicit Gradient(const Chain& forward)
      : forward_(forward), dy_(forward.inputs), y_(forward.inputs + 1) {
    made_.inputs = forward.inputs + 1 + static_cast<int>(forward.results.size());
    for (size_t k = 0; k < forward.results.size(); ++k) {
      again_[forward.results[k]] = y_ + static_cast<int>(k);
    }
  }

  Chain run(const std::vector<bool>& wanted) {
    needed_.assign(static_cast<size_t>(forward_.inputs), false);
    for (size_t i = 0; i < wanted.size(); ++i) needed_[i] = wanted[i];
    for (const ChainStep& s : forward_.steps) needed_.push_back(needs(s.a) || needs(s.b));
    slopes_[forward_.results[0]] = dy_;
    for (int v = forward_.results[0]; v >= forward_.inputs; --v) {
      if (slopes_.contains(v)) step_back(v);
    }
    for (int i = 0; i < forward_.inputs; ++i) {
      const bool reached = needs(i) && slopes_.contains(i);
      made_.results.push_back(reached ? slopes_[i] : -1);
    }
    return std::move(made_);
  }

 private:
  bool needs(int value) const { return value >= 0 && needed_[static_cast<size_t>(value)]; }

  int emit(ChainOp op, int a, int b = -1) { return made_.add({op, a, b}); }
  int number(float value) { return made_.add({ChainOp::kNumber, -1, -1, value}); }

  // A value of the forward, computed again unless it is at hand.
  int value(int v) {
    if (v < forward_.inputs) return v;
    if (const auto it = again_.find(v); it != again_.end()) return it->second;
    ChainStep step = forward_.step(v);
    if (step.a >= 0) step.a = value(step.a);
    if (step.b >= 0) step.b = value(step.b);
    return again_[v] = made_.add(step);
  }

  void give(int v, int slope) {
    const auto [it, fresh] = slopes_.try_emplace(v, slope);
    if (!fresh) it->second = emit(ChainOp::kAdd, it->second, slope);
  }

  void step_back(int v) {
    const ChainStep& s = forward_.step(v);
    const int d = slopes_[v];
    if (chain_op_arity(s.op) == 2) return binary(v, s, d);
    if (needs(s.a)) give(s.a, unary(v, s, d));
  }

  void binary(int v, const ChainStep& s, int d) {
    switch (s.op) {
      case ChainOp::kAdd:
      case ChainOp::kSub:
        if (needs(s.a)) give(s.a, d);
        if (needs(s.b)) give(s.b, s.op == ChainOp::kAdd ? d : emit(ChainOp::kNeg, d));
        return;
      case ChainOp::kMul:
        if (needs(s.a)) give(s.a, emit(ChainOp::kMul, d, value(s.b)));
        if (needs(s.b)) give(s.b, emit(ChainOp::kMul, d, value(s.a)));
        return;
      case ChainOp::kDiv: {
        const int scaled = emit(ChainOp::kDiv, d, value(s.b));
        if (needs(s.a)) give(s.a, scaled);
        if (needs(s.b)) give(s.b, emit(ChainOp::kNeg, emit(ChainOp::kMul, scaled, value(v))));
        return;
      }
      default:
        OFSDP_CHECK(false, "no gradient of the chain step {}", chain_op_name(s.op));
    }
  }

  int unary(int v, const ChainStep& s, int d) {
    switch (s.op) {
      case ChainOp::kNeg:
        return emit(ChainOp::kNeg, d);
      case ChainOp::kRelu:  // positive where its operand is
        return emit(ChainOp::kReluGrad, d, v == forward_.results[0] ? y_ : value(s.a));
      case ChainOp::kSigmoid:
        return emit(ChainOp::kSigmoidGrad, d, value(v));
      case ChainOp::kTanh:
        return emit(ChainOp::kTanhGrad, d, value(v));
      case ChainOp::kExp:
        return emit(ChainOp::kMul, d, value(v));
      case ChainOp::kLog:
        return emit(ChainOp::kDiv, d, value(s.a));
      case ChainOp::kSqrt:
        return emit(ChainOp::kDiv, emit(ChainOp::kMul, d, number(0.5f)), value(v));
      case ChainOp::kReciprocal: {
        const int y = value(v);
        return emit(ChainOp::kNeg, emit(ChainOp::kMul, d, emit(ChainOp::kMul, y, y)));
      }
      case ChainOp::kErf:
        return emit(ChainOp::kErfGrad, d, value(s.a));
      case ChainOp::kSoftplus:
        return emit(ChainOp::kSoftplusGrad, d, value(s.a));
      case ChainOp::kGelu:
        return emit(ChainOp::kGeluGrad, d, value(s.a));
      case ChainOp::kGeluTanh:
        return emit(ChainOp::kGeluTanhGrad, d, value(s.a));
      default:
        OFSDP_CHECK(false, "no gradient of the chain step {}", chain_op_name(s.op));
    }
  }

  const Chain& forward_;
  const int dy_, y_;
  Chain made_;
  std::vector<bool> needed_;   // per value of the forward
  std::map<int, int> slopes_;  // value of the forward -> its gradient so far
  std::map<int, int> again_;   // value of the forward -> the input or step that has it
};

}  // namespace

Chain chain_gradient(const Chain& forward, const std::vector<bool>& wanted) {
  return Gradient(forward).run(wanted);
}

}  // namespace ofsdp::kernels
