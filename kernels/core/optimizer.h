// Optimizers: the update of a span of a parameter shard, in float32, elementwise.
//
// An OptimizerDef names the state tensors (one float32 each per element). `update` does one update
// of `count` elements in place. The definitions are PyTorch's (torch.optim, single tensor, not
// fused), in the same order of operations, so that trajectories agree to rounding. Every operation
// is one IEEE operation: vector body and tail give the same bits, and the split into spans does not
// matter. `reference` is the same in double.
//
// Some steps depend on a whole parameter: LAMB and Adafactor need norms, Adafactor sums over rows
// and columns, Muon the matrix itself. Then `update` only advances the states, and `direction` and
// `step_length` make the step when the numbers of the whole parameter are known.
//
// Call from the thread that runs the schedule. kernels/optimizers has the definitions,
// kernels/optimizers/optimizers.inc the list.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::kernels {

struct OptimizerSettings {
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rho = 0.9;
  bool bias_correction = true;  // adamw
};

template <typename T>
struct OptimizerSpan {
  T* param;  // updated in place
  const T* grad;
  T* const* state;  // one pointer per state tensor, each at the same element as `param`
  int64_t count;
  double lr;
  double weight_decay;  // this span's: 0 for parameters without decay
  int64_t step;         // this update's number, from 1
};

// A parameter of two axes or more as the matrices of the last two axes.
struct MatrixShape {
  int64_t matrices = 1;  // of the axes before
  int64_t rows = 0, columns = 0;

  int64_t size() const { return rows * columns; }  // elements of one
  int64_t numel() const { return matrices * size(); }
};

// The norms and numbers that the length of a whole parameter's step may depend on.
struct ParameterNorms {
  double param;      // |p|, before the step
  double direction;  // |d|
  int64_t count;     // elements
  double lr;
  int64_t step;       // this update's number, from 1
  double adjust = 1;  // Muon: factor of the parameter's shape
};

// The settings an optimizer takes; options for the others have no effect on it.
enum OptimizerTakes : uint32_t {
  kTakesMomentum = 1,  // and, with a momentum other than 0, has the state momentum_buffer
  kTakesNesterov = 2,
  kTakesBetas = 4,
  kTakesEps = 8,
  kTakesRho = 16,
};

// Its type in a DeepSpeed file (null: none), and the place of that in the list that messages print.
struct DeepSpeedType {
  const char* name = nullptr;
  int place = 0;
};

// A row of kernels/optimizers/optimizers.inc: states, settings and PyTorch's defaults.
struct OptimizerTraits {
  std::array<const char*, 2> states = {};  // null: none
  uint32_t squares = 0;                    // bit i is set if states[i] is never negative
  // For a parameter of two axes or more, instead of the states: a number for each row, and for each
  // column, of its matrices. Null: none.
  std::array<const char*, 2> factors = {};
  bool orthogonal = false;  // directions are orthogonalized, matrix by matrix
  uint32_t takes = ~0u;     // OptimizerTakes
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0;
  double beta2 = 0.999;
  double eps = 1e-8;
  double rho = 0.9;  // fixed if it is not a setting
  DeepSpeedType deepspeed = {};
};

struct OptimizerDef {
  std::string name;  // "adamw"
  std::vector<std::string> state_names(const OptimizerSettings& settings) const {
    return states(settings);
  }
  std::function<std::vector<std::string>(const OptimizerSettings&)> states;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&)> update;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<double>&)> reference;
  // Both are set if steps come from a whole parameter, else empty. `update` is elementwise even
  // then: it advances the states. `direction` writes the direction d of the span, and the caller
  // takes p -= step_length d. `reference` takes a span that is a whole parameter.
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&, float* direction)>
      direction = {};
  std::function<double(const OptimizerSettings&, const ParameterNorms&)> step_length = {};
  OptimizerTraits traits = {};

  bool factors() const { return traits.factors[0] != nullptr; }
  // Whether `direction` reads the gradient, which then stays until the step, and steps follow a
  // decoupled decay: p = (1 - lr weight_decay) p - step_length d.
  bool keeps_gradient() const { return factors() || traits.orthogonal; }
  bool needs_norms() const { return direction != nullptr && !traits.orthogonal; }
};

std::vector<OptimizerDef> optimizer_list();                   // in the order of the rows
const OptimizerDef* find_optimizer(const std::string& name);  // null: unknown

}  // namespace ofsdp::kernels
