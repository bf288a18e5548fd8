
#include "kernels/core/chain.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>

#include "kernels/base/status.h"

namespace ofsdp::kernels {
namespace {

struct OpText {
  const char* name;
  int arity;
};

// In ChainOp order.
constexpr std::array kOps = {
    OpText{"Number", 0},       OpText{"Round", 1},        OpText{"Add", 2},
    OpText{"Sub", 2},          OpText{"Mul", 2},          OpText{"Div", 2},
    OpText{"Neg", 1},          OpText{"Relu", 1},         OpText{"Sigmoid", 1},
    OpText{"Tanh", 1},         OpText{"Exp", 1},          OpText{"Log", 1},
    OpText{"Sqrt", 1},         OpText{"Reciprocal", 1},   OpText{"Erf", 1},
    OpText{"Softplus", 1},     OpText{"Gelu", 1},         OpText{"GeluTanh", 1},
    OpText{"ReluGrad", 2},     OpText{"SigmoidGrad", 2},  OpText{"TanhGrad", 2},
    OpText{"ErfGrad", 2},      OpText{"SoftplusGrad", 2}, OpText{"GeluGrad", 2},
    OpText{"GeluTanhGrad", 2},
};

std::string step_text(const ChainStep& s) {
  if (s.op == ChainOp::kNumber) return format_text("Number {}", s.number);
  const char* name = chain_op_name(s.op);
  return s.b < 0 ? format_text("{} {}", name, s.a) : format_text("{} {} {}", name, s.a, s.b);
}

Result<ChainStep> parse_step(const std::string& text, int values) {
  std::istringstream words(text);
  std::string name, number;
  words >> name;
  const auto found = std::ranges::find_if(kOps, [&](const OpText& op) { return name == op.name; });
  if (found == kOps.end()) return input_error("step '{}': no such operation", text);
  ChainStep s{static_cast<ChainOp>(found - kOps.begin())};
  if (s.op == ChainOp::kNumber) {
    words >> number;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), s.number);
    if (error != std::errc() || end != number.data() + number.size()) {
      return input_error("step '{}': expected a number", text);
    }
    return s;
  }
  if (found->arity > 0) words >> s.a;
  if (found->arity > 1) words >> s.b;
  const bool known = s.a >= 0 && s.a < values && s.b < values && (s.b >= 0) == (found->arity > 1);
  if (!words || !known) return input_error("step '{}': expected {} values", text, found->arity);
  return s;
}

// The gradient of `of` is `slope` applied to dy and the result, or to dy and the operand.
struct Slope {
  ChainOp of, slope;
  bool by_result;
};
constexpr Slope kSlopes[] = {{ChainOp::kSigmoid, ChainOp::kSigmoidGrad, true},
                             {ChainOp::kTanh, ChainOp::kTanhGrad, true},
                             {ChainOp::kExp, ChainOp::kMul, true},
                             {ChainOp::kLog, ChainOp::kDiv, false},
                             {ChainOp::kErf, ChainOp::kErfGrad, false},
                             {ChainOp::kSoftplus, ChainOp::kSoftplusGrad, false},
                             {ChainOp::kGelu, ChainOp::kGeluGrad, false},
                             {ChainOp::kGeluTanh, ChainOp::kGeluTanhGrad, false}};

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

  // Returns a forward value, recomputed unless it is at hand.
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
      case ChainOp::kRound:
        return d;
      case ChainOp::kNeg:
        return emit(ChainOp::kNeg, d);
      case ChainOp::kRelu:  // y > 0 exactly if x > 0
        return emit(ChainOp::kReluGrad, d, v == forward_.results[0] ? y_ : value(s.a));
      case ChainOp::kSqrt:
        return emit(ChainOp::kDiv, emit(ChainOp::kMul, d, number(0.5f)), value(v));
      case ChainOp::kReciprocal: {
        const int y = value(v);
        return emit(ChainOp::kNeg, emit(ChainOp::kMul, d, emit(ChainOp::kMul, y, y)));
      }
      default: {
        const auto* found = std::ranges::find(kSlopes, s.op, &Slope::of);
        OFSDP_CHECK(found != std::end(kSlopes), "no gradient of the chain step {}",
                    chain_op_name(s.op));
        return emit(found->slope, d, value(found->by_result ? v : s.a));
      }
    }
  }

  const Chain& forward_;
  const int dy_, y_;
  Chain made_;
  std::vector<bool> needed_;   // per forward value: it depends on an input with a wanted gradient
  std::map<int, int> slopes_;  // forward value -> gradient so far
  std::map<int, int> again_;   // forward value -> the input or step that has it
};

}  // namespace

const char* chain_op_name(ChainOp op) {
  const auto i = static_cast<size_t>(op);
  return i < kOps.size() ? kOps[i].name : nullptr;
}

int chain_op_arity(ChainOp op) { return kOps[static_cast<size_t>(op)].arity; }

int Chain::add(ChainStep step) {
  steps.push_back(step);
  return inputs + static_cast<int>(steps.size()) - 1;
}

void Chain::keep_costly() {
  constexpr std::array kCostly = {ChainOp::kSigmoid, ChainOp::kTanh,    ChainOp::kExp,
                                  ChainOp::kLog,     ChainOp::kErf,     ChainOp::kSoftplus,
                                  ChainOp::kGelu,    ChainOp::kGeluTanh};
  for (size_t s = 0; s < steps.size(); ++s) {
    const int value = inputs + static_cast<int>(s);
    const bool costly = std::ranges::find(kCostly, steps[s].op) != kCostly.end();
    if (costly && std::ranges::find(results, value) == results.end()) results.push_back(value);
  }
}

Attributes Chain::attributes() const {
  std::vector<std::string> texts;
  for (const ChainStep& step : steps) texts.push_back(step_text(step));
  return {{"steps", texts}, {"results", std::vector<int64_t>(results.begin(), results.end())}};
}

Result<Chain> Chain::parse(const Attributes& attributes, size_t inputs) {
  Chain made{static_cast<int>(inputs), {}, {}};
  for (const std::string& text : attributes.get("steps", std::vector<std::string>{})) {
    OFSDP_ASSIGN_OR_RETURN(const ChainStep step,
                           parse_step(text, made.inputs + static_cast<int>(made.steps.size())));
    made.steps.push_back(step);
  }
  const int values = made.inputs + static_cast<int>(made.steps.size());
  for (int64_t result : attributes.ints("results")) {
    if (result < made.inputs || result >= values) {
      return input_error("result {}: expected a step of {} to {}", result, made.inputs, values - 1);
    }
    made.results.push_back(static_cast<int>(result));
  }
  const bool sized = made.inputs <= kMaxInputs && made.steps.size() <= size_t{kMaxSteps};
  if (!sized || made.results.empty()) {
    return input_error("expected at most {} inputs, at most {} steps and a result", kMaxInputs,
                       int{kMaxSteps});
  }
  return made;
}

CompactedChain compacted(const Chain& chain) {
  const size_t values = static_cast<size_t>(chain.inputs) + chain.steps.size();
  std::vector<bool> needed(values, false);
  for (int r : chain.results) {
    if (r >= 0 && chain.is_step(r)) needed[static_cast<size_t>(r)] = true;
  }
  for (int v = static_cast<int>(values) - 1; v >= chain.inputs; --v) {
    if (!needed[static_cast<size_t>(v)]) continue;
    for (int operand : {chain.step(v).a, chain.step(v).b}) {
      if (operand >= 0) needed[static_cast<size_t>(operand)] = true;
    }
  }
  CompactedChain made;
  std::vector<int> renamed(values, -1);
  for (int v = 0; v < chain.inputs; ++v) {
    if (!needed[static_cast<size_t>(v)]) continue;
    renamed[static_cast<size_t>(v)] = made.chain.inputs++;
    made.used_inputs.push_back(v);
  }
  for (int v = chain.inputs; v < static_cast<int>(values); ++v) {
    if (!needed[static_cast<size_t>(v)]) continue;
    ChainStep step = chain.step(v);
    if (step.a >= 0) step.a = renamed[static_cast<size_t>(step.a)];
    if (step.b >= 0) step.b = renamed[static_cast<size_t>(step.b)];
    renamed[static_cast<size_t>(v)] = made.chain.add(step);
  }
  for (int r : chain.results) {
    if (r < 0 || !chain.is_step(r)) {
      made.outputs.push_back(r < 0 ? CompactedChain::kNone : -1 - r);
      continue;
    }
    const int value = renamed[static_cast<size_t>(r)];
    auto& results = made.chain.results;
    const auto at = std::ranges::find(results, value);
    made.outputs.push_back(static_cast<int>(at - results.begin()));
    if (at == results.end()) results.push_back(value);
  }
  return made;
}

bool is_trailing(const Shape& part, const Shape& shape) {
  int first = 0;
  while (first < part.rank() && part[first] == 1) ++first;
  const int rank = part.rank() - first;
  for (int i = 0; i < rank; ++i) {
    if (rank > shape.rank() || part[first + i] != shape[shape.rank() - rank + i]) return false;
  }
  return true;
}

Chain chain_gradient(const Chain& forward, const std::vector<bool>& wanted) {
  return Gradient(forward).run(wanted);
}

}  // namespace ofsdp::kernels
