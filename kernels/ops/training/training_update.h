// What the optimizers of ai.onnx.preview.training share: inputs R (rate), T (count of updates so
// far), then the optimized tensors, their gradients and each kind of state, tensor after tensor;
// outputs the new tensors and states in the same order. Elementwise but for R and T, which are
// scalars, so an update may be cut into blocks.
//
// Factors of R and T are computed in double and rounded once, as kernels/optimizers do.
// Ownership: values. Threads: any. Errors: kInput from infer.
#pragma once

#include <string>

#include "kernels/ops/support.h"
#include "kernels/ops/training/training_attributes.h"

namespace ofsdp::kernels::ops {

inline TrainingAttributes training_attributes(const Attributes& a) {
  return {a.f("norm_coefficient", 0),
          a.f("norm_coefficient_post", 0),
          a.f("alpha", 0.9f),
          a.f("beta", 0.999f),
          a.f("epsilon", 1e-6f),
          a.f("decay_factor", 0),
          a.s("mode", "standard") == "nesterov"};
}

// Of one tensor: in[0] its value, in[1] its gradient, in[2..] its states; out[0] the new value,
// out[1..] the new states.
template <typename T>
struct TrainingSpan {
  const T* const* in;
  T* const* out;
  int64_t count;
  double rate;
  double updates;
};

struct TrainingUpdate {
  std::string name;
  int states;
  void (*update)(const TrainingAttributes&, const TrainingSpan<float>&);
  void (*reference)(const TrainingAttributes&, const TrainingSpan<double>&);
  std::vector<Attributes> attributes;  // of the sample cases
};

OpDef training_update(const TrainingUpdate& update, ReferenceFn reference);
// What `reference` of the OpDef does.
std::vector<RefTensor> training_reference(const TrainingUpdate& update, const ReferenceContext& c);

inline constexpr const char* kTrainingDomain = "ai.onnx.preview.training";

}  // namespace ofsdp::kernels::ops
