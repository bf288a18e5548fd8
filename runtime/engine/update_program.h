// UpdateProgram: the update that a model brings itself (UpdateRules), for a rank's shards: kernels
// for the nodes of each parameter, over blocks of kBlock elements, and the scalars (rate, count of
// updates) that all of them read.
//
//   begin(n)   computes the scalars of update n, from 1. They follow from the file and n alone, so
//              all ranks have the same, and checkpoints need not contain them.
//   update     updates elements [0, count) of a parameter in place
//   kernel     the update as a kernel for the rows of a unit
//
// Owns kernels and scratch; the UpdateRules outlive it. The thread that runs the schedule calls it.
// It allocates nothing after make, which returns kInput if a node has no kernel or a file cannot be
// read.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "importer/training_source.h"
#include "kernels/core/update.h"
#include "runtime/compile/program/step_program.h"

namespace ofsdp::runtime {

// RuleProgram: the kernels of an UpdateRule's nodes for `count` elements, over slots: parameter,
// gradient, states, then the outputs of nodes. UpdateProgram and DeviceRules run it and know where
// slots and scalars are. The cache owns the kernels.

// A scalar of the update, or a slot, or neither if the operand is absent.
struct RuleOperand {
  ValueId scalar = 0;
  int slot = -1;
};

struct RuleStep {
  Kernel* kernel = nullptr;
  std::vector<RuleOperand> in, out;
  std::vector<TensorView> in_views, out_views;  // their addresses are set when it runs
};

struct RuleResult {
  int slot = 0;
  int target = 0;  // slot of the parameter or of a state
};

struct RuleProgram {
  std::vector<RuleStep> steps;
  std::vector<RuleResult> results;  // written after all steps
  bool in_place = true;             // inputs may be read where they are
  size_t inputs = 0;                // slots of parameter, gradient and states
  size_t slots = 0;
};

inline constexpr int kParameterSlot = 0, kGradientSlot = 1, kFirstStateSlot = 2;

// Returns kInput if a node has no kernel.
Result<RuleProgram> plan_rule(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
                              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels);

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0;
}

// Sets the addresses of a step's operands: `scalar(id)`, or the slot's.
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
  // `rule`: an index in UpdateRules::parameters, which orders `states`.
  void update(int rule, float* param, const float* gradient, float* const* states, int64_t count);

  // Returns a kernel (kernels/core/update.h) that runs the rules of `rows` in place of an
  // optimizer. The program outlives it.
  std::unique_ptr<Kernel> kernel(const Problem& problem, std::vector<UpdateRow> rows);

  // Returns the rate of an update if it is one of the last few that began, else of the last; NaN if
  // the rules have no rate.
  double rate(int64_t update) const;
  // Returns a scalar after `updates` updates, as bytes.
  std::span<const std::byte> scalar_after(size_t scalar, int64_t updates);

  // Returns all scalars of the last update that began, and the offset of one. Equal UpdateRules
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
  std::vector<std::byte*> scalars_;  // per value; null if it is no scalar
  std::vector<std::byte> scalar_bytes_;
  std::byte* scalar_base_ = nullptr;
  size_t scalar_size_ = 0;
  std::vector<std::byte> workspace_bytes_, scratch_bytes_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;         // kBlock elements a slot
  std::vector<std::byte*> slots_;        // of the block that runs
  std::vector<float*> inputs_, states_;  // of one call
  int64_t begun_ = 0;                    // updates with computed scalars
  std::array<double, 4> rates_{};        // of the last updates, by their numbers
};

}  // namespace ofsdp::runtime
