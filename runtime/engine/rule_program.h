// RuleProgram: the kernels of an UpdateRule's nodes for `count` elements, over slots: the
// parameter, its gradient, its states, then the outputs of the nodes. The code that runs it knows
// the places of slots and scalars (update_program.h, device_rules.h).
//
// The cache owns the kernels. Threads: one. Errors: kInput for a node without a kernel.
#pragma once

#include <functional>
#include <span>

#include "importer/graph/update_rules.h"
#include "runtime/program/program.h"

namespace ofsdp::runtime {

// A scalar of the update, or a slot; neither: absent.
struct RuleOperand {
  ValueId scalar = 0;
  int slot = -1;
};

struct RuleStep {
  Kernel* kernel = nullptr;
  std::vector<RuleOperand> in, out;
  std::vector<TensorView> in_views, out_views;  // without data
};

struct RuleResult {
  int slot = 0;
  int target = 0;  // the slot of the parameter or of a state
};

struct RuleProgram {
  std::vector<RuleStep> steps;
  std::vector<RuleResult> results;  // what is written when all has been computed
  bool in_place = true;             // whether inputs may be read where they are
  size_t inputs = 0;                // slots of the parameter, its gradient and states
  size_t slots = 0;
};

inline constexpr int kParameterSlot = 0, kGradientSlot = 1, kFirstStateSlot = 2;

Result<RuleProgram> plan_rule(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
                              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels);

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0;
}

// Gives the operands of a step their addresses: `scalar(id)`, or those of the slots.
template <typename Scalar>
void place_operands(const std::vector<RuleOperand>& operands, std::span<std::byte* const> slots,
                    const Scalar& scalar, std::vector<TensorView>& views) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto [id, slot] = operands[i];
    if (id != 0) views[i].data = scalar(id);
    if (slot >= 0) views[i].data = slots[static_cast<size_t>(slot)];
  }
}

}  // namespace ofsdp::runtime
