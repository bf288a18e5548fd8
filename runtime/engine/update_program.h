// UpdateProgram: the update that a model brings itself (UpdateRules), ready to run on a rank's
// shards: kernels for the nodes of each parameter, over blocks of kBlock elements, and the scalars
// (rate, count of updates) that all of them read.
//
//   begin(n)   computes the scalars of update n, from 1. They follow from the file and n alone, so
//              every rank has the same and a checkpoint need not hold them.
//   update     updates one parameter's elements [0, count) in place, from its gradient and states
//
// Owns kernels and scratch; the UpdateRules outlive it. Threads: the one that runs the schedule. No
// allocation after make. Errors: kInput from make (a node without a kernel; an unreadable file).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "importer/graph/update_rules.h"
#include "runtime/program/program.h"

namespace ofsdp::runtime {

// RuleProgram: the kernels of an UpdateRule's nodes for `count` elements, over slots: the
// parameter, its gradient, its states, then the outputs of the nodes. The code that runs it knows
// the places of slots and scalars (update_program.h, device_rules.h).
//
// The cache owns the kernels. Threads: one. Errors: kInput for a node without a kernel.

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

class UpdateProgram {
 public:
  static constexpr int64_t kBlock = 2048;

  static Result<std::unique_ptr<UpdateProgram>> make(const UpdateRules& updates);

  void begin(int64_t update);
  // `rule`: an index in UpdateRules::parameters; `states` in its order.
  void update(int rule, float* param, const float* gradient, float* const* states, int64_t count);

  // The rate of one of the updates begun last, or of the very last; NaN where none can be told.
  double rate(int64_t update) const;
  // Returns a scalar after `updates` updates, as bytes.
  std::span<const std::byte> scalar_after(size_t scalar, int64_t updates);

  // Returns all scalars of the update begun last, and the offset of one in them. Equal UpdateRules
  // have equal offsets.
  std::span<const std::byte> scalars() const { return {scalar_base_, scalar_size_}; }
  bool is_scalar(ValueId id) const { return scalars_[static_cast<size_t>(id)] != nullptr; }
  size_t scalar_offset(ValueId id) const {
    return static_cast<size_t>(scalars_[static_cast<size_t>(id)] - scalar_base_);
  }

 private:
  explicit UpdateProgram(const UpdateRules& updates) : updates_(updates) {}
  void place_scalars();
  Status plan_scalars();
  Result<RuleProgram> plan_block(const UpdateRule& rule);
  void run_block(RuleProgram& program, float* const* inputs, int64_t count);
  void run_step(RuleStep& step);
  double current_rate() const;

  const UpdateRules& updates_;
  KernelCache kernels_;
  std::vector<RuleProgram> programs_;
  std::vector<RuleStep> scalar_steps_;
  std::vector<std::byte*> scalars_;  // per value; null: no scalar
  std::vector<std::byte> scalar_bytes_;
  std::byte* scalar_base_ = nullptr;
  size_t scalar_size_ = 0;
  std::vector<std::byte> workspace_bytes_, scratch_bytes_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;   // kBlock elements a slot
  std::vector<std::byte*> slots_;  // of the block that runs
  std::vector<float*> inputs_;     // of one call
  int64_t begun_ = 0;              // updates whose scalars were computed
  std::array<double, 4> rates_{};  // of the last of them, by their numbers
};

}  // namespace ofsdp::runtime
