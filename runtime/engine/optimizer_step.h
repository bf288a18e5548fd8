// OptimizerStep: the update of what a rank owns of the units, block by block, with the norm of the
// gradient summed on the way.
//
// A gradient arrives in blocks of at most kReduceBlock elements of the owned span. Weight decay may
// differ between parameters (--no-decay), and so may optimizers (--group), so a block is cut where
// the parameters change; elementwise optimizers give the same bits whatever the cut. The average of
// --ema follows every parameter that has moved.
//
// Steps of a whole parameter (kernels/core/optimizer.h) wait: `update` advances the states, and
// keeps the gradient where the optimizer wants it again; `apply` follows. In between, optimizers
// with factors need the sums of rows and columns over all ranks.
//
// [Note: the norm's blocks] The squares are summed in double per block of kReduceBlock elements
// that starts at a multiple of it in a rank's span of the padded flat unit, blocks in order, units
// in the order of the schedule, ranks in order: the same sum under every strategy.
//
// States of fewer bits are decoded, advanced and encoded piece by piece
// (kernels/core/stored_state.h), and decoded once more where a step that waits reads them.
// Parameters, shards and kReduceBlock are multiples of kStateBlock then: no block of states is cut.
//
// Ownership: views of the rank's memory. Threads: the one that runs the schedule. No allocation
// after make.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/plan/plan.h"
#include "kernels/optimizers/factors.h"
#include "runtime/engine/exact_squares.h"
#include "runtime/engine/orthogonal_plan.h"
#include "runtime/engine/state_layout.h"
#include "runtime/engine/update_program.h"
#include "runtime/program/rank_memory.h"

namespace ofsdp::runtime {

struct UpdateNumbers {
  double lr = 0;
  int64_t step = 0;            // from 1
  int64_t optimizer_step = 0;  // from 1, without skipped ones; begin_update sets it
  double factor = 0;           // of the schedule: lr over the base rate
  // lr and factor count with so many skipped updates. A device may have skipped one more that the
  // host does not know yet: then these hold.
  int64_t skipped = 0;
  double lr_if_skipped = 0, factor_if_skipped = 0;

  // Returns the numbers if `known` updates have been skipped.
  UpdateNumbers after(int64_t known) const {
    UpdateNumbers now = *this;
    if (known <= skipped) return now;
    now.lr = lr_if_skipped;
    now.factor = factor_if_skipped;
    return now;
  }
};

class OptimizerStep {
 public:
  // `program`: what updates instead of the optimizers, where it is not null; its rules per
  // parameter of the graph (-1: none).
  OptimizerStep(const UpdatePlan& updates, const Plan& plan, const std::vector<UnitState>& units,
                UpdateProgram* program = nullptr, const std::vector<int>& rules = {},
                std::vector<OrthogonalUnit> orthogonal = {});

  // Whether the steps of some parameters wait for their norms.
  bool needs_norms() const { return needs_norms_; }
  // Whether `update` may be called by one thread alone, the rank's: of a program, and of a plug-in,
  // which fans out itself.
  bool of_one_thread() const;

  struct Segment {
    int64_t end = 0;  // of the owned span
    double weight_decay = 0;
    int parameter = 0;  // -1: padding that has no states
    int rule = -1;      // of the program
    int group = 0;
    int64_t origin = 0;  // where the parameter begins: may be before what is owned
    // A state's place less that of its element; of a factor less its number. Of its optimizer's, in
    // order.
    std::vector<int64_t> shifts = {};
  };
  // Per unit, in order, covering the owned span.
  const std::vector<std::vector<Segment>>& segments() const { return segments_; }

  // A factored parameter: its sums in the unit's, and what is held of its factors.
  struct Factored {
    int parameter = 0;
    MatrixShape shape;
    int64_t offset = 0;  // of the unit
    int64_t rows = 0, columns = 0;
    StatePart held_rows = {}, held_columns = {};
  };
  const std::vector<Factored>& factored(int unit) const {
    return factored_[static_cast<size_t>(unit)];
  }
  const ParameterUpdate& update_of(const Segment& segment) const {
    return updates_.of(segment.parameter);
  }
  // Returns which of UpdatePlan::states is state i of the parameter's optimizer.
  size_t state_index(int parameter, size_t i) const { return updates_.of(parameter).states[i]; }
  const UpdateGroup& group_of(const Segment& segment) const {
    return updates_.groups[static_cast<size_t>(segment.group)];
  }
  const UpdatePlan& updates() const { return updates_; }
  bool takes_steps() const { return takes_steps_; }  // of whole parameters, some of them
  // Whether the step comes after `update`.
  bool waits(const Segment& segment) const {
    return program_ == nullptr && segment.parameter >= 0 &&
           group_of(segment).optimizer->direction != nullptr;
  }
  // Whether it needs the gradient again.
  bool keeps_gradient(const Segment& segment) const {
    return waits(segment) && group_of(segment).optimizer->keeps_gradient();
  }
  bool needs_norms(const Segment& segment) const {
    return waits(segment) && group_of(segment).optimizer->needs_norms();
  }
  // The state's array, moved so that it is indexed by elements of what is owned; of factors, by
  // their numbers.
  float* state_of(const UnitState& state, const Segment& segment, size_t i) const {
    return state.optimizer[update_of(segment).states[i]].floats() + segment.shifts[i];
  }

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

  // Sums the squares of the unit's elements `part`, of factored parameters, by rows and by columns:
  // writes those of the unit's factor_sums that `part` touches.
  void sum_squares(int unit, Span part, const float* gradient, float* sums) const;
  // Advances the factors that are held, with the sums of all elements.
  void advance_factors(int unit, const float* sums, const UpdateNumbers& numbers) const;

  // Orthogonalizes the unit's matrices that belong to place `index` of the ranks, in `values`, the
  // whole unit; others become 0, and what is no matrix does elsewhere than at place 0.
  Status orthogonalize(int unit, int index, std::span<float> values, std::byte* work,
                       MatrixArithmetic& arithmetic);

  // Shows the elements `part` of what is owned whose steps wait for norms: every parameter's own,
  // and the step, in blocks of at most kReduceBlock elements. `see(segment, elements, steps)`.
  template <typename See>
  void visit(int unit, Span part, const UpdateNumbers& numbers, See see) {
    visit_if(
        unit, part, numbers, [this](const Segment& s) { return needs_norms(s); }, see);
  }
  // With the rate of the parameter's group; 0 for one whose step does not wait.
  double step_length(int parameter, ParameterNorms norms, const UpdateNumbers& numbers) const;
  // p = (1 - decay) p - length d, with a length for each parameter of the graph that needs norms.
  void apply(int unit, const UpdateNumbers& numbers, std::span<const double> lengths);

  // Exchanges what is owned of all units with its average, for nodes too.
  void swap_average();

 private:
  void list_factored(const Unit& unit);
  void cut(const Unit& unit, const std::vector<int>& rules, int64_t alignment);
  void place_states(const Unit& unit, Segment& segment) const;
  MatrixSpan matrices(const Segment& segment, int64_t begin, int64_t count) const;
  float* average_of(const UnitState& state) const {
    return state.optimizer[static_cast<size_t>(updates_.average_state())].floats();
  }
  StoredState stored_of(const UnitState& state, const Segment& segment, size_t i,
                        int64_t begin) const {
    return state.optimizer[update_of(segment).states[i]].from(begin + segment.shifts[i]);
  }
  // Points at the states of elements [begin, begin + count) for reading: decoded ones, in scratch.
  void read_states(const UnitState& state, const Segment& segment, int64_t begin, int64_t count,
                   std::span<float*> pointers);
  void advance(const UnitState& state, const Segment& segment, int64_t begin,
               std::span<const float> gradient, const UpdateNumbers& numbers,
               std::span<float*> scratch) const;
  void keep(const UnitState& state, const Segment& segment, int64_t begin,
            std::span<const float> gradient, std::span<float*> scratch,
            const UpdateNumbers& numbers);
  void factored_steps(const UnitState& state, const Segment& segment, int64_t begin, int64_t count);
  template <typename Takes, typename See>
  void visit_if(int unit, Span part, const UpdateNumbers& numbers, Takes takes, See see);
  // Elements [begin, begin + count) of the unit's average follow the parameters.
  void average(const UnitState& state, int64_t begin, int64_t count, int64_t optimizer_step) const;
  void run_program(const UnitState& state, const Segment& segment, int64_t at, int64_t count,
                   const float* gradient, const UpdateNumbers& numbers);

  void round(const UnitState& state, int64_t begin, int64_t count) const;
  std::span<const float> direction(int unit, int64_t begin, int64_t count, const Segment& segment,
                                   const UpdateNumbers& numbers);

  const UpdatePlan& updates_;
  bool needs_norms_ = false, takes_steps_ = false;
  DType param_dtype_;
  const std::vector<UnitState>& units_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<std::vector<Factored>> factored_;  // per unit, in its order
  std::vector<OrthogonalUnit> orthogonal_;       // per unit, or none
  std::vector<float*> state_;                    // scratch of one call
  UpdateProgram* program_ = nullptr;
  std::vector<float> direction_;  // scratch of one call, kReduceBlock elements
  std::vector<float> decoded_;    // the same for each state, where they are encoded
  // The mean of the row factors of the matrix that a call of visit is in.
  struct {
    int parameter = -1;
    int64_t matrix = -1;
    float mean = 0;
  } mean_;
};

template <typename Takes, typename See>
void OptimizerStep::visit_if(int unit, Span part, const UpdateNumbers& numbers, Takes takes,
                             See see) {
  const UnitState& state = units_[static_cast<size_t>(unit)];
  int64_t at = part.begin;
  mean_ = {};
  for (const Segment& segment : segments_[static_cast<size_t>(unit)]) {
    const int64_t stop = std::min(segment.end, part.begin + part.numel);
    if (!takes(segment)) at = std::max(at, stop);
    while (at < stop) {
      const int64_t count = std::min<int64_t>(kReduceBlock, stop - at);
      see(segment, std::span<const float>(state.owned + at, static_cast<size_t>(count)),
          direction(unit, at, count, segment, numbers));
      at += count;
    }
  }
}

// How many sums the factors of a unit are made from: for each factored parameter those of its rows,
// then those of its columns, as float32.
int64_t factor_sums(const UpdatePlan& updates, const Unit& unit);

// In double, in a fixed order.
double sum_of_squares(std::span<const float> values);

// StepLengths: what the direction of a whole parameter is multiplied with
// (OptimizerDef::step_length, for LAMB the rate times the trust ratio), from norms of parameter and
// direction that all ranks agree on.
//
// [Note: the norms of parameters] A rank sums the squares of the part of each parameter that it
// alone represents, in double, in blocks of kReduceBlock elements from where that part begins;
// partial sums are exchanged and added in the order of ranks. The parts are the same under every
// strategy, so are the bits (hybrid strategies: to rounding). With --deterministic across_ranks the
// sums are exact (ExactSquares), one exchange a norm.
//
// Ownership: borrows plan, units and optimizer. Threads: the one that runs the schedule; `agree` is
// collective. No allocation after make. Errors: those of the exchange.

class StepLengths {
 public:
  StepLengths(const Plan& plan, const std::vector<UnitState>& units, int rank);

  Status agree(OptimizerStep& optimizer, const UpdateNumbers& numbers, Communicator& communicator);
  // Per parameter of the graph.
  std::span<const double> lengths() const { return lengths_; }

 private:
  Status exchange(Communicator& communicator, const CollectiveSite& site);
  Status exchange_exact(Communicator& communicator, const CollectiveSite& site);

  const Plan& plan_;
  std::vector<Span> parts_;          // per unit, what this rank represents of what it owns
  std::vector<double> squares_;      // per parameter: of p, of d
  std::vector<ExactSquares> exact_;  // per parameter: of p, of d; with across_ranks
  std::vector<double> gathered_;
  std::vector<int64_t> counts_;  // per parameter, elements
  std::vector<double> lengths_;
};

}  // namespace ofsdp::runtime
