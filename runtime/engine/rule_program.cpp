#include "runtime/engine/rule_program.h"

#include <algorithm>
#include <map>

namespace ofsdp::runtime {
namespace {

class RulePlanner {
 public:
  RulePlanner(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels)
      : graph_(updates.graph),
        rule_(rule),
        count_(count),
        is_scalar_(is_scalar),
        kernels_(kernels) {}

  Result<RuleProgram> make() {
    slots_[rule_.value] = kParameterSlot;
    if (rule_.gradient != 0) slots_[rule_.gradient] = kGradientSlot;
    for (size_t i = 0; i < rule_.states.size(); ++i) {
      slots_[rule_.states[i].value] = kFirstStateSlot + static_cast<int>(i);
    }
    made_.slots = made_.inputs = rule_.states.size() + static_cast<size_t>(kFirstStateSlot);
    for (const int index : rule_.nodes) {
      OFSDP_RETURN_IF_ERROR(add(graph_.nodes[static_cast<size_t>(index)]));
    }
    made_.results.push_back({slots_.at(rule_.next), kParameterSlot});
    for (size_t i = 0; i < rule_.states.size(); ++i) {
      if (rule_.states[i].next == 0) continue;
      made_.results.push_back(
          {slots_.at(rule_.states[i].next), kFirstStateSlot + static_cast<int>(i)});
    }
    // A result written first might be read by one written next.
    made_.in_place = std::ranges::none_of(made_.results, [&](const RuleResult& result) {
      return static_cast<size_t>(result.slot) < made_.inputs;
    });
    return std::move(made_);
  }

 private:
  Status add(const Node& node) {
    if (node.op->view) {
      slots_[node.outputs[0]] = slots_.at(node.inputs[0]);
      return {};
    }
    RuleStep step;
    Problem problem = problem_of(graph_, node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      problem.inputs[i] = part(problem.inputs[i], node.inputs[i]);
      step.in.push_back(operand(node.inputs[i]));
      step.in_views.push_back({nullptr, problem.inputs[i]});
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != 0) slots_[node.outputs[i]] = static_cast<int>(made_.slots++);
      problem.outputs[i] = part(problem.outputs[i], node.outputs[i]);
      step.out.push_back(operand(node.outputs[i]));
      step.out_views.push_back({nullptr, problem.outputs[i]});
    }
    auto kernel = kernels_.get(*node.op, problem);
    if (!kernel.ok()) return std::move(kernel).status().with_prefix(graph_.describe(node));
    step.kernel = *kernel;
    made_.steps.push_back(std::move(step));
    return {};
  }

  bool is_tensor(ValueId id) const { return id != 0 && !is_scalar_(id); }

  RuleOperand operand(ValueId id) const {
    if (is_tensor(id)) return {0, slots_.at(id)};
    return {id, -1};
  }

  TensorDesc part(TensorDesc desc, ValueId id) const {
    if (is_tensor(id)) desc.shape = Shape{count_};
    return desc;
  }

  const Graph& graph_;
  const UpdateRule& rule_;
  int64_t count_;
  const std::function<bool(ValueId)>& is_scalar_;
  KernelCache& kernels_;
  std::map<ValueId, int> slots_;
  RuleProgram made_;
};

}  // namespace

Result<RuleProgram> plan_rule(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
                              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels) {
  return RulePlanner(updates, rule, count, is_scalar, kernels).make();
}

}  // namespace ofsdp::runtime
