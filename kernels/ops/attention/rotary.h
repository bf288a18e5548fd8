// What RotaryEmbedding of ai.onnx and of com.microsoft share; formula in rotary_embedding.cpp. They
// differ in the order of their inputs. Ownership: values. Threads: any. Errors: kInput.
#pragma once

#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {

struct RotaryInputs {
  size_t cos, sin, positions;
};

Result<std::vector<TensorDesc>> infer_rotary(const InferContext& c, RotaryInputs in);
std::vector<RefTensor> reference_rotary(const ReferenceContext& c, RotaryInputs in);
template <typename T>
bool accepts_rotary(const Problem& p);
template <typename T>
std::unique_ptr<Kernel> create_rotary(const Problem& p, RotaryInputs in);

}  // namespace ofsdp::kernels::ops
