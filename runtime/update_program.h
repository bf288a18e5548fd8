// UpdateProgram: the UpdateRules of a model made ready to run on a rank's shards: kernels for the
// nodes of each parameter, over blocks of kBlock elements, and the scalars (rate, count of updates)
// that all of them read.
//
//   begin(n)   the scalars of update n, from 1. They follow from the file and n alone, so every rank
//              has the same and a checkpoint need not hold them.
//   update     one parameter's elements [0, count) in place, from its gradient and states
//
// Ownership: owns kernels and scratch; `rules` outlives it. Threads: the one that runs the schedule.
// No allocation after make. Errors: kInput from make (a node without a kernel; an unreadable file).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "importer/update_rules.h"
#include "runtime/program.h"

namespace ofsdp {

class UpdateProgram {
 public:
  static constexpr int64_t kBlock = 2048;

  static Result<std::unique_ptr<UpdateProgram>> make(const UpdateRules& rules);

  void begin(int64_t update);
  // `rule` as UpdateRules numbers them; `states` in its order.
  void update(int rule, float* param, const float* gradient, float* const* states, int64_t count);

  // The rate of the update begun last; NaN where none can be told.
  double rate() const;
  // A scalar of the rules behind `updates` of them, as bytes.
  std::span<const std::byte> scalar_after(size_t scalar, int64_t updates);

 private:
  // Where an operand is: a scalar's bytes, or a slot of the rule.
  struct Operand {
    std::byte* fixed = nullptr;
    int slot = -1;  // -1 without `fixed`: absent
  };
  struct Step {
    Kernel* kernel = nullptr;
    std::vector<Operand> in, out;
    std::vector<TensorView> in_views, out_views;
  };
  struct Next {  // what is written at the end of a block
    int slot = 0;
    int target = 0;  // 0: the parameter, then the states
  };
  // Slots: the parameter, its gradient, its states, then scratch.
  struct RuleProgram {
    std::vector<Step> steps;
    std::vector<Next> results;
    bool in_place = true;  // whether inputs may be read where they are
    size_t inputs = 0;
    size_t slots = 0;
  };

  explicit UpdateProgram(const UpdateRules& rules) : rules_(rules) {}
  void place_scalars();
  Status plan_scalars();
  Result<RuleProgram> plan_rule(const UpdateRule& rule);
  void run_block(RuleProgram& program, float* const* inputs, int64_t count);
  void run_step(Step& step);

  const UpdateRules& rules_;
  KernelCache kernels_;
  std::vector<RuleProgram> programs_;
  std::vector<Step> scalar_steps_;
  std::vector<std::byte*> scalars_;  // per value; null: no scalar
  std::vector<std::byte> scalar_bytes_;
  std::vector<std::byte> workspace_bytes_, scratch_bytes_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;   // kBlock elements a slot
  std::vector<std::byte*> slots_;  // of the block that runs
  std::vector<float*> inputs_;     // of one call
  int64_t begun_ = 0;              // updates whose scalars were computed
};

}  // namespace ofsdp
