// The update table: the optimizer, numbers and states of each parameter, and rows: stretches of a
// rank's shards whose elements are updated alike. Both engines run one list of update operations
// (updater.h) over these rows.
//
// [Note: one update path] An update is made of operations of the registry (kernels/core/update.h):
// advance, keep, sums, factors, norms, step, average, round. An operation updates a unit's shard.
// Its operands are the numbers of the update, the run state, gradient, parameters and states. The
// CPU's registry or a device makes the kernel before the first step, from the rows and all planned
// numbers. So an engine decides nothing: in each step of the schedule it runs the operations that
// Updater has listed for the unit.
//
//   UpdateGroup      an optimizer and numbers (--optimizer, --group)
//   ParameterUpdate  a parameter's group and states
//   UpdatePlan       both, for all; names and forms of states; the average of --ema
//   StatePart        the elements of a state tensor that a rank holds, and where
//   UpdateTable      one rank's rows, by unit
//
// A new number of the update is a member of OptimizerSettings or UpdateRow, which the formula in
// kernels/optimizers reads. A new optimizer is a row of kernels/optimizers/optimizers.inc and a
// formula. An optimizer of whole parameters or matrices also registers kernels for its own parts,
// on the CPU (kernels/optimizers) and on CUDA (kernels/cuda/training).
//
// Groups may have different optimizers. States are told apart by name; a parameter has the states
// of the group's optimizer. The average is one more state, the last, of all parameters, in float32
// under any --state-dtype.
//
// For each unit and state a rank has one flat array. If all parameters of the unit have the state,
// with an element each, the array is as long as the shard, and elements lie as in the shard.
// Otherwise it has the parts of parameters with the state, one after another, each at a multiple of
// the alignment. Factors are whole for every matrix in which the rank owns an element.
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
  std::optional<double> lr = {};  // base rate; none: the run's
};

struct ParameterUpdate {
  int group = 0;
  double weight_decay = 0;
  std::vector<size_t> states = {};  // indices in UpdatePlan::states, in the optimizer's order
  bool factored = false;            // the states are factors: one of rows, one of columns
  MatrixShape shape = {};           // if the optimizer works on matrices
  double adjust = 1;                // UpdateRow::adjust
};

struct UpdatePlan {
  std::vector<UpdateGroup> groups;          // the first takes all parameters without a --group
  std::vector<ParameterUpdate> parameters;  // per parameter of the graph
  std::vector<std::string> states;          // names
  std::vector<StateForm> forms = {};        // how each is stored; shorter: the rest in float32
  uint64_t seed = 0;                        // for rounding states
  std::optional<double> average_decay;      // the last state is an average of the parameters
  int64_t first_update = 1;                 // after this update the average begins

  int average_state() const { return static_cast<int>(states.size()) - 1; }
  StateForm form_of(size_t state) const {
    return state < forms.size() ? forms[state] : StateForm::kFloat32;
  }
  // Returns true if states are stored in fewer bits than float32.
  bool encodes() const { return !forms.empty(); }
  // Parameters and shards begin at its multiples, so that no shard cuts a block of states.
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

// The name of the average among the states.
inline constexpr const char* kAverageState = "ema";

// Returns a state's shape: the parameter's, with 1 as the last axis for factors of rows, as the one
// before it for factors of columns.
Shape state_shape(const ParameterUpdate& update, size_t state, const Shape& parameter);

struct StatePart {
  const UnitParam* param = nullptr;
  int64_t first = 0;  // element of the state tensor
  int64_t count = 0;
  int64_t at = 0;  // element of the array
};

// Returns the parts of a rank that owns `owned`, in the order of parameters.
std::vector<StatePart> state_parts(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   size_t state);
// Returns only the elements in the unique span `unique`.
std::vector<StatePart> state_share(const UpdatePlan& updates, const Unit& unit, const Span& owned,
                                   const Span& unique, size_t state);

// Returns true if all parameters of the unit have the state, with an element each.
bool is_whole(const UpdatePlan& updates, const Unit& unit, size_t state);

// Returns the length of each unit's array for each state, alike on all ranks: the longest needed.
std::vector<std::vector<int64_t>> state_numels(const UpdatePlan& updates, const Plan& plan);

// A row ends where weight decay (--no-decay), optimizer (--group) or rule change. If steps come
// from whole parameters, or states have fewer bits, each parameter has its own row. The gap after a
// parameter belongs to its row. Padding without states has no row. Plan and updates outlive it.
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
  bool takes_steps() const { return takes_steps_; }   // from whole parameters, for some of them
  bool needs_norms() const { return needs_norms_; }   // for the steps of some
  int64_t matrices() const { return matrices_; }      // with factored second moments
  int64_t parameters() const { return parameters_; }  // of the graph, up to the last in a unit

  // Returns the rows of the rank's shard, in order.
  const std::vector<UpdateRow>& rows(int unit) const { return rows_[static_cast<size_t>(unit)]; }
  // Returns a row for each factored parameter in `part`, elements of the unit. Rows count from the
  // beginning of `part`.
  std::vector<UpdateRow> sum_rows(const Unit& unit, const Span& part) const;
  // Returns the lengths of the unit's state arrays.
  const std::vector<int64_t>& state_numels(int unit) const {
    return numels_[static_cast<size_t>(unit)];
  }

  const UpdateGroup& group(const UpdateRow& row) const {
    return updates_.groups[static_cast<size_t>(row.group)];
  }
  const OptimizerDef& optimizer(const UpdateRow& row) const { return *group(row).optimizer; }
  // Returns true if the step comes after `advance`.
  bool waits(const UpdateRow& row) const {
    return !has_rules() && optimizer(row).direction != nullptr;
  }

 private:
  struct Factored {  // offsets in kSums and kMeans
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

// Returns the length of a unit's kSums: for each factored parameter the sums of rows, then columns.
int64_t factor_sums(const UpdatePlan& updates, const Unit& unit);

}  // namespace ofsdp::runtime
