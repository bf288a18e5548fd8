// What Sum, Mean, Max and Min share: they fold any number of inputs that broadcast to each other.
//
// Ownership: values. Threads: any. Errors: kInput.
#pragma once

#include "kernels/cpu/variadic.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {

Result<std::vector<TensorDesc>> infer_variadic(const InferContext& c);

// dx = dy where x is y, shared evenly among the inputs that are, as PyTorch's maximum does.
void grad_of_chosen(GradBuilder& b);

// f(values of all inputs at one element)
template <typename F>
std::vector<RefTensor> variadic_reference(const ReferenceContext& c, const F& f) {
  RefTensor y{c.output_descs[0], {}};
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const auto index = unravel(y.desc.shape, i);
    std::vector<double> values;
    for (const RefTensor& x : c.inputs) {
      values.push_back(x.values[ravel_broadcast(x.desc.shape, index)]);
    }
    y.values.push_back(f(values));
  }
  return {y};
}

std::vector<SampleCase> variadic_samples(TypeSet types);

// The members of OpDef that are the same for all.
OpDef variadic(OpDef op);

}  // namespace ofsdp::kernels::ops
