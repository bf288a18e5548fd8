#include "kernels/core/chain.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "kernels/base/status.h"

namespace ofsdp::kernels {
namespace {

struct OpText {
  const char* name;
  int arity;
};

// In the order of ChainOp.
constexpr std::array kOps = {
    OpText{"Number", 0},       OpText{"Add", 2},      OpText{"Sub", 2},
    OpText{"Mul", 2},          OpText{"Div", 2},      OpText{"Neg", 1},
    OpText{"Relu", 1},         OpText{"Sigmoid", 1},  OpText{"Tanh", 1},
    OpText{"Exp", 1},          OpText{"Log", 1},      OpText{"Sqrt", 1},
    OpText{"Reciprocal", 1},   OpText{"Erf", 1},      OpText{"Softplus", 1},
    OpText{"Gelu", 1},         OpText{"GeluTanh", 1}, OpText{"ReluGrad", 2},
    OpText{"SigmoidGrad", 2},  OpText{"TanhGrad", 2}, OpText{"ErfGrad", 2},
    OpText{"SoftplusGrad", 2}, OpText{"GeluGrad", 2}, OpText{"GeluTanhGrad", 2},
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
  const bool sized = made.inputs <= kMostInputs && made.steps.size() <= size_t{kMostSteps};
  if (!sized || made.results.empty()) {
    return input_error("expected at most {} inputs, at most {} steps and a result", kMostInputs,
                       int{kMostSteps});
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

}  // namespace ofsdp::kernels
