// Random numbers of RandomNormal, RandomUniform, Bernoulli and Multinomial: a pure function of
// seed, step, node, global sample index and element (kernels/core/philox.h), so that any number of
// ranks draws the same. As with Dropout the leading axis is the samples; where they do not divide
// the elements, all are drawn as if of the first sample. Attribute seed (a float) is part of the
// key.
//
// Owns: values. Threads: any, once made.
#pragma once

#include <functional>
#include <memory>

#include "kernels/core/op_def.h"
#include "kernels/core/philox.h"

namespace ofsdp::kernels::ops {

class RandomDraw {
 public:
  RandomDraw(const Attributes& attributes, uint64_t node_seed, const StepContext& step,
             int64_t numel);

  double uniform(int64_t i) const;  // in [0, 1), a multiple of 2^-24: the same in float32
  double normal(int64_t i) const;   // mean 0, deviation 1, by Box and Muller

 private:
  uint32_t bits(int64_t i, uint64_t per_element, uint64_t which) const;

  PhiloxKey key_;
  const StepContext* step_;
  int64_t sample_size_;
};

// Element i of the output from its draw and the inputs as they lie.
using RandomElement = double (*)(const Problem&, const KernelArgs&, const RandomDraw&, int64_t i);

// The definition: the same element by element, the inputs as views of float64.
std::vector<RefTensor> reference_random(const ReferenceContext& context, RandomElement element);

// A kernel that calls `element` for each element of output 0, of any type.
std::unique_ptr<Kernel> make_random(const Problem& problem, RandomElement element);

// Element i of a float tensor of any width.
double float_at(const TensorView& view, int64_t i);

// Type of attribute dtype (ONNX's number), or `otherwise` when it is absent.
Result<DType> dtype_attribute(const Attributes& attributes, DType otherwise);

}  // namespace ofsdp::kernels::ops
