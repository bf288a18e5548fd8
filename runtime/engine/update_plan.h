// UpdatePlan: which optimizer updates each parameter, with which numbers, and which state tensors a
// run holds for that.
//
// Groups (--group) may have optimizers of their own. The states of all are told apart by their
// names; a parameter has those of its optimizer. The average of --ema is one more, the last, of all
// parameters, and in float32 whatever --state-dtype says of the others.
//
// Ownership: a value; the definitions outlive it. Threads: any. Errors: none.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/unit.h"
#include "kernels/core/stored_state.h"

namespace ofsdp::runtime {

struct UpdateGroup {
  const OptimizerDef* optimizer = nullptr;
  OptimizerSettings settings;
  std::optional<double> lr = {};  // its base rate; none: the run's
};

struct ParameterUpdate {
  int group = 0;
  double weight_decay = 0;
  std::vector<size_t> states = {};  // of its optimizer, in order: which of UpdatePlan::states
  bool factored = false;            // the states are the factors of its rows and of its columns
  MatrixShape shape = {};           // of one whose optimizer works on matrices
  double adjust = 1;                // Muon's, of the shape
};

struct UpdatePlan {
  std::vector<UpdateGroup> groups;          // the first is of all that no --group takes
  std::vector<ParameterUpdate> parameters;  // of the graph
  std::vector<std::string> states;          // names
  std::vector<StateForm> forms = {};        // how each is stored; shorter: the rest in float32
  uint64_t seed = 0;                        // of their rounding
  std::optional<double> average_decay;      // the last state is an average of the parameters
  int64_t first_update = 1;                 // its number: there the average begins

  int average_state() const { return static_cast<int>(states.size()) - 1; }
  StateForm form_of(size_t state) const {
    return state < forms.size() ? forms[state] : StateForm::kFloat32;
  }
  // Whether states are stored in fewer bits than an update computes in.
  bool encodes() const { return !forms.empty(); }
  // Parameters and shards begin at multiples of it, so that no shard cuts a block of states.
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

}  // namespace ofsdp::runtime
