// OptimizerStep: the update of what a rank owns of the units, block by block, with the norm of the
// gradient summed on the way.
//
// A gradient arrives in blocks of at most kReduceBlock elements of the owned span. Weight decay may
// differ between parameters (--no-decay), and so may optimizers (--group), so a block is cut where
// the parameters change; elementwise optimizers give the same bits whatever the cut. The average of
// --ema follows every parameter that has moved.
//
// [Note: the norm's blocks] The squares are summed in double per block of kReduceBlock elements
// that starts at a multiple of it in a rank's span of the padded flat unit, blocks in order, units
// in the order of the schedule, ranks in order: the same sum under every strategy.
//
// Ownership: views of the rank's memory. Threads: the one that runs the schedule. No allocation
// after make.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"
#include "runtime/engine/update_plan.h"
#include "runtime/engine/update_program.h"
#include "runtime/program/unit_state.h"

namespace ofsdp::runtime {

struct UpdateNumbers {
  double lr = 0;
  int64_t step = 0;            // from 1
  int64_t optimizer_step = 0;  // from 1, without skipped ones; begin_update sets it
  double factor = 0;           // of the schedule: lr over the base rate
};

class OptimizerStep {
 public:
  // `program`: what updates instead of the optimizers, where it is not null; its rules per
  // parameter of the graph (-1: none).
  OptimizerStep(const UpdatePlan& updates, const Plan& plan, const std::vector<UnitState>& units,
                UpdateProgram* program = nullptr, const std::vector<int>& rules = {});

  // Whether `update` only advances the states of some parameters, and `apply` with norms of
  // parameters must follow.
  bool needs_norms() const { return needs_norms_; }
  // Whether `update` may be called by one thread alone, the rank's: of a program, and of a plug-in,
  // which fans out itself.
  bool of_one_thread() const;

  struct Segment {
    int64_t end = 0;  // of the owned span
    double weight_decay = 0;
    int parameter = 0;
    int rule = -1;  // of the program
    int group = 0;
  };
  // Per unit, in order, covering the owned span.
  const std::vector<std::vector<Segment>>& segments() const { return segments_; }

  // Elements [begin, begin + gradient.size()) of what is owned of the unit.
  void update(int unit, int64_t begin, std::span<const float> gradient,
              const UpdateNumbers& numbers) {
    update(unit, begin, gradient, numbers, state_);
  }
  // Several threads may call it at once, unless of_one_thread: `scratch` for a pointer to each
  // state.
  void update(int unit, int64_t begin, std::span<const float> gradient,
              const UpdateNumbers& numbers, std::span<float*> scratch);
  // Writes all that is owned where nodes read it, if they read it rounded.
  void round(int unit) const;

  // Shows the elements `part` of what is owned whose steps wait for their lengths: every
  // parameter's own, and the step, in blocks of at most kReduceBlock elements.
  // `see(parameter, elements, steps)`.
  template <typename See>
  void visit(int unit, Span part, const UpdateNumbers& numbers, See see);
  // With the rate of the parameter's group; 0 for one whose step does not wait.
  double step_length(int parameter, ParameterNorms norms, const UpdateNumbers& numbers) const;
  // p -= length d, with a length for each parameter of the graph.
  void apply(int unit, const UpdateNumbers& numbers, std::span<const double> lengths);

  // Exchanges what is owned of all units with its average, for nodes too.
  void swap_average();

 private:
  const UpdateGroup& group_of(const Segment& segment) const {
    return updates_.groups[static_cast<size_t>(segment.group)];
  }
  bool waits(const Segment& segment) const {
    return program_ == nullptr && group_of(segment).optimizer->direction != nullptr;
  }
  // Elements [begin, begin + count) of the unit's average follow the parameters.
  void average(const UnitState& state, int64_t begin, int64_t count, int64_t optimizer_step) const;
  void run_program(const UnitState& state, const Segment& segment, int64_t at, int64_t count,
                   const float* gradient, const UpdateNumbers& numbers);

  void round(const UnitState& state, int64_t begin, int64_t count) const;
  std::span<const float> direction(int unit, int64_t begin, int64_t count, const Segment& segment,
                                   const UpdateNumbers& numbers);

  const UpdatePlan& updates_;
  bool needs_norms_ = false;
  DType param_dtype_;
  const std::vector<UnitState>& units_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<float*> state_;  // scratch of one call
  UpdateProgram* program_ = nullptr;
  std::vector<float> direction_;  // scratch of one call, kReduceBlock elements
};

template <typename See>
void OptimizerStep::visit(int unit, Span part, const UpdateNumbers& numbers, See see) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  int64_t at = part.begin;
  for (const Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, part.begin + part.numel);
    if (!waits(segment)) at = std::max(at, stop);
    while (at < stop) {
      const int64_t count = std::min<int64_t>(kReduceBlock, stop - at);
      see(segment.parameter, std::span<const float>(state.owned + at, static_cast<size_t>(count)),
          direction(unit, at, count, segment, numbers));
      at += count;
    }
  }
}

// In double, in a fixed order.
double sum_of_squares(std::span<const float> values);

}  // namespace ofsdp::runtime
