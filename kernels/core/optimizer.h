// Optimizers: the update of a span of a parameter shard, in float32, elementwise.
//
// An OptimizerDef names its state tensors (one float32 each per element), and `update` does one
// update of `count` elements in place. The definitions are PyTorch's (torch.optim, single tensor,
// not fused), with its order of operations, so that trajectories agree to rounding; every operation
// is one IEEE operation, so vector body and tail give the same bits and the split into spans does
// not matter. `reference` is the same in double.
//
// Ownership: views only. Threads: the one that runs the schedule. `step` counts updates from 1.
#pragma once

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

// What the length of a whole parameter's step may depend on.
struct ParameterNorms {
  double param;      // |p|, before the step
  double direction;  // |d|
  int64_t count;     // elements
  double lr;
  int64_t step;  // this update's number, from 1
};

struct OptimizerDef {
  std::string name;  // "adamw"
  std::vector<std::string> state_names(const OptimizerSettings& settings) const {
    return states(settings);
  }
  std::function<std::vector<std::string>(const OptimizerSettings&)> states;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&)> update;
  std::function<void(const OptimizerSettings&, const OptimizerSpan<double>&)> reference;
  // Of an optimizer whose steps need the norms of whole parameters (LAMB), else empty. `update` then
  // is elementwise as ever (it advances the states); this writes the direction d of the span, and the
  // caller takes p -= step_length d. `reference` takes a span that is a whole parameter.
  std::function<void(const OptimizerSettings&, const OptimizerSpan<float>&, float* direction)>
      direction = {};
  std::function<double(const OptimizerSettings&, const ParameterNorms&)> step_length = {};
};

std::vector<OptimizerDef> optimizer_list();                   // one list
const OptimizerDef* find_optimizer(const std::string& name);  // null: unknown

}  // namespace ofsdp::kernels
