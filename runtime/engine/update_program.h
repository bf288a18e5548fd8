// A model may bring an update of its own: a training_info with ONNX nodes that compute new
// parameters and states from old ones and the gradient (UpdateRules in importer/training_source.h).
// An UpdateProgram runs it on the CPU in place of an optimizer:
//
//   begin(n)   computes the scalars (learning rate, update count) of update n, from 1. They depend
//              only on the file and n, so all ranks have the same, and checkpoints need not contain
//              them
//   update     updates elements [0, count) of a parameter in place, in blocks of kBlock elements
//   kernel     the same as an update kernel (kernels/core/update.h) for the rows of a unit
//
// Runner owns the program, which owns kernels and scratch memory; the UpdateRules outlive it.
// Only the thread that runs the schedule calls it. `make` returns kInput if a node has no kernel or
// a file cannot be read; nothing allocates after it.
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

// RuleProgram: one parameter's rule as kernels over a fixed number of elements. A slot is an array
// of that many elements: slot 0 the parameter, slot 1 the gradient, then the states, then the
// outputs of nodes. UpdateProgram and DeviceRules (device/device_rules.h) run rule programs and
// provide the addresses of slots and scalars. The KernelCache owns the kernels.

// A node's operand: a scalar of the update (`scalar` is not 0), or a slot (`slot` >= 0), or absent.
struct RuleOperand {
  ValueId scalar = 0;
  int slot = -1;
};

struct RuleStep {
  Kernel* kernel = nullptr;
  std::vector<RuleOperand> in, out;
  std::vector<TensorView> in_views, out_views;  // addresses are set when the step runs
};

// A new value, and the parameter or state that it replaces.
struct RuleResult {
  int slot = 0;    // the slot with the new value
  int target = 0;  // the slot of the parameter or state
};

struct RuleProgram {
  std::vector<RuleStep> steps;
  std::vector<RuleResult> results;  // copied to the targets after all steps
  bool in_place = true;  // the first slots may be the arrays themselves instead of copies
  size_t inputs = 0;     // slots of parameter, gradient and states
  size_t slots = 0;      // all slots
};

inline constexpr int kParameterSlot = 0, kGradientSlot = 1, kFirstStateSlot = 2;

// Plans `rule` for arrays of `count` elements. `is_scalar` tells which values are scalars of the
// update. Returns kInput if a node has no kernel.
Result<RuleProgram> plan_rule(const UpdateRules& updates, const UpdateRule& rule, int64_t count,
                              const std::function<bool(ValueId)>& is_scalar, KernelCache& kernels);

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0;
}

// Sets the views' addresses: scalar(id) for a scalar, slots[i] for slot i.
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
  static constexpr int64_t kBlock = 2048;  // elements

  static Result<std::unique_ptr<UpdateProgram>> make(const UpdateRules& updates);

  void begin(int64_t update);
  // `rule`: an index in UpdateRules::parameters; that entry lists the states in the order of
  // `states`.
  void update(int rule, float* param, const float* gradient, float* const* states, int64_t count);

  // Returns a kernel (kernels/core/update.h) that runs the rules of `rows` in place of an
  // optimizer. The program outlives it.
  std::unique_ptr<Kernel> kernel(const Problem& problem, std::vector<UpdateRow> rows);

  // Returns the learning rate of update number `update`, one of the last four that began; of the
  // latest if it is older. NaN if the rules have no rate.
  double rate(int64_t update) const;
  // Returns the bytes that a scalar has after `updates` updates.
  std::span<const std::byte> scalar_after(size_t scalar, int64_t updates);

  // Return all scalars of the latest update that began, and one scalar's offset among them.
  // Programs of equal UpdateRules have equal offsets.
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
  std::vector<std::byte*> scalars_;  // per value; null if it is not a scalar
  std::vector<std::byte> scalar_bytes_;
  std::byte* scalar_base_ = nullptr;
  size_t scalar_size_ = 0;
  std::vector<std::byte> workspace_bytes_, scratch_bytes_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;         // kBlock elements per slot
  std::vector<std::byte*> slots_;        // addresses for the block that runs
  std::vector<float*> inputs_, states_;  // arrays of the call that runs
  int64_t begun_ = 0;                    // updates with computed scalars
  std::array<double, 4> rates_{};        // rates_[n % 4]: the rate of update n
};

}  // namespace ofsdp::runtime
