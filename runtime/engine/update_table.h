// The update table says how each element of a rank's shards is updated: by which optimizer, with
// which numbers and states. A row covers a range of elements that are updated alike.
//
//   UpdateGroup      an optimizer and settings (--optimizer, --group)
//   ParameterUpdate  a parameter's group and states
//   UpdatePlan       the model's groups and parameters; names and storage of states; --ema's
//                    average. Equal on all ranks; run_optimizer.cpp makes it
//   StatePart        the elements of a state tensor that a rank holds, and where
//   UpdateTable      one rank's rows, per unit. Runner owns it
//
// [Note: one update path] The CPU and devices update in the same way. Updater (updater.h) gives the
// rows to the update operations (kernels/core/update.h: advance, keep, sums, factors, norms, step,
// average, round); the CPU's registry or a device makes a kernel for each operation and unit before
// the first step. The schedule says when a unit is updated; the engine then runs the kernels that
// Updater has listed for it.
//
// To add a number to an update, add a member to OptimizerSettings (the same for a group) or
// UpdateRow (per parameter), and use it in the formula in kernels/optimizers. To add an optimizer,
// add a row to kernels/optimizers/optimizers.inc and a formula; if the step needs whole parameters
// or matrices, also kernels for the additional parts, in kernels/optimizers and
// kernels/cuda/training.
//
// Groups may have different optimizers. A parameter has the states that the group's optimizer
// needs; equal state names are one state of the plan. The average is one more state, the last in
// the list: every parameter has it, in float32 under any --state-dtype.
//
// A rank has one flat array per unit and state. If all parameters of the unit have the state, with
// one state element per parameter element, the array is as long as the shard and has the same
// order. Otherwise it holds the parts of the parameters that have the state one after another, each
// at a multiple of the alignment. A factored state (a number per matrix row or column) is held for
// every matrix in which the rank owns an element, and for all rows or columns of the matrix.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/plan.h"
#include "importer/graph/graph.h"
#include "kernels/core/stored_state.h"
#include "kernels/core/update.h"

namespace ofsdp::runtime {

struct UpdateGroup {
  const OptimizerDef* optimizer = nullptr;
  OptimizerSettings settings;
  std::optional<double> lr = {};  // base learning rate; none: the run's
};

struct ParameterUpdate {
  int group = 0;  // index in UpdatePlan::groups
  double weight_decay = 0;
  std::vector<size_t> states = {};  // indices in UpdatePlan::states, in the optimizer's order
  bool factored = false;            // states[0] has a number per row, states[1] a number per column
  MatrixShape shape = {};           // the parameter as matrices, if the optimizer works on matrices
  double adjust = 1;                // UpdateRow::adjust
};

struct UpdatePlan {
  std::vector<UpdateGroup> groups;          // the first takes all parameters without a --group
  std::vector<ParameterUpdate> parameters;  // per parameter of the graph
  std::vector<std::string> states;          // names
  std::vector<StateForm> forms = {};    // per state: the storage; states beyond the end: float32
  uint64_t seed = 0;                    // for the stochastic rounding of states
  std::optional<double> average_decay;  // --ema; if set, the last state is the average
  int64_t first_update = 1;             // in this update the average becomes a copy

  int average_state() const { return static_cast<int>(states.size()) - 1; }
  StateForm form_of(size_t state) const {
    return state < forms.size() ? forms[state] : StateForm::kFloat32;
  }
  // Returns true if states are stored in fewer bits than float32.
  bool encodes() const { return !forms.empty(); }
  // Returns the alignment of parameters and shards in elements: with states in 8-bit blocks
  // (kStateBlock elements with one scale), a shard must not split a block.
  int64_t alignment() const {
    return std::ranges::any_of(forms, is_blocked) ? kStateBlock : kParamAlignment;
  }
  const ParameterUpdate& of(int parameter) const {
    return parameters[static_cast<size_t>(parameter)];
  }
  const OptimizerDef& optimizer_of(int parameter) const {
    return *groups[static_cast<size_t>(of(parameter).group)].optimizer;
  }
};

// The average's name in UpdatePlan::states.
inline constexpr const char* kAverageState = "ema";

// Returns a state's shape: `parameter`; for the factor with a number per row with the last axis 1,
// per column with the last but one axis 1.
Shape state_shape(const ParameterUpdate& update, size_t state, const Shape& parameter);

struct StatePart {
  const UnitParam* param = nullptr;
  int64_t first = 0;  // first element, counted in the state tensor
  int64_t count = 0;
  int64_t at = 0;  // where it begins in the rank's array
};

// Returns the parts that the owner of the unit's elements `owned` holds, in parameter order.
std::vector<StatePart> state_parts(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   size_t state);
// Returns the parts of these that belong to the span `unique`. If the spans of all ranks divide the
// unit, every state element is in exactly one rank's parts (for checkpoints).
std::vector<StatePart> state_share(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   const Span& unique, size_t state);

// Returns true if all parameters of the unit have the state, with one state element per parameter
// element.
bool is_whole(const UpdatePlan& updates, const Unit& unit, size_t state);

// Returns [unit][state]: the length of the array in elements, the same on all ranks: the longest
// that a rank needs.
std::vector<std::vector<int64_t>> state_numels(const UpdatePlan& updates, const Plan& plan,
                                               int rank);

// A new row begins where weight decay (--no-decay), group (--group) or rule change. Each parameter
// has a row of its own if a step needs whole parameters or matrices, or if states are stored in few
// bits. The padding after a parameter belongs to the parameter's row. The unit's last padding has
// no row if the rank has no states for it. `updates` and `plan` outlive the table.
class UpdateTable {
 public:
  // `rules`: per parameter of the graph, the rule of the model's own update, or -1; empty if
  // optimizers update.
  UpdateTable(const UpdatePlan& updates, const Plan& plan, int rank,
              const std::vector<int>& rules = {});

  const UpdatePlan& updates() const { return updates_; }
  const Plan& plan() const { return plan_; }
  int rank() const { return rank_; }
  bool has_rules() const { return !rules_.empty(); }
  // Return true if an optimizer of the run has a step after `advance`, and if such a step needs
  // norms of whole parameters.
  bool takes_steps() const { return takes_steps_; }
  bool needs_norms() const { return needs_norms_; }
  int64_t matrices() const { return matrices_; }      // matrices with factored second moments
  int64_t parameters() const { return parameters_; }  // 1 + the largest parameter index in a unit

  // Returns the rows of the rank's shard, in order.
  const std::vector<UpdateRow>& rows(int unit) const { return rows_[static_cast<size_t>(unit)]; }
  // Returns one row per factored parameter that overlaps `part` (elements of the unit), for a
  // `sums` kernel: UpdateRow::begin is 0 at the beginning of `part`.
  std::vector<UpdateRow> sum_rows(const Unit& unit, const Span& part) const;
  // Returns the lengths of the unit's state arrays.
  const std::vector<int64_t>& state_numels(int unit) const {
    return numels_[static_cast<size_t>(unit)];
  }

  const UpdateGroup& group(const UpdateRow& row) const {
    return updates_.groups[static_cast<size_t>(row.group)];
  }
  const OptimizerDef& optimizer(const UpdateRow& row) const { return *group(row).optimizer; }
  // Returns true if the row's parameters move in a `step` after `advance`.
  bool waits(const UpdateRow& row) const {
    return !has_rules() && optimizer(row).direction != nullptr;
  }

 private:
  struct Factored {  // indices in UpdateOut::kSums and kMeans
    int64_t sums = 0, means = 0;
  };
  void cut(const Unit& unit);
  UpdateRow row_of(const UnitParam& p, const Span& owned) const;
  void place_states(const Unit& unit, const Span& owned, UpdateRow& row) const;
  void place_factors(UpdateRow& row, const ParameterUpdate& update) const;

  const UpdatePlan& updates_;
  const Plan& plan_;
  int rank_;
  std::vector<int> rules_;
  bool takes_steps_ = false, needs_norms_ = false;
  int64_t matrices_ = 0, parameters_ = 0;
  std::vector<Factored> factored_;  // per parameter
  std::vector<std::vector<UpdateRow>> rows_;
  std::vector<std::vector<int64_t>> numels_;
};

// Returns the length of a unit's kSums: per factored parameter one float per row, then one per
// column.
int64_t factor_sums(const UpdatePlan& updates, const Unit& unit);

}  // namespace ofsdp::runtime
