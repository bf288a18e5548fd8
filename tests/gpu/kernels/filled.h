// A sample case of an operator as a test of kernels/cuda needs it: inputs in one float type on the
// device, and the same numbers for the reference. Owns its memory. Threads: one.
#pragma once

#include "kernels/core/op_def.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"
#include "tests/support/samples.h"

namespace ofsdp::kernels::cuda {

using Doubles = std::vector<double>;

inline bool is_16_or_32(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// A sample's inputs, rounded to their dtypes, on the device and for the reference.
struct Filled {
  std::vector<std::unique_ptr<Tensor>> tensors;  // null: absent
  std::vector<RefTensor> refs;

  Filled(const SampleCase& sample, DType dtype) {
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      TensorDesc desc = sample.inputs[i];
      if (is_16_or_32(desc.dtype)) desc.dtype = dtype;
      Doubles values;
      if (desc.present()) values = numbers(desc.numel(), i + 1);
      if (desc.dtype == DType::kBool) {
        for (double& v : values) v = v > -1;
      }
      if (sample.fill) sample.fill(i, values);
      tensors.push_back(desc.present() ? std::make_unique<Tensor>(desc.dtype, values) : nullptr);
      refs.push_back({desc, desc.present() ? tensors.back()->values() : Doubles{}});
    }
  }
  TensorDesc desc(size_t i) const { return i < refs.size() ? refs[i].desc : TensorDesc{}; }
  void* data(size_t i) const {
    return i < tensors.size() && tensors[i] ? tensors[i]->data() : nullptr;
  }
};

}  // namespace ofsdp::kernels::cuda
